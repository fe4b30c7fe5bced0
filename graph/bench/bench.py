"""A bench from its request to its summary."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from foundry.graph.bench.figures import figures_of
from foundry.graph.bench.lane import Listener, versions_of, work
from foundry.graph.bench.lanes import spread
from foundry.graph.bench.pictures import check_drawable, draw
from foundry.graph.bench.progress import BenchProgress, Say
from foundry.graph.bench.report import report
from foundry.graph.bench.request import BenchRequest
from foundry.graph.bench.results import ResultFile, TaskResult, settle
from foundry.graph.bench.tasks import digest_of, find_tasks
from foundry.knowledge.errors import UsageError
from foundry.tools.machine.device import describe, visible_gpus

SUMMARY, FIGURES = "summary.md", "summary.json"


def places_of(request: BenchRequest, gpus: str) -> list[dict[str, str]]:
    """What the environment of each lane says beyond ours, from `--gpus`; one empty place is this process itself.
    Raises UsageError."""
    if gpus in ("", "1"):
        return [{}]
    if gpus != "all" and not (gpus.isdigit() and int(gpus) >= 1):
        raise UsageError(f"--gpus {gpus}", "all, or how many")
    here = visible_gpus()
    if describe(request.target).target != "cuda" or not here:
        raise UsageError(f"--gpus {gpus}: no kernel would run on a GPU here", "see `foundry doctor`")
    count = len(here) if gpus == "all" else int(gpus)
    if count > len(here):
        raise UsageError(f"--gpus {gpus}: {len(here)} are here")
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in here[:count]]


@dataclass(frozen=True)
class Outcome:
    """How a bench ended: the lines of all tasks that have finished, now or before, in the tasks' order."""

    lines: list[TaskResult]
    left: int  # tasks without a line
    is_stopped: bool  # by Ctrl-C or SIGTERM; what is left otherwise is another process's


def run_bench(request: BenchRequest, gpus: str, *, pictures: bool, say: Say) -> Outcome:
    """Solves what is left and sums up. Raises FoundryError where no task could be begun."""
    if pictures:
        check_drawable()
    places = places_of(request, gpus)
    tasks = find_tasks(request)
    settle(request, versions_of(describe(request.target)))
    results = ResultFile(request.where)
    digests = {task.name: digest_of(task) for task in tasks}
    known = sum(results.knows(name, digest) is not None for name, digest in digests.items())
    with BenchProgress(Console(stderr=True), say, len(tasks), known, len(places)) as progress:
        is_stopped = asyncio.run(_work(request, places, progress))
    lines = [line for line in results.read() if digests.get(line.task) == line.digest]
    order = {name: number for number, name in enumerate(digests)}
    lines.sort(key=lambda line: order[line.task])
    write_summary(lines, request.where, pictures=pictures)
    return Outcome(lines, len(tasks) - len(lines), is_stopped)


async def _work(request: BenchRequest, places: Sequence[dict[str, str]], tell: Listener) -> bool:
    """Whether Ctrl-C or SIGTERM stopped it, with the state of the tasks in flight kept."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if places == [{}]:
        await work(request, tell, stop)
    else:
        await spread(request, places, tell, stop)
    return stop.is_set()


def write_summary(lines: Sequence[TaskResult], folder: Path, *, pictures: bool) -> None:
    """summary.md, summary.json, and the pictures."""
    drawn = draw(lines, folder) if pictures and lines else []
    (folder / SUMMARY).write_text(report(lines, drawn))
    found = [{**asdict(one), "correct": one.correct} for one in figures_of(lines)]
    (folder / FIGURES).write_text(json.dumps(found, indent=2) + "\n")
