"""How the tests are spread over workers (`pytest -n 2` uses this scheduler whatever `--dist` says), and what is
made once for many of them because it takes seconds."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.cli.command import SHORT_EFFORTS
from tests.exploits.museum import HERE, cases
from tests.forking import Forks
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from foundry.tools.grade.host import workbench
from foundry.tools.grade.host.grader import thread_count
from foundry.tools.machine.ceilings import ceilings
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.statistics import EFFORTS

OWN_CACHE_BYTES = 8 << 20  # as many a processor has
MOST_LAUNCH_MS, LEAST_FLOPS_A_BYTE = 0.1, 4.0  # of any CPU's ceilings: 0.001 ms and 20 to 60 are usual
MUSEUM = "tests/exploits/test_museum.py"
LARGEST = "softmax"  # the task of half of the exhibits: these go to whichever worker is free
THE_SOLVED_RUN = (  # what reads the fixture `solved`, a run of a minute
    "tests/cli/test_solve.py",
    "tests/cli/test_chat_and_trace.py",
    "tests/cli/test_newcomer.py",
    "tests/cli/test_knowledge.py",
    "tests/cli/test_verify.py",
    "tests/cli/test_pages.py",
    "tests/cli/test_bad_input.py::test_a_run_that_is_missing_or_corrupt",
)
FIRST = (
    "the solved run",
    "tests/cli/test_resume.py",
    "tests/cli/test_bench.py",
    "tests/knowledge/compiler/test_plan.py",
    "tests/knowledge/compiler/cuda/test_kernels.py",
    "tests/tools/audit/test_runs.py",
    "tests/tools/grade/test_trust.py",
    "tests/tools/verify/test_verification.py",
    "tests/tools/verify/test_profile_command.py",
    "tests/test_chaos.py",
)  # long ones: started last, one of them would keep a worker busy alone


WITHOUT_A_DEVICE = ("tests/knowledge/", "tests/agents/", "tests/emulator/", "tests/fuzz/", "tests/tools/process/")

FUZZED = int(os.environ.get("FOUNDRY_FUZZ", "0"))  # examples of each property; 0: the same few each time
settings.register_profile(
    "everywhere",
    max_examples=FUZZED or 60,
    derandomize=not FUZZED,
    deadline=None,  # a machine that stalls for a moment refutes no property
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("everywhere")

gc.disable()  # until everything is imported, which stays: a fifth of the time of a test that traces went into it


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    gc.enable()


def group_of(nodeid: str) -> str:
    """The tests of one group run on one worker: those of a file, which makes the file's fixtures once; those that read
    the solved run; the museum's by task, whose workbench takes seconds."""
    if nodeid.startswith(THE_SOLVED_RUN):
        return FIRST[0]
    path, _, test = nodeid.partition("::")
    if path != MUSEUM:
        return path
    name = test.partition("[")[2].rstrip("]")
    task = _tasks().get(name, "")
    return nodeid if task == LARGEST else f"museum: {task}"


@cache
def _tasks() -> dict[str, str]:
    """The task of each exhibit, and of each test that is named after a task."""
    exhibits = [case for kind in ("cheats", "honest") for target in ("cpu", "cuda") for case in cases(kind, target)]
    return {case.name: case.task.stem for case in exhibits} | {path.stem: path.stem for path in HERE.glob("tasks/*.py")}


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist is not typed
    """Whole groups go to workers, in the order of collection; as long as there are both kinds, every other worker takes
    those that hold no device: two that time something wait for each other."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: object) -> None:
        takes_quiet = self.nodes.index(node) % 2 == 1
        wanted = (group for group in self.workqueue if group.startswith(WITHOUT_A_DEVICE) == takes_quiet)
        self.workqueue.move_to_end(next(wanted, next(iter(self.workqueue))), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    config.option.loadscopereorder = False  # largest first, by number: but the longest have few tests
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first, the museum's single exhibits last, so that no worker waits for the other at the end."""
    strays = {item.nodeid.partition("[")[0] for item in items if "solved" in getattr(item, "fixturenames", ())}
    strays = {nodeid for nodeid in strays if group_of(nodeid) != FIRST[0]}
    if strays:
        raise pytest.UsageError(f"name in THE_SOLVED_RUN what reads it, or a second worker makes it again: {strays}")

    def rank(item: pytest.Item) -> tuple[int, bool, bool]:
        group = group_of(item.nodeid)
        place = FIRST.index(group) if group in FIRST else len(FIRST)
        return place, item.nodeid.startswith(MUSEUM), group == item.nodeid

    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def own_cache() -> Iterator[None]:
    """The CPU as the tests describe it has a last-level cache of 8 MiB. Before each timed call twice as much is
    evicted; of a cache that is shared with other virtual machines (480 MiB here) that was a fifth of a solve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("foundry.tools.targets.cpu.describe._last_level_cache_bytes", lambda: OWN_CACHE_BYTES)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_timings() -> Iterator[None]:
    """Timings end with the fewest and shortest groups that make an interval. How many make it narrow enough is asked in
    tests/tools/protocol."""
    with pytest.MonkeyPatch.context() as patch:
        for stage, effort in SHORT_EFFORTS.items():
            patch.setitem(EFFORTS, stage, effort)
        yield


@pytest.fixture(scope="session")
def zygote(own_cache: None) -> Iterator[Zygote]:
    """A warm process for every grader of this worker: PyTorch's import takes three seconds. Whoever uses it ends what
    it forked, and the process stays."""
    warm = Zygote.start(threads=thread_count(describe("cpu")))
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Runs code in processes of their own that have PyTorch already."""
    made = Forks()
    yield made
    made.close()


class KeptZygote(Zygote):
    """The tests' warm process as somebody's own: it outlives them."""

    def __init__(self, warm: Zygote) -> None:
        self.__dict__ = warm.__dict__

    def close(self) -> None:
        pass


def share(zygote: Zygote, patch: pytest.MonkeyPatch) -> None:
    """Who would start a warm process, in this process, works with the tests' own."""
    patch.setattr(workbench, "open_workbench", partial(workbench.open_workbench, zygote=zygote))
    for way in ("begin", "start"):
        patch.setattr(Zygote, way, lambda **_: KeptZygote(zygote))


@pytest.fixture
def shared_zygote(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> None:
    share(zygote, monkeypatch)


def _measure_well() -> None:
    """Measures the ceilings; again, where threads never ran together: a busy machine showed a launch of 9 ms and a
    seventieth of the arithmetic, and no diagnosis of a kernel made sense."""
    device = describe("cpu")
    found = ceilings(device)
    for _ in range(5):
        if found.launch_ms < MOST_LAUNCH_MS and found.ieee_flops_per_s > LEAST_FLOPS_A_BYTE * found.copy_bytes_per_s:
            break
        found = ceilings(device, again=True)


@pytest.fixture(scope="session")
def make_home(tmp_path_factory: pytest.TempPathFactory, own_cache: None) -> Callable[[], Path]:
    """Makes a $FOUNDRY_HOME in which the CPU's ceilings are known and nothing else: locks of its own, so that nobody
    else's timing is waited for. Measuring the ceilings takes six seconds, and is done once for all workers."""
    base = tmp_path_factory.getbasetemp()
    measured_home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "measured-home"
    measured_home.mkdir(exist_ok=True)
    with (measured_home / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("FOUNDRY_HOME", str(measured_home))
        _measure_well()

    def make() -> Path:
        home = tmp_path_factory.mktemp("home")
        shutil.copytree(measured_home / "ceilings", home / "ceilings")
        return home

    return make
