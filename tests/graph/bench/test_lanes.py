"""Several processes on one bench: each task is one line, whoever took it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foundry.graph.bench.lanes import spread
from foundry.graph.bench.request import BenchRequest
from foundry.graph.bench.results import ResultFile, TaskResult
from foundry.graph.bench.tasks import BenchTask
from foundry.knowledge.errors import FoundryError


@pytest.fixture
def request_(tmp_path: Path) -> BenchRequest:
    """Four files that are no tasks: refused without a process of PyTorch's."""
    (tmp_path / "tasks").mkdir()
    for number in range(4):
        (tmp_path / f"tasks/{number}_broken.py").write_text("class Model(:\n")
    (tmp_path / "out").mkdir()
    return BenchRequest(str(tmp_path / "tasks"), str(tmp_path / "out"), target="cpu")


async def test_two_lanes_share_the_tasks(request_: BenchRequest) -> None:
    told: list[tuple[str, str]] = []

    def tell(task: BenchTask, line: TaskResult | None) -> None:
        assert line is not None
        told.append((task.name, line.verdict))

    await spread(request_, [{}, {}], tell, asyncio.Event())
    expected = [(f"{number}_broken", "failed") for number in range(4)]
    assert sorted(told) == expected
    lines = ResultFile(request_.where).path.read_text().splitlines()
    assert len(lines) == 4  # none was done twice


async def test_a_lane_that_fails_is_said(request_: BenchRequest) -> None:
    with pytest.raises(FoundryError, match=r"1 of 1 lanes ended early: .*g\+\+"):
        await spread(request_, [{"PATH": ""}], lambda _task, _line: None, asyncio.Event())
