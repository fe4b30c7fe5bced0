"""What ends one task of a bench, and what ends them all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from foundry.graph.doors.bench.one_task import rivals_of, run_task, spent_s
from foundry.graph.doors.bench.progress import task_line
from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.results import TaskResult
from foundry.graph.doors.bench.tasks import digest_of, find_tasks
from foundry.graph.run.events import Event
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.candidate import Contest, Rival
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


def test_a_line_has_the_rivals_that_could_be_timed() -> None:
    compiled = Rival("compile max-autotune", 2.0, 1.5, 3.0)
    contest = Contest((Rival("compile", problem="it raised"), compiled), 9, 3.0, 0.5, 400, 100)
    fields = rivals_of(contest)
    line = TaskResult("a/1", "d", "accepted", **fields)
    assert (line.autotune_ms, line.autotune_speedup, line.speedup_vs_autotune) == (2.0, 1.5, 3.0)
    assert (line.compile_ms, line.eager_ms, line.peak_memory_ratio) == (None, None, 0.25)
    assert (line.turns_baseline_ms, line.turns_candidate_ms) == (3.0, 0.5)
    assert rivals_of(None) == {}


def test_a_line_says_where_the_seconds_went() -> None:
    def tool(name: str, step: str, seconds: float, **data: float) -> Event:
        return Event(1, "tool", name, None, step, None, 100.0, 100.0 + seconds, data)

    tools = [
        tool("audit", "seed0", 0.5),
        tool("audit", "final/c1", 28.0),
        tool("time screen", "seed0", 3.0, wait_s=2.0),
        tool("time final", "final/c1", 5.0),
        tool("build", "seed0", 0.01),
    ]
    found = spent_s(tools)
    assert found == {"audit final": 28.0, "time final": 5.0, "waiting": 2.0, "time screen": 1.0, "audit": 0.5}
    line = TaskResult("a/1", "d", "accepted", speedup=2.0, baseline_ms=3.0, candidate_ms=1.5, wall_s=38, spent_s=found)
    assert task_line(line) == (
        "a/1: 2.00x the speed of eager, 1.500 ms against 3.000 ms; "
        "38 s (audit of proofs 28, timing of proofs 5, waiting 2, timing briefly 1, audit 0)"
    )
