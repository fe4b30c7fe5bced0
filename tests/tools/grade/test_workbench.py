"""The door to the machine as the graph uses it: a task is looked at once, candidates come and go, bad tasks say why."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.waiting import PATIENCE_S

from foundry.knowledge.candidate import Build
from foundry.knowledge.device import Ceilings, Device, TargetName
from foundry.knowledge.errors import TaskError
from foundry.knowledge.task import Task
from foundry.tools.grade.host import comparisons as contests
from foundry.tools.grade.host.grader import Allowance, Grader
from foundry.tools.grade.host.workbench import LocalWorkbench, open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(300))

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=1)

def get_inputs():
    return [torch.randn(200, 300)]
"""
CANDIDATE = TASK.replace("class Model(", "class ModelNew(")
BUILT = Build(ok=True, seconds=0.0)
CEILINGS = Ceilings(2e10, 1e11, 1e11, 1e11, 1e11, 0.01, "2026-11-20")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Device locks for this test alone, so that it waits for no other process's timing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def write(folder: Path, source: str) -> Task:
    (folder / "task_file.py").write_text(source)
    return read_task(folder / "task_file.py")


async def opened(
    zygote: Zygote,
    folder: Path,
    source: str = TASK,
    device: Device | None = None,
    allowance: Allowance | None = None,
) -> LocalWorkbench:
    task, device = write(folder, source), device or describe("cpu")
    bench = await open_workbench(task, device, folder / "scratch", seed=1, allowance=allowance, zygote=zygote)
    assert isinstance(bench, LocalWorkbench)
    return bench


async def test_a_candidate_goes_all_the_way(zygote: Zygote, tmp_path: Path) -> None:
    device = describe("cpu")
    bench = await opened(zygote, tmp_path, device=Device(**{**vars(device), "ceilings": CEILINGS}))
    try:
        intake, baseline = await asyncio.gather(bench.intake(), bench.baseline())
        assert [spec.shape for spec in intake.inputs] == [(200, 300)] == baseline.output_shapes
        assert len(intake.graphs) == 1 and intake.capture_note == ""
        assert baseline.degenerate == ""
        build = await bench.build(CANDIDATE)
        assert build.ok and CANDIDATE in bench._coming
        bench._coming.clear()
        assert (await bench.build(CANDIDATE)).ok and not bench._coming, "a contest's build begins no screen"
        verdict = await bench.verify(CANDIDATE, build, "screen")
        assert verdict.correct and verdict.seconds > 0
        assert baseline.is_ieee, "a CPU's float32"
        timing = await bench.time(CANDIDATE, build, "screen", incumbent_ms=baseline.eager_ms)
        assert timing.problem == "" and timing.speedup > 0 and timing.seconds > 0
        audit = await bench.audit(CANDIDATE, build, verdict, "fair")
        assert not audit.clean and any("softmax" in gate.evidence for gate in audit.gates if not gate.passed)
        found = await bench.profile(CANDIDATE, build, audit, timing, None)
        assert found.floor_ms == found.allowed_floor_ms > 0
        assert found.traffic_floor_ms == pytest.approx(1e3 * intake.graphs[0].min_bytes / 1e11, rel=0.5)
    finally:
        await bench.aclose()
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_two_candidates_are_timed_in_turns_with_each_other(zygote: Zygote, tmp_path: Path) -> None:
    slow = CANDIDATE.replace("return torch", "[torch.softmax(x, dim=1) for _ in range(20)]\n        return torch")
    dead = CANDIDATE.replace("return torch", "import os; os.abort()\n        return torch")
    lean = CANDIDATE + "\n# the draft\n"
    bench = await opened(zygote, tmp_path)
    try:
        built = await bench.build(lean)
        turns = await bench.time(lean, built, "screen", beside=slow)
        assert turns.problem == "" and turns.pairs >= 8 and len(turns.ratios) == 2
        assert turns.speedup > 3 and turns.baseline_ms > turns.candidate_ms > 0
        assert turns.speedup_ci95[0] < turns.speedup < turns.speedup_ci95[1]
        back = await bench.time(slow, built, "screen", beside=lean)
        assert back.speedup < 1 / 3, "the other one is the baseline"
        ended = await bench.time(lean, built, "screen", beside=dead)
        assert ended.problem == "the process died", "nothing is said of how the other one's process ended"
        assert (await bench.time(lean, built, "screen")).problem == ""
    finally:
        await bench.aclose()


async def test_many_candidates_at_once_one_of_them_hanging(zygote: Zygote, tmp_path: Path) -> None:
    bench = await opened(zygote, tmp_path)
    try:
        await bench.baseline()
        texts = [CANDIDATE + f"\nNUMBER = {number}\n" for number in range(5)]
        texts[1] = CANDIDATE.replace(
            "return torch.softmax", "__import__('time').sleep(1e6)\n        return torch.softmax"
        )
        texts[3] = CANDIDATE.replace("dim=1", "dim=0")
        start = time.monotonic()

        async def one(text: str) -> tuple[str, str]:
            build = await bench.build(text)
            verdict = await bench.verify(text, build, "screen")
            timing = await bench.time(text, build, "screen") if verdict.correct else None
            return verdict.outcome, timing.problem if timing else "not timed"

        results = await asyncio.gather(*(one(text) for text in texts))
        good = ("correct", "")
        assert list(results) == [good, ("timeout", "not timed"), good, ("wrong_result", "not timed"), good]
        assert time.monotonic() - start < PATIENCE_S, "who hangs is ended by its limit"
        failed = Build(ok=False, seconds=0.1, first_error="kernel line 3: error: expected ';'")
        assert (await bench.verify("", failed, "screen")).evidence == "kernel line 3: error: expected ';'"
    finally:
        await bench.aclose()


async def test_candidates_of_a_gpu_wait_in_no_circle(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a GPU's holds, which are let go between preparing and timing: more candidates than judges."""
    monkeypatch.setattr(LocalWorkbench, "_holds", lambda self: Holds(self._lock))
    bench = await opened(zygote, tmp_path)
    try:
        await bench.baseline()

        async def one(text: str) -> str:
            verdict = await bench.verify(text, BUILT, "screen")
            return verdict.evidence or (await bench.time(text, BUILT, "screen")).problem

        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*(one(CANDIDATE + f"\nNUMBER = {number}\n") for number in range(3)))
        assert found == [""] * 3
        use = bench.notes.lock
        assert use.alone_s > 0 and use.shared_s > 0 and use.device_s == 0
    finally:
        await bench.aclose()


FORWARD, INPUTS = "return torch.softmax(x * self.scale, dim=1)", "return [torch.randn(200, 300)]"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("return torch.softmax", "while True: pass\n        return torch.softmax"), "did not finish in 3 s"),
        (("return torch.softmax(", "return torch.rand(3) + torch.softmax("), "line 11"),
        (("return [torch.randn", "return [torch.zeros(10**12), torch.randn"), "memory"),
        (("return [torch.randn", "k = [torch.ones(2**22) for i in range(500)]; return [torch.randn"), "memory"),
        (("return torch.softmax(", "import os; os._exit(3)\n        return torch.softmax("), "exited with code 3"),
        (("torch.softmax(x * self.scale, dim=1)", "x.new_empty(0)"), "no output has elements"),
        (
            (INPUTS, "raise ValueError('no data here')"),
            "task_file.py, line 14: get_inputs() failed: ValueError: no data here",
        ),
        ((INPUTS, "return [torch.randn(200, 299)]"), "task_file.py, line 11: Model.forward failed"),
        ((INPUTS, "return [torch.randn(0, 300)]"), "no output has elements"),
        ((INPUTS, "return [torch.empty(1 << 38)]"), "memory"),
        ((FORWARD, "x * 2.0"), "None"),
        ((FORWARD, "return x / 0.0 * 0.0"), "NaN"),
        ((FORWARD, "return x + torch.rand_like(x)"), "random"),
        ((FORWARD, "import os; return x + int.from_bytes(os.urandom(2), 'big')"), "not deterministic"),
        (("import torch\n", "import sys; sys.exit(3)\nimport torch\n"), "line 2"),
        (("class Model", "import os; os.kill(os.getpid(), 11)\nclass Model"), "SIGSEGV"),
    ],
)
async def test_bad_tasks_say_why_in_one_line(
    zygote: Zygote, tmp_path: Path, change: tuple[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_TASK_SECONDS", "3" if "while" in change[1] else "60")
    monkeypatch.setenv("FOUNDRY_TASK_GB", "1.2")
    bench = await opened(zygote, tmp_path, TASK.replace(*change))
    try:
        with pytest.raises(TaskError) as error:
            await bench.baseline()
        assert problem in str(error.value) and "\n" not in str(error.value)
    finally:
        await bench.aclose()


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return torch.softmax(x * self.scale, dim=1).sum(dim=1)", "a constant is accepted as its output"),
        ("return x.mul(0.0) * self.scale", "zeros are accepted as its output"),
        ("return self.scale * torch.arange(300.0)", "its output does not depend on the inputs"),
    ],
)
async def test_degenerate_tasks_are_named(zygote: Zygote, tmp_path: Path, forward: str, reason: str) -> None:
    bench = await opened(zygote, tmp_path, TASK.replace("return torch.softmax(x * self.scale, dim=1)", forward))
    try:
        assert (await bench.baseline()).degenerate == reason
    finally:
        await bench.aclose()


async def test_a_scalar_loss_is_no_degenerate_task(zygote: Zygote, tmp_path: Path) -> None:
    forward = "return torch.nn.functional.cross_entropy(x * self.scale, x.argmax(dim=1))"
    bench = await opened(zygote, tmp_path, TASK.replace("return torch.softmax(x * self.scale, dim=1)", forward))
    try:
        baseline = await bench.baseline()
        assert baseline.degenerate == "" and baseline.output_shapes == [()]
        assert (
            await bench.verify(bench._task.source.replace("class Model(", "class ModelNew("), BUILT, "full")
        ).correct
    finally:
        await bench.aclose()


@pytest.mark.parametrize(("target", "waits"), [("cpu", True), ("cuda", False)])
async def test_a_build_waits_for_a_timing_on_a_cpu_only(tmp_path: Path, target: TargetName, waits: bool) -> None:
    device = replace(describe("cpu"), target=target)
    text = "class ModelNew: pass"  # nothing to compile: what is left is the wait
    bench = LocalWorkbench(write(tmp_path, TASK), device, cast(Grader, None))
    async with DeviceLock(device).exclusive():
        building = asyncio.ensure_future(bench.build(text))
        done, _ = await asyncio.wait([building], timeout=0.3 if waits else PATIENCE_S)
    assert (not done) is waits
    assert isinstance(await building, Build)
    bench._threads.shutdown()


async def test_compile_is_reported_or_its_failure_noted(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(contests.BUILD_LIMITS_S, "compile", 1.5)
    endless = "torch.compile = lambda *_, **__: lambda *_: __import__('time').sleep(1e6)"
    bench = await opened(zygote, tmp_path, TASK.replace("import torch\n", f"import torch\n{endless}\n", 1))
    bench._grader._limits = {"run_limit_s": 1.5}
    try:
        found = await bench.contest("", None, ["eager", "compile"])
        assert found.rival("compile") is None and found.baseline_ms > 0.0  # without it the rest was timed
        (note,) = found.notes
        assert note.startswith("compile could not be timed: ") and "forward did not finish in" in note
    finally:
        await bench.aclose()


async def test_compile_is_timed_below_a_folder_with_a_space(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TorchInductor does not quote where it keeps what it compiles, which must not be left behind either."""
    folder, plain = tmp_path / "two words", tmp_path / "plain"
    folder.mkdir()
    plain.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(plain))
    bench = await opened(zygote, folder)
    try:
        found = await bench.contest("", None, ["compile"])
    finally:
        await bench.aclose()
    rival = found.rival("compile")
    assert rival is not None and (rival.problem, rival.over_baseline is not None) == ("", True), found.notes
    assert not [path for path in plain.iterdir() if "inductor" in path.name]


async def test_a_kernel_beside_its_rivals_and_by_other_rules(zygote: Zygote, tmp_path: Path) -> None:
    """Two kernels: one is PyTorch's own code, the other is wrong where inputs are negative and holds much memory."""
    bench = await opened(zygote, tmp_path)
    hungry = CANDIDATE.replace("softmax(x * self.scale", "softmax((x * self.scale).abs() + 0 * torch.zeros(1 << 25)[0]")
    try:
        for _ in range(3):  # those rules time one after the other: what else the machine does may speak for either
            same = await bench.contest(CANDIDATE, BUILT, ["eager"], "kernelbench")
            if same.foreign is not None and 0.05 < (same.foreign.speedup or 0.0) < 20:
                break
        assert same.rivals == () and same.notes == []  # on a CPU there is one arithmetic
        assert same.candidate_ms is not None and 0.05 < same.candidate_ms / same.baseline_ms < 20
        assert same.peak_memory_ratio is not None and 0.5 < same.peak_memory_ratio < 2.0
        foreign = same.foreign
        assert foreign is not None and (foreign.correct, foreign.trials, foreign.evidence) == (True, "5 of 5", "")
        assert foreign.speedup is not None and 0.05 < foreign.speedup < 20
        other = await bench.contest(hungry, BUILT, [], "verified")
        assert other.peak_memory_ratio is not None and other.peak_memory_ratio > 20.0
        assert other.foreign is not None and not other.foreign.correct and other.foreign.speedup is None
        assert "is not within 0.001 of PyTorch's" in other.foreign.evidence and other.foreign.eager_correct
        baseline, grader = await bench.baseline(), bench._grader
        for is_lost in (False, True):  # readied before there was a kernel; its process may have ended since
            await asyncio.to_thread(grader.ready_contest, baseline, [])
            ready = grader._contest
            assert ready is not None and ready.is_ready and ready._reference is not None
            if is_lost:
                ready._reference.end()
            later = await bench.contest(CANDIDATE, BUILT, [])
            assert later.candidate_ms is not None and later.notes == [] and later.peak_memory_ratio is not None
            assert not ready.is_ready and grader._contest is None
        dead = await bench.contest("class ModelNew: ...", BUILT, [])
        assert dead.problem.startswith("the contest was not held: ") and dead.peak_memory_ratio is None
    finally:
        await bench.aclose()


async def test_torch_compile_is_told_what_the_compiler_can_do(zygote: Zygote, tmp_path: Path) -> None:
    """Settings that TorchInductor reads once: what a worker is given later, it does not see."""
    told = "from torch._inductor import config\nassert config.cpp.vec_isa_ok is True and config.compile_threads == 1\n"
    bench = await opened(zygote, tmp_path, told + TASK)
    try:
        assert (await bench.intake()).outputs
    finally:
        await bench.aclose()


async def test_a_device_that_is_not_here_proves_nothing(zygote: Zygote, tmp_path: Path) -> None:
    absent = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30, present=False)
    bench = await opened(zygote, tmp_path, device=absent)
    try:
        baseline = await bench.baseline()
        assert baseline.eager_ms == 0.0 and baseline.output_shapes == [(200, 300)]
        assert "there is no cuda device here" in (await bench.contest("", None, ["compile"])).problem
        verdict = await bench.verify(CANDIDATE, BUILT, "screen")
        assert verdict.outcome == "unproven" and verdict.evidence == "there is no cuda device here to run it on"
        assert (await bench.time(CANDIDATE, BUILT, "screen")).problem == "there is no cuda device here to time it on"
    finally:
        await bench.aclose()
