"""A run ends within twice its search's time and one proof, and says beforehand how long it will take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foundry.graph.proofs.pace import PLAN, slowed
from foundry.graph.run.events import Event
from foundry.graph.run.request import EFFORTS, RunLimits, SolveRequest
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Choice, Recipe

MakeRequest = Callable[..., SolveRequest]


@pytest.mark.parametrize("effort", EFFORTS)
def test_further_finalists_end_within_twice_the_search(effort: str) -> None:
    usual = SolveRequest("task.py", effort=effort)  # type: ignore[arg-type]
    assert usual.total_minutes == pytest.approx(EFFORTS[effort].total_minutes)
    short = replace(usual, limits=RunLimits(minutes=0.1))
    assert short.total_minutes == pytest.approx(0.2)


async def test_the_plan_is_said_before_the_search(make_request: MakeRequest, parts: Any) -> None:
    events: list[Event] = []
    await solve(make_request(6, limits=RunLimits(evaluations=6, minutes=0.5)), events.append, parts=parts())
    names = [event.name for event in events if event.kind in ("note", "evaluation")]
    assert names.index(PLAN) < names.index("c1")
    (said,) = [event.data["reason"] for event in events if event.name == PLAN]
    assert said.startswith("the search ends at 0.5 min; a proof and the comparison with torch.compile follow")
    assert "expect an answer at about" in said


async def test_without_time_torch_compile_is_not_compared_and_that_is_said(
    make_request: MakeRequest, parts: Any
) -> None:
    limits = RunLimits(evaluations=100_000, minutes=0.02)
    summary = await solve(make_request(limits=limits), parts=parts())
    assert summary.verdict == "accepted" and summary.compile_ms is None
    assert any(note.startswith("torch.compile was not compared: it takes about") for note in summary.notes)


async def test_first_kernels_stop_when_the_search_s_time_is_over(
    make_request: MakeRequest, parts: Any, machine: Any, library: Any
) -> None:
    class Four(library):  # type: ignore[misc]
        def seeds(self, graph: Any, device: Any, unrounded: Any = None) -> Any:
            tiles: list[Choice] = [16, 32, 64, 128]
            return tuple(Recipe(device.target, choices={"k0": {"tile": tile}}) for tile in tiles)

    request = make_request(limits=RunLimits(evaluations=1000, minutes=0.01))
    summary = await solve(request, parts=parts(machine(delay_s=0.15), library=Four()))
    assert summary.verdict == "accepted" and summary.evaluations < 4


def test_a_busy_machine_shows_in_the_time_before_the_search() -> None:
    assert slowed(6.0, 1.0) == 1.0
    assert slowed(24.0, 1.0) == pytest.approx(3.0, rel=0.01)
    assert slowed(1000.0, 1.0) == 5.0
    assert slowed(220.0, 5000.0) == pytest.approx(2.5)


def test_a_slow_reference_alone_is_no_busy_machine() -> None:
    assert slowed(60.0, 5000.0) == 1.0
