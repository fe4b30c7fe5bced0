"""One task of a bench: an ordinary run, begun or gone on with, as one line of the result file."""

from __future__ import annotations

import asyncio
import math
import os
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.results import Excluded, TaskResult
from foundry.graph.doors.bench.tasks import BenchTask
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory, list_runs
from foundry.graph.run.summary import Summary
from foundry.graph.solve import resume, silent, solve
from foundry.knowledge.candidate import Contest, RivalName
from foundry.knowledge.codec import decode
from foundry.knowledge.errors import RandomTask, TaskError, TellsNothing, TooLarge, UsageError
from foundry.knowledge.task import Task
from foundry.tools.task.limits import GPU_GIGABYTES

RUNS = "runs"
OUT_OF_MEMORY = "out of memory"  # part of PyTorch's message about a GPU, and of ours
TOO_LARGE = "too_large"  # file in the folder of a task's runs: the part of a GPU, in gigabytes, that was too small
FIELDS: dict[RivalName, str] = {"eager": "eager", "compile": "compile", "compile max-autotune": "autotune"}
SHORTEST_S = 0.05  # seconds; a tool that took less is not listed
OPEN = ("running", "interrupted", "finished")  # states of a run that can be continued


def runs_of(request: BenchRequest, task: BenchTask) -> Path:
    """The folder of a task's runs."""
    return request.where / RUNS / task.name


def is_too_large(request: BenchRequest, task: BenchTask) -> bool:
    """True if an earlier run found that a task does not fit this lane's part of a GPU."""
    known = runs_of(request, task) / TOO_LARGE
    return request.is_sharing and known.exists() and _part_gb() <= float(known.read_text() or "0")


def _part_gb() -> float:
    """This lane's part of a GPU's memory in GB; infinite if it has all of it."""
    return float(os.environ.get(GPU_GIGABYTES, "inf"))


async def run_task(
    task: BenchTask,
    digest: str,
    request: BenchRequest,
    parts: Parts,
    versions: dict[str, str],
    stop: asyncio.Event,
) -> TaskResult | None:
    """Solves a task and returns its line.

    None if `stop` ended it (its state is kept), or if it needs more than this lane's part of the GPU. A task that
    cannot be solved gets a line too, so that it never ends a bench. Raises MissingTool and StorageFailed, which would
    end every task.
    """
    began = time.monotonic()

    def line(reason: str, excluded: Excluded = "") -> TaskResult:
        """The result of a task that failed, for this reason."""
        wall_s = round(time.monotonic() - began, 3)
        return TaskResult(task.name, digest, "failed", reason, excluded, wall_s=wall_s)

    try:
        summary = await _solved(task, digest, request, parts, stop)
        found = None if summary.verdict == "interrupted" else _line_of(summary, task, digest, request)
    except RandomTask as error:
        found = line(str(error), "random")
    except TellsNothing as error:
        found = line(str(error), "no question tells right from wrong")
    except TooLarge as error:
        if request.is_sharing:
            _leave_to_others(request, task)
            return None
        found = line(str(error))
    except (TaskError, UsageError) as error:
        found = line(str(error))
    except Exception as error:
        if _ends_every_task(error):
            raise
        (runs_of(request, task) / "error.txt").write_text(traceback.format_exc())
        found = line(f"internal error: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    if found is None:
        return None
    if request.is_sharing and found.verdict != "accepted" and OUT_OF_MEMORY in found.reason:
        _leave_to_others(request, task)  # another lane may have taken it, or the plan is wrong for this task
        return None
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return replace(found, finished=finished, versions=versions, protocol=request.protocol)


def _leave_to_others(request: BenchRequest, task: BenchTask) -> None:
    """Notes that a task needs more of a GPU than this lane's part of it."""
    (runs_of(request, task) / TOO_LARGE).write_text(str(_part_gb()))


def _ends_every_task(error: Exception) -> bool:
    """True for errors that every further task would meet too."""
    from foundry.graph.run.database import StorageFailed
    from foundry.knowledge.errors import MissingTool, NotComparable

    return isinstance(error, StorageFailed | MissingTool | NotComparable)


async def _solved(task: BenchTask, digest: str, request: BenchRequest, parts: Parts, stop: asyncio.Event) -> Summary:
    """The summary of the task's run: resumed if a usable one was begun, else a new one."""
    folder = runs_of(request, task)
    begun = _open_run(folder, digest)
    if begun is not None:
        try:
            return await resume(begun, silent, stop=stop, parts=parts)
        except UsageError:
            pass  # what a kill left of it cannot be used: a new run begins
    asked = SolveRequest(
        task.path,
        target=request.target,
        effort=request.effort,
        seed=request.seed,
        limits=request.limits,
        learn=False,  # what one task teaches must not help the next: the order of tasks would count
        runs=str(folder),
        rivals=request.rivals,
        foreign=None if request.protocol == "foundry" else request.protocol,
    )
    return await solve(asked, silent, stop=stop, parts=parts)


def _open_run(folder: Path, digest: str) -> Path | None:
    """The newest run of the task as it stands now that can be gone on with."""
    found: Path | None = None
    for run in list_runs(folder):
        text = run.get("task")
        if found is None and text and run.get("status") in OPEN and decode(Task, text).digest == digest:
            found = run.path
        run.close()
    return found


def _line_of(summary: Summary, task: BenchTask, digest: str, request: BenchRequest) -> TaskResult:
    """The result of a task from its run's summary, with paths below the bench's folder."""
    ci95 = summary.speedup_ci95
    is_accepted = summary.verdict == "accepted"
    course = _course(Path(summary.run))
    return TaskResult(
        task.name,
        digest,
        summary.verdict,
        reason="" if is_accepted else "; ".join(filter(None, [summary.ending, *summary.notes])) or "see the trace",
        speedup=summary.speedup if is_accepted else None,
        speedup_ci95=ci95 if is_accepted and ci95 and all(map(math.isfinite, ci95)) else None,
        baseline_ms=summary.baseline_ms,
        candidate_ms=summary.candidate_ms,
        **rivals_of(summary.contest),
        labels=summary.labels,
        accuracy_class=summary.accuracy_class,
        fraction_of_floor=summary.fraction_of_floor,
        evaluations=summary.evaluations,
        evaluated_s=course.evaluated_s,
        spent_s=course.spent_s,
        first_verified_s=summary.first_verified_s,
        wall_s=summary.wall_s,
        sessions=course.sessions,
        run=_below(summary.run, request) or "",
        kernel=_below(summary.kernel, request),
        receipt=_below(summary.receipt, request),
        notes=summary.notes,
    )


def rivals_of(contest: Contest | None) -> dict[str, Any]:
    """The fields of a line that come from the comparison with baselines; {} without one."""
    if contest is None:
        return {}
    fields: dict[str, Any] = {"foreign": contest.foreign, "peak_memory_ratio": contest.peak_memory_ratio}
    fields |= {"turns_baseline_ms": contest.baseline_ms or None, "turns_candidate_ms": contest.candidate_ms}
    for rival, name in FIELDS.items():
        found = contest.rival(rival)
        if found is not None:
            fields |= {f"{name}_ms": found.ms, f"{name}_speedup": found.over_baseline}
            fields |= {f"speedup_vs_{name}": found.by_kernel}
    return fields


@dataclass(frozen=True)
class _Course:
    """The course of a run over time."""

    evaluated_s: list[float]  # end of each candidate's first evaluation, in seconds from the run's start
    spent_s: dict[str, float]  # tool -> seconds, summed over tools that ran at once
    sessions: int


def _course(run: Path) -> _Course:
    """When each candidate was first evaluated, seconds spent by tool, and number of sessions of a run."""
    opened = RunDirectory.inspect(run)
    try:
        log = EventLog(opened.database, reading=True)
        began = log.began()
        ended: dict[str, float] = {}
        for event in log.read("evaluation"):
            ended.setdefault(event.name, round(event.started - began, 3))
        sessions = opened.database.run("SELECT COUNT(*) FROM sessions")[0][0]
        return _Course(sorted(ended.values()), spent_s(log.read("tool")), int(sessions))
    finally:
        opened.close()


def spent_s(tools: Iterable[Event]) -> dict[str, float]:
    """Seconds by tool, the longest first; what of them was spent waiting for the device is an entry of its own."""
    found: dict[str, float] = defaultdict(float)
    for event in tools:
        is_proof = event.step.startswith("final/") and not event.name.endswith("final")
        waited = float(event.data.get("wait_s", 0.0))
        found[f"{event.name} final" if is_proof else event.name] += (event.seconds or 0.0) - waited
        found["waiting"] += waited
    longest = sorted(found.items(), key=lambda item: -item[1])
    return {name: round(seconds, 1) for name, seconds in longest if seconds >= SHORTEST_S}


def _below(path: str | None, request: BenchRequest) -> str | None:
    """A path as seen from the bench's folder, so that the folder can be moved."""
    return None if path is None else str(Path(path).relative_to(request.where))
