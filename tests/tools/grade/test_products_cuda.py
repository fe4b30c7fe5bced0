"""On a GPU: which products PyTorch rounds to TF32, as the judge measures it, and what the search makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.mixed_arithmetic import TASKS
from tests.tools.grade.test_judge_cuda import TASK, gpu

from foundry.graph.proofs.causes import kin_of
from foundry.graph.run.events import Event
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Baseline
from foundry.tools.grade.host.grader import Grader
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gpu() is None, reason="there is no NVIDIA GPU here")]


def baseline_of(text: str, folder: Path) -> Baseline:
    (folder / "task.py").write_text(text)
    device = gpu()
    assert device is not None
    grader = Grader(read_task(folder / "task.py"), device, folder, seed=3, zygote=Zygote.start(threads=4))
    try:
        return grader.baseline()
    finally:
        grader.close()


def test_a_large_product_is_rounded(tmp_path: Path) -> None:
    (product,) = baseline_of(TASK, tmp_path).products
    assert (product.elements, product.depth, product.is_rounded) == (4096 * 1024, 1024, True)


@pytest.mark.parametrize(("name", "count"), [("windows", 4), ("filters", 3), ("groups", 2)])
def test_every_product_of_the_task_is_watched(tmp_path: Path, name: str, count: int) -> None:
    baseline = baseline_of(TASKS[name], tmp_path)
    print(name, baseline.is_ieee, *baseline.products, sep="\n  ")  # what cuBLAS and cuDNN chose here
    assert len(baseline.products) == count


@pytest.mark.slow
@pytest.mark.parametrize("effort", ["quick", "bench"])
@pytest.mark.parametrize("name", TASKS)
async def test_such_a_task_is_won(tmp_path: Path, name: str, effort: str) -> None:
    (tmp_path / f"{name}.py").write_text(TASKS[name])
    events: list[Event] = []
    request = SolveRequest(
        str(tmp_path / f"{name}.py"),
        target="cuda",
        effort=effort,  # type: ignore[arg-type]
        limits=RunLimits(evaluations=16, minutes=1.0),
        learn=False,
        runs=str(tmp_path / "runs"),
        rivals=(),
    )
    summary = await solve(request, events.append)
    for event in events:
        if event.kind in ("evaluation", "note"):
            print(event.name, event.data.get("outcome"), event.data.get("evidence") or event.data.get("reason"))
    assert summary.verdict == "accepted", summary.ending
    run = RunDirectory.inspect(Path(summary.run))
    refused = [event for event in events if event.kind == "evaluation" and event.data["outcome"] == "inaccurate"]
    kin = kin_of(run.evaluation(summary.candidate).candidate)
    run.close()
    print(f"{name}: {summary.speedup:.2f}x, in TF32: {sorted(kin.rounded)}, inaccurate: {len(refused)}")
    assert len(refused) <= 6
