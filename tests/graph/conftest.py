"""A machine that answers from arithmetic, so that the real graph, checkpoints and databases are tested quickly."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.chat.scripted_server import ScriptedServer

from foundry.agents.models.models import one_model
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Choice,
    Contest,
    Evaluation,
    ForeignName,
    Gate,
    Profile,
    Recipe,
    Resources,
    Rival,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler.ir.kernels import KernelSummary, Tunable
from foundry.knowledge.compiler.lowered import Lowered, Outline
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.experience.store import ExperienceStore
from foundry.knowledge.opgraph import Op, OpGraph, Ref, TensorSpec, Value
from foundry.knowledge.task import Policy, Task
from foundry.knowledge.thought import Move

if TYPE_CHECKING:
    from foundry.agents.brain import Brain, Listener
    from foundry.tools.profiling.gather import Seen
    from foundry.tools.tune.tuner import TunedPlan
from foundry.tools.grade.host.workbench import BenchNotes, Intake, Workbench

DEVICE = Device(
    "cpu",
    "Test CPU",
    "x86-64-v3",
    2,
    1 << 25,
    32,
    1 << 33,
    True,
    Ceilings(2e10, 1e11, 1e11, 1e11, 1e11, 0.002, "2026-01-01"),
)
SPEC = TensorSpec((1024, 1024), (1024, 1), "float32")
TILES, UNROLLS, VECTORS, THREADS = (16, 32, 64, 128), (1, 2, 4, 8), (4, 8, 16), (1, 2)
TUNABLES = (
    Tunable("tile", TILES, 16, "tile", "cache reuse against footprint"),
    Tunable("unroll", UNROLLS, 1, "vector", "registers against latency"),
    Tunable("vector", VECTORS, 4, "vector", "width"),
    Tunable("threads", THREADS, 1, "parallel", "threads"),
)


def graph() -> OpGraph:
    """relu(x) + x."""
    x = Value("x", SPEC, "input", "0")
    relu = Op("aten.relu.default", [Ref("x")], {}, [Value("relu", SPEC, "op")], flops=1 << 20)
    add = Op("aten.add.Tensor", [Ref("relu"), Ref("x")], {}, [Value("add", SPEC, "op")], flops=1 << 20)
    return OpGraph([x], [], [relu, add], [Ref("add")], "export")


class FakeLibrary:
    """One kernel with four tunables and two rewrites; the file is the recipe as JSON."""

    def seeds(self, graph: OpGraph, device: Device, unrounded: Any = None) -> tuple[Recipe, ...]:
        return (Recipe(device.target), Recipe(device.target, choices={"k0": {"tile": 32}}))

    def lower(self, graphs: Sequence[OpGraph], recipe: Recipe, *, task_source: str, device: Device) -> Lowered:
        choices: dict[str, Choice] = {item.name: item.default for item in TUNABLES}
        choices.update(recipe.choices.get("k0", {}))
        full = Recipe(recipe.target, recipe.materialise, recipe.rewrites, {"k0": choices})
        source = f"# kernel {json.dumps([sorted(full.rewrites), choices], sort_keys=True)}\n"
        summary = KernelSummary("k0", "map", ("relu", "add"), choices, TUNABLES, 1 << 21, 12 << 20)
        applied = tuple(full.rewrites)
        open_ = tuple(name for name in ("online", "welford") if name not in applied)
        return Lowered(full, source, (summary,), (), (), applied, open_, (), 1 << 21, 8 << 20)

    def moves(self, lowered: Lowered) -> tuple[Move, ...]:
        kernel = lowered.kernels[0]
        found = []
        for tunable in kernel.tunables:
            at = tunable.values.index(kernel.choices[tunable.name])
            for near in (at - 1, at + 1):
                if 0 <= near < len(tunable.values):
                    was, value = kernel.choices[tunable.name], tunable.values[near]
                    found.append(Move("set", tunable.aspect, tunable.name, "k0", "map", value, was, "neighbour"))
        found += [Move("rewrite", "rewrite", name, reason="one pass") for name in lowered.rewrites_open]
        found += [Move("unwrite", "rewrite", name, reason="two passes") for name in lowered.rewrites_applied]
        return tuple(found)

    def outline(self, recipe: Recipe, graph: OpGraph, device: Device) -> Outline:
        found = self.lower([graph], recipe, task_source="", device=device)
        return Outline(found.recipe, found.kernels)

    def apply(self, recipe: Recipe, move: Move) -> Recipe:
        if move.kind == "rewrite":
            return Recipe(recipe.target, recipe.materialise, (*recipe.rewrites, move.name), recipe.choices)
        if move.kind == "unwrite":
            kept = tuple(name for name in recipe.rewrites if name != move.name)
            return Recipe(recipe.target, recipe.materialise, kept, recipe.choices)
        assert move.value is not None
        choices = {**recipe.choices.get("k0", {}), move.name: move.value}
        return Recipe(recipe.target, recipe.materialise, recipe.rewrites, {"k0": choices})


def speedup_of(text: str) -> float:
    """A landscape with one summit: tile 64, unroll 4, vector 16, two threads, "online" applied."""
    rewrites, choices = json.loads(text.splitlines()[0].removeprefix("# kernel "))
    gain = 0.7
    gain += 0.3 * (2 - abs(TILES.index(choices["tile"]) - 2))
    gain += 0.2 * (2 - abs(UNROLLS.index(choices["unroll"]) - 2))
    gain += 0.25 * VECTORS.index(choices["vector"]) + 0.4 * THREADS.index(choices["threads"])
    return gain * (1.3 if "online" in rewrites else 1.0)


SUMMIT = speedup_of('# kernel [["online"], {"tile": 64, "unroll": 4, "vector": 16, "threads": 2}]')


def kernel(tile: int, unroll: int = 1) -> str:
    """The file that the library would write with these numbers."""
    choices = {"tile": tile, "unroll": unroll, "vector": 4, "threads": 1}
    return f"# kernel {json.dumps([[], choices], sort_keys=True)}\n"


def kernel_file(number: int) -> str:
    """A whole kernel as a model may write it, another one for each of twelve numbers."""
    return kernel((16, 32, 64, 128)[number % 4], (1, 2, 4)[number // 4 % 3]) + "class ModelNew:\n    pass\n"


class FakeWorkbench:
    """Deterministic pseudo-measurements of a text. "welford" is a wrong kernel; unroll 8 does not compile; files that
    contain the word "cheat" are vetoed. Once it was asked something that begins with a word, it answers so many more
    questions (`answers_after`): who kills a run at a certain question does not come too late."""

    def __init__(
        self, delay_s: float = 0.0, log: Path | None = None, answers_after: tuple[str, float] = ("", math.inf)
    ) -> None:
        self.device = DEVICE
        self.delay_s = delay_s
        self.log = log
        self.word, self.answers = answers_after
        self.timings = 0
        self.timed: list[tuple[str, Stage]] = []

    async def _work(self, what: str) -> None:
        if self.log is not None:
            with self.log.open("a") as handle:
                handle.write(what + "\n")
        if self.answers < math.inf and what.startswith(self.word):
            self.word, self.answers = "", self.answers - 1
        await asyncio.sleep(self.delay_s if self.answers >= 0 else 1e6)

    @property
    def notes(self) -> BenchNotes:
        return BenchNotes()

    async def intake(self) -> Intake:
        from foundry.tools.grade.host.workbench import Intake

        await self._work("intake")
        return Intake([SPEC], [SPEC], [graph()], "")

    async def baseline(self) -> Baseline:
        await self._work("baseline")
        return Baseline(10.0, 0.02, [(1024, 1024)])

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        """Nothing is made ready."""

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        await self._work("contest")
        ours = speedup_of(text) if text else None
        rival = Rival("compile", 8.0, 1.25, ours and ours * 0.8)
        return Contest((rival,), 9, 10.0, ours and 10.0 / ours, 4 << 20, 2 << 20 if ours else None)

    async def build(self, text: str) -> Build:
        await self._work(f"build {_digest(text)}")
        if '"unroll": 8' in text:
            return Build(False, self.delay_s, first_error="error: too many registers")
        return Build(True, self.delay_s, resources=Resources(registers=40, occupancy=0.75))

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        await self._work(f"verify {stage} {_digest(text)}")
        if "welford" in text:
            return Verdict("wrong_result", stage, evidence="row 0 differs", seconds=self.delay_s)
        return Verdict("correct", stage, accuracy_class="ieee", seconds=self.delay_s)

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        await self._work(f"audit {verdict.stage} {_digest(text)}")
        gate = Gate("fallback", "cheat" not in text, "calls torch")
        return Audit(gate.passed, policy, (gate,))

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        await self._work(f"time {stage} {_digest(text)}" + (f" in turns with {_digest(beside)}" if beside else ""))
        self.timed += [] if beside else [(text, stage)]
        exact = speedup_of(text) / (speedup_of(beside) if beside else 1.0)
        half = {"screen": 0.03, "full": 0.01, "final": 0.01}[stage]
        noise = (int(_digest(text + stage)[:4], 16) / 0xFFFF - 0.5) * half
        value = exact * (1 + noise)
        ci = (value * (1 - half), value * (1 + half))
        return Timing(stage, 10.0 / value, 10.0, value, ci, 9, 0.02, 1.0, self.delay_s)

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        return Profile("roofline", 1e9, 1e9, 1.0 / timing.candidate_ms, 1.0, 1)

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        """Finds the best tile at once."""
        from foundry.tools.tune.tuner import TunedKernel, TunedPlan

        await self._work("tune")
        choices = {**recipe.choices["k0"], "tile": 64}
        kernel = TunedKernel("k0", "map", choices, 1.0, 0.9, None, 12, 0, "time")
        return TunedPlan(replace(recipe, choices={"k0": choices}), (kernel,), 12, 0, 0, 0.1, ("best: {}",))

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        return []

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
        return Seen(problem="nothing runs here")

    async def aclose(self) -> None:
        await self._work("closed")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class FakeParts(Parts):
    """The package's own playbook brain and store over a fake machine and library."""

    def __init__(self, workbench: FakeWorkbench | None = None, brain: Any = None, library: Any = None) -> None:
        self.machine = workbench or FakeWorkbench()
        self._brain = brain
        self._library = library or FakeLibrary()

    def task(self, request: SolveRequest) -> Task:
        return Task(Path(request.task).stem, request.task, "class Model: ...\n", "d" * 64)

    def device(self, request: SolveRequest) -> Device:
        return self.machine.device

    def library(self) -> Any:
        return self._library

    async def workbench(self, task: Task, device: Device, scratch: Path, request: SolveRequest) -> Workbench:
        return self.machine

    def check_model(self, request: SolveRequest) -> None:
        """The brains of tests need no access."""

    def brain(self, request: SolveRequest, thinking: Any, listener: Listener) -> Brain:
        from foundry.agents.playbook.brain import PlaybookBrain

        found: Brain = self._brain or PlaybookBrain(self._library)
        return found

    def receipt(self, services: Any, winner: Evaluation) -> None:
        (services.run.path / "receipt.json").write_text(json.dumps({"candidate": winner.candidate.id}))

    def store(self, request: SolveRequest) -> ExperienceStore | None:
        return ExperienceStore.open(request.store) if request.learn else None


@pytest.fixture
def parts() -> type[FakeParts]:
    return FakeParts


@pytest.fixture
def machine() -> type[FakeWorkbench]:
    return FakeWorkbench


@pytest.fixture
def library() -> type[FakeLibrary]:
    return FakeLibrary


@pytest.fixture
def summit() -> float:
    return SUMMIT


@pytest.fixture
def make_request(tmp_path: Path) -> Callable[..., SolveRequest]:
    """A small request; no store unless asked for. `model`, `base_url`, `chat`: one model for all experts."""

    def make(evaluations: int = 24, *, model: str = "", base_url: Any = None, chat: Any = None, **changes: Any) -> Any:
        limits = RunLimits(evaluations=evaluations)
        if model:
            changes["models"] = one_model(model, base_url, chat)
        settings: dict[str, Any] = {
            "learn": False,
            "runs": str(tmp_path / "runs"),
            "seed": 1,
            "limits": limits,
        }
        return SolveRequest("relu_add.py", **{**settings, **changes})

    return make


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """Starts servers that give these replies, one a request."""
    started: list[ScriptedServer] = []

    def start(*replies: Any) -> ScriptedServer:
        started.append(ScriptedServer(replies).start())
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run that a directive steered. Nobody may change it."""
    from tests.graph.finished import solve_steered

    return solve_steered(tmp_path_factory.mktemp("finished"), FakeParts())


@pytest.fixture
def hostile(finished: Path, tmp_path: Path) -> Path:
    """A run in which everybody wrote markup and scripts."""
    from tests.graph.finished import make_hostile

    return make_hostile(finished, tmp_path / "hostile")


@pytest.fixture(scope="session")
def grown(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a run of as many evaluations as wanted."""
    from tests.graph.finished import grow

    def make(evaluations: int, text: str = "") -> Path:
        return grow(finished, tmp_path_factory.mktemp("grown") / finished.name, evaluations, text)

    return make
