"""Several processes on one bench: each task is one line, whoever took it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from foundry.graph.doors.bench.lane import claimed, work
from foundry.graph.doors.bench.lanes import spread
from foundry.graph.doors.bench.one_task import is_too_large, run_task, runs_of
from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.results import ResultFile, TaskResult
from foundry.graph.doors.bench.tasks import BenchTask, digest_of, find_tasks, in_turn
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.errors import FoundryError, TaskError, TooLarge
from foundry.knowledge.task import Task
from foundry.tools.task.limits import GPU_GIGABYTES


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


async def test_a_lane_that_is_held_up_leaves_the_rest_to_the_others(request_: BenchRequest) -> None:
    """Nobody has a share of his own: who is free takes the next task that nobody has."""
    tasks, told = in_turn(find_tasks(request_)), list[str]()
    with claimed(runs_of(request_, tasks[0])) as is_ours:
        assert is_ours
        await work(request_, lambda task, line: told.append(task.name) if line else None, asyncio.Event())
    assert told == [task.name for task in tasks[1:]]


async def test_a_lane_that_fails_is_said(request_: BenchRequest) -> None:
    with pytest.raises(FoundryError, match=r"1 of 1 lanes ended early: .*g\+\+"):
        await spread(request_, [{"PATH": ""}], lambda _task, _line: None, asyncio.Event())


async def test_a_task_is_left_to_a_lane_that_has_more_of_the_gpu(
    request_: BenchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GPU_GIGABYTES, "30.0")

    class Narrow(Parts):
        def task(self, request: SolveRequest) -> Task:
            raise TooLarge("it needs 90 GB and 70 are free")

    (task, *_) = find_tasks(request_)
    runs_of(request_, task).mkdir(parents=True)
    sharing = replace(request_, is_sharing=True)
    assert await run_task(task, digest_of(task), sharing, Narrow(), {}, asyncio.Event()) is None
    told: list[str] = []
    await work(sharing, lambda task, line: told.append(f"{task.name} {line and line.verdict}"), asyncio.Event())
    assert "0_broken" not in " ".join(told)  # another lane with no more of a GPU passes it over
    assert is_too_large(sharing, task) and not is_too_large(request_, task)
    monkeypatch.setenv(GPU_GIGABYTES, "120.0")
    assert not is_too_large(sharing, task)
    alone = await run_task(task, digest_of(task), request_, Narrow(), {}, asyncio.Event())
    assert alone is not None and alone.reason == "it needs 90 GB and 70 are free"


async def test_a_task_that_found_too_little_memory_beside_others_is_tried_again_alone(
    request_: BenchRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GPU_GIGABYTES, "30.0")
    words = "c1 failed its proof, crash: the GPU's memory is used up: CUDA out of memory. Tried to allocate 18.00 GiB"

    class Full(Parts):
        def task(self, request: SolveRequest) -> Task:
            raise TaskError(words)

    (task, *_) = find_tasks(request_)
    runs_of(request_, task).mkdir(parents=True)
    sharing = replace(request_, is_sharing=True)
    assert await run_task(task, digest_of(task), sharing, Full(), {}, asyncio.Event()) is None
    assert is_too_large(sharing, task)
    alone = await run_task(task, digest_of(task), request_, Full(), {}, asyncio.Event())
    assert alone is not None and alone.reason == words
