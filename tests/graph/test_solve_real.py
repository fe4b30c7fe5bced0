"""The main job for real: this compiler, these worker processes, a small budget."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from foundry.graph.history.replay import replay
from foundry.graph.run.events import Event
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import resume, solve

EXAMPLE = Path(__file__).parents[2] / "examples" / "softmax.py"
pytestmark = pytest.mark.slow


async def test_softmax_is_solved_on_this_machine(tmp_path: Path) -> None:
    """Stopped on the way and resumed, so that a real workbench is closed and opened again."""
    request = SolveRequest(
        str(EXAMPLE),
        target="cpu",
        islands=2,
        limits=RunLimits(evaluations=8, minutes=3.0),
        store=str(tmp_path / "store"),
        runs=str(tmp_path / "runs"),
    )
    stop = asyncio.Event()
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if sum(item.kind == "evaluation" for item in events) == 5:
            stop.set()

    first = await solve(request, watch, stop=stop)
    assert first.verdict == "interrupted"
    assert first.first_verified_s is not None and first.first_verified_s < first.wall_s
    summary = await resume(Path(first.run))
    assert summary.verdict == "accepted", summary
    assert summary.speedup is not None and summary.speedup_ci95 is not None
    assert summary.speedup_ci95[0] <= summary.speedup <= summary.speedup_ci95[1]
    assert summary.evaluations >= 8
    assert 0 < summary.time["overhead_share"] < 0.15
    assert summary.compile_ms is not None
    run = RunDirectory.inspect(Path(summary.run))
    assert "class ModelNew" in (run.path / "kernel.py").read_text()
    receipt = json.loads((run.path / "receipt.json").read_text())
    assert receipt["schema_version"] == 2
    assert receipt["timing"]["speedup"] == summary.speedup
    run.close()
    replayed = await replay(Path(summary.run))
    assert replayed.differences == ()
