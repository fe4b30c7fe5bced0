from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from foundry.graph.events import Event
from foundry.graph.request import SolveRequest
from foundry.graph.run_directory import RunDirectory
from foundry.graph.solve import solve


async def test_a_run_finds_a_faster_kernel_and_leaves_everything_in_its_directory(
    make_request: Callable[..., SolveRequest], parts: Any, summit: float
) -> None:
    events: list[Event] = []
    summary = await solve(make_request(40), events.append, parts=parts())
    assert summary.verdict == "accepted"
    assert summary.speedup is not None and summary.speedup > 0.8 * summit
    assert summary.speedup_vs_compile is not None and summary.speedup_vs_compile < summary.speedup
    assert 36 <= summary.evaluations <= 44
    run = RunDirectory.inspect(Path(summary.run))
    print(summary)
    for e in events:
        if e.kind in ("evaluation", "note", "migration"):
            print(
                e.step,
                e.kind,
                e.name,
                {k: v for k, v in e.data.items() if k in ("outcome", "speedup", "reason", "error", "gain", "reasons")},
            )
    run.close()
