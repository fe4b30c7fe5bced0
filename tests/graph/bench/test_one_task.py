"""What ends one task of a bench, and what ends them all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foundry.graph.bench.one_task import run_task
from foundry.graph.bench.request import BenchRequest
from foundry.graph.bench.results import TaskResult
from foundry.graph.bench.tasks import digest_of, find_tasks
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.device import Device
from foundry.knowledge.errors import MissingTool

TASK = "class Model(nn.Module):\n    def forward(self, x): ...\n\n\ndef get_inputs(): ...\n"


class Broken(Parts):
    """A machine that cannot be described."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def device(self, request: SolveRequest) -> Device:
        raise self.error


async def attempt(folder: Path, error: Exception) -> TaskResult | None:
    (folder / "1_task.py").write_text(TASK)
    request = BenchRequest(str(folder), str(folder / "out"), target="cpu")
    (task,) = find_tasks(request)
    (request.where / "runs/1_task").mkdir(parents=True)  # as the claim on the task leaves it
    return await run_task(task, digest_of(task), request, Broken(error), {}, asyncio.Event())


async def test_a_fault_of_our_own_costs_one_task(tmp_path: Path) -> None:
    line = await attempt(tmp_path, RuntimeError("two\nlines"))
    assert line is not None
    assert (line.verdict, line.reason, line.counts) == ("failed", "internal error: RuntimeError: two lines", True)
    assert "Traceback" in (tmp_path / "out/runs/1_task/error.txt").read_text()


async def test_a_machine_without_a_compiler_ends_the_bench(tmp_path: Path) -> None:
    with pytest.raises(MissingTool):
        await attempt(tmp_path, MissingTool("no compiler"))
