"""The same grader on a GPU: runners hold it, the judge's truth is made on it, times come from device events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foundry.knowledge.candidate import Build, Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.device import Device
from foundry.knowledge.errors import FoundryError
from foundry.tools.grade.host import grader as grader_module
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.sanitizing import CHECKS
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.cuda.describe import nvcc_path
from foundry.tools.targets.cuda.disassembly import tool_path
from foundry.tools.task.file import read_task
from foundry.tools.task.gpu_plan import CONTEXT_BYTES, GpuPlan, Sizes, plan_memory

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(4096, 1024)]
"""
BUILT = Build(ok=True, seconds=0.0, artifact="kernel.cubin")


def gpu() -> Device | None:
    try:
        device = describe("cuda")
    except FoundryError:
        return None
    return device if device.present else None


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gpu() is None, reason="there is no NVIDIA GPU here")]


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("judge")
    (folder / "linear.py").write_text(TASK)
    device = gpu()
    assert device is not None
    made = Grader(read_task(folder / "linear.py"), device, folder, seed=3, zygote=Zygote.start(threads=4))
    yield made
    made.close()


def test_a_gpu_pair_is_verified_and_timed(grader: Grader) -> None:
    baseline = grader.baseline()
    assert 0 < baseline.eager_ms < 10 and baseline.degenerate == ""
    same = TASK.replace("class Model(", "class ModelNew(")
    for stage in ("screen", "full"):
        verdict = grader.verify(same, BUILT, stage, baseline)
        assert verdict.correct and verdict.accuracy_class == "tf32", verdict.evidence
    timing = grader.time(same, BUILT, "full", baseline)
    assert timing.problem == "" and 0.9 < timing.speedup < 1.1, timing
    wide = "nn.functional.linear(x.double(), self.linear.weight.double(), self.linear.bias.double()).float()"
    ieee = same.replace("self.linear(x)", wide)
    assert grader.verify(ieee, BUILT, "screen", baseline).accuracy_class == "ieee"
    flag = same.replace(
        "def __init__(self):", "def __init__(self):\n        torch.backends.cuda.matmul.allow_tf32 = False"
    )
    assert "allow_tf32" in grader.verify(flag, BUILT, "screen", baseline).evidence
    half = same.replace(
        "torch.relu(self.linear(x))", "torch.relu(x.bfloat16() @ self.linear.weight.bfloat16().t()).float()"
    )
    assert grader.verify(half, BUILT, "screen", baseline).outcome in ("inaccurate", "wrong_result")


def test_a_sticky_device_error_costs_one_evaluation(grader: Grader) -> None:
    baseline = grader.baseline()
    broken = TASK.replace("class Model(", "class ModelNew(").replace(
        "return torch.relu(self.linear(x))",
        "return torch.relu(self.linear(x))[torch.tensor([10**9], device='cuda')]",
    )
    verdict = grader.verify(broken, BUILT, "screen", baseline)
    assert verdict.outcome in ("launch_failure", "crash") and "CUDA" in verdict.evidence
    assert grader.verify(TASK.replace("class Model(", "class ModelNew("), BUILT, "screen", baseline).correct


def test_who_changes_its_inputs_is_seen_by_the_judge(grader: Grader) -> None:
    baseline = grader.baseline()
    text = TASK.replace("class Model(", "class ModelNew(")
    changing = text.replace("torch.relu(self.linear(x))", "torch.relu(self.linear(x)) + 0 * x.add_(1).sum() * 0")
    verdict = grader.verify(changing, BUILT, "screen", baseline)
    assert verdict.outcome == "wrong_result" and "changed its input 0" in verdict.evidence, verdict.evidence
    unseen = text.replace(
        "return torch.relu(self.linear(x))",
        "r = torch.relu(self.linear(x)); x.data[5, 7:9] = 1.0; return r",  # past PyTorch's version counters
    )
    assert "changed its input 0" in grader.verify(unseen, BUILT, "screen", baseline).evidence


def test_what_is_made_ready_is_used_and_no_process_is_left(grader: Grader) -> None:
    baseline = grader.baseline()
    same = TASK.replace("class Model(", "class ModelNew(")
    grader.make_ready(same, "screen")
    ready = [worker.pid for workers in grader._runners.pool.ready().values() for worker in workers]
    assert len(ready) == 5  # two pairs, and one for the next candidate
    assert grader.time(same, BUILT, "screen", baseline).problem == ""
    assert grader.verify(same, BUILT, "screen", baseline).correct
    assert not grader._runners.pool.ready()
    stop = time.monotonic() + 5.0
    while any(Path(f"/proc/{pid}/stat").exists() for pid in ready) and time.monotonic() < stop:
        time.sleep(0.05)
    assert time.monotonic() < stop


@pytest.mark.alone
def test_a_kernel_beside_its_rivals_on_a_gpu(grader: Grader) -> None:
    baseline = grader.baseline()
    same = TASK.replace("class Model(", "class ModelNew(")
    found = grader.contest(same, BUILT, baseline, ["eager", "compile"], "kernelbench")
    assert found.notes == []
    assert found.candidate_ms is not None and 0.8 < found.candidate_ms / found.baseline_ms < 1.25
    assert found.peak_memory_ratio is not None and 0.9 < found.peak_memory_ratio < 1.1
    expected = 4 * (4096 * 1024 + 1024 * 1024) + 2 * 4 * 4096 * 1024  # inputs, weights, the product and its relu
    assert found.baseline_peak_bytes is not None and expected <= found.baseline_peak_bytes < expected + (80 << 20)
    eager, compiled = found.rival("eager"), found.rival("compile")
    assert eager is not None and compiled is not None
    assert eager.over_baseline < 0.8  # products without TF32, which the baseline may use: 0.22 was seen
    assert found.foreign is not None and found.foreign.correct and found.foreign.trials == "5 of 5"
    half = same.replace(
        "torch.relu(self.linear(x))", "torch.relu(x.bfloat16() @ self.linear.weight.bfloat16().t()).float()"
    )
    foreign = grader.contest(half, BUILT, baseline, [], "verified").foreign
    assert foreign is not None and not foreign.correct and "is not within 0.001" in foreign.evidence


def test_running_statistics_of_a_product_may_have_its_error(tmp_path: Path) -> None:
    task, device = tmp_path / "norm.py", gpu()
    task.write_text(
        "import torch\nclass Model(torch.nn.Module):\n  def __init__(self):\n    super().__init__()\n"
        "    self.linear, self.norm = torch.nn.Linear(1024, 512), torch.nn.BatchNorm1d(512)\n"
        "  def forward(self, x):\n    return torch.relu(self.norm(self.linear(x)))\n"
        "def get_inputs():\n  return [torch.randn(2048, 1024)]\n"
    )
    assert device is not None
    made = Grader(read_task(task), device, tmp_path, seed=3, zygote=Zygote.start(threads=4))
    try:
        baseline, same = made.baseline(), task.read_text().replace("class Model(", "class ModelNew(")
        verdict = made.verify(same, BUILT, "screen", baseline)
        assert verdict.correct and verdict.accuracy_class == "tf32", verdict.evidence
        half = same.replace("self.linear(x)", "self.linear.bfloat16()(x.bfloat16()).float()")
        assert made.verify(half, BUILT, "screen", baseline).outcome in ("inaccurate", "wrong_result")
    finally:
        made.close()


@pytest.mark.alone
def test_a_gigabyte_is_judged_in_seconds(tmp_path: Path) -> None:
    source = TASK.replace("torch.randn(4096, 1024)", "torch.randn(1 << 18, 1024)").replace("self.linear(x)", "x * 2")
    (tmp_path / "large.py").write_text(source)
    device = gpu()
    assert device is not None
    made = Grader(read_task(tmp_path / "large.py"), device, tmp_path, seed=3, zygote=Zygote.start(threads=4))
    try:
        begin = time.monotonic()
        made.check()
        baseline = made.baseline()
        verdict = made.verify(source.replace("class Model(", "class ModelNew("), BUILT, "full", baseline)
        assert verdict.correct, verdict.evidence
        assert time.monotonic() - begin < 15.0  # 36 s for the look at it alone when its inputs crossed the host
        wrong = source.replace("class Model(", "class ModelNew(").replace("x * 2)", "x * 2).clamp_(max=7.9)")
        assert "first wrong element" in made.verify(wrong, BUILT, "full", baseline).evidence
    finally:
        made.close()


MASKED = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x, mask):
        return torch.cumsum(x * mask, dim=1)

def get_inputs():
    return [torch.randn(1 << 13, 1 << 15), torch.rand(1 << 13, 1 << 15) > 0.5]
"""


@pytest.mark.alone
def test_a_large_task_takes_no_more_of_the_memory_than_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are drawn, sorted and shuffled in pieces, and one trial's truth is gone before the next one is made."""
    monkeypatch.setenv("FOUNDRY_GPU_GB", "27")
    planned: list[int] = []

    def plan(sizes: Sizes, free_bytes: int) -> GpuPlan:
        found = plan_memory(sizes, free_bytes)
        planned.append(found.needed(sizes) + found.waiting * CONTEXT_BYTES)
        return found

    monkeypatch.setattr(grader_module, "plan_memory", plan)
    (tmp_path / "masked.py").write_text(MASKED)
    device = gpu()
    assert device is not None

    async def work() -> list[int]:
        bench = await open_workbench(read_task(tmp_path / "masked.py"), device, tmp_path, seed=3)
        taken: list[int] = []
        try:
            graphs = (await bench.intake()).graphs
            text = lower(graphs, Recipe("cuda"), task_source=MASKED, device=device).source
            with watched(taken):
                build = await bench.build(text)
                for stage in ("screen", "final"):
                    verdict = await bench.verify(text, build, stage)
                    assert verdict.correct, verdict.evidence
                    if stage == "final":
                        audit = await bench.audit(text, build, verdict, "fair")
                        assert audit.clean, audit.gates
                    assert not (await bench.time(text, build, stage)).problem
        finally:
            await bench.aclose()
        return taken

    taken = asyncio.run(work())
    assert planned and max(taken) - taken[0] <= planned[-1], (max(taken) - taken[0], planned)


@contextlib.contextmanager
def watched(taken: list[int]) -> Iterator[None]:
    """Writes down every few milliseconds how many bytes of the GPU are taken."""
    import torch

    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.002):
            free, total = torch.cuda.mem_get_info()
            taken.append(total - free)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.mark.skipif(tool_path("compute-sanitizer") is None or nvcc_path() is None, reason="no CUDA toolkit is here")
def test_a_finalist_passes_both_checks_while_it_is_proven(tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text(  # its kernel has shared memory, in which races are looked for
        "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x, y):\n    return torch.relu(x @ y)\n"
        "def get_inputs():\n  return [torch.randn(512, 512), torch.randn(512, 512)]\n"
    )
    task, device = read_task(tmp_path / "product.py"), gpu()
    assert device is not None

    async def work() -> float:
        bench = await open_workbench(task, device, tmp_path, seed=3)
        try:
            graphs = (await bench.intake()).graphs
            text = lower(graphs, Recipe("cuda"), task_source=task.source, device=device).source
            build = await bench.build(text)
            assert (await bench.verify(text, build, "screen")).correct
            assert not (await bench.time(text, build, "screen")).problem
            await asyncio.sleep(6.0)  # what a proof needs is made ready meanwhile
            start = time.monotonic()
            verdict = await bench.verify(text, build, "final")
            audit = await bench.audit(text, build, verdict, "fair")
            timing = await bench.time(text, build, "final")
            assert verdict.correct and audit.clean and not timing.problem, (verdict, audit, timing)
            checks = [gate for gate in audit.gates if gate.gate in CHECKS]
            assert len(checks) == 2 and all(gate.passed for gate in checks), checks
            assert all(gate.evidence.startswith("compute-sanitizer found nothing") for gate in checks), checks
            return time.monotonic() - start
        finally:
            await bench.aclose()

    seconds = asyncio.run(work())
    assert seconds < 12.0 or "PYTEST_XDIST_WORKER" in os.environ, seconds  # 8 to 10 s where nothing else runs
