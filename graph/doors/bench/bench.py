"""A bench from its request to its summary."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from foundry.graph.doors.bench.figures import figures_of
from foundry.graph.doors.bench.lane import Listener, versions_of, work
from foundry.graph.doors.bench.lanes import spread
from foundry.graph.doors.bench.page import write_page
from foundry.graph.doors.bench.pictures import check_drawable, draw
from foundry.graph.doors.bench.progress import BenchProgress, Say
from foundry.graph.doors.bench.report import report
from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.results import ResultFile, TaskResult, settle
from foundry.graph.doors.bench.tasks import BenchTask, digest_of, find_tasks
from foundry.knowledge.errors import MissingTool, UsageError
from foundry.tools.machine.device import describe
from foundry.tools.targets.cuda.describe import chosen_gpus
from foundry.tools.task.limits import GPU_GIGABYTES

LARGE_SHARE = 0.8  # share of a GPU's memory for one of its lanes, which runs large tasks beside the small ones
SUMMARY, FIGURES = "summary.md", "summary.json"


def places_of(request: BenchRequest, gpus: str, lanes: int = 1) -> list[dict[str, str]]:
    """The environment variables that each lane gets beyond ours, from `--gpus` and `--lanes`.

    A single empty dict stands for this process itself. Raises UsageError if kernels would not run on a GPU.
    """
    if gpus in ("", "1") and lanes == 1:
        return [{}]
    device = describe(request.target)
    if not device.traits.visible_devices:
        asked = f"--gpus {gpus}" if gpus else f"--lanes {lanes}"
        raise UsageError(f"{asked}: no kernel would run on a GPU here", "see `foundry doctor`")
    shares = [LARGE_SHARE, *[(1.0 - LARGE_SHARE) / (lanes - 1)] * (lanes - 1)] if lanes > 1 else []
    parts = [{GPU_GIGABYTES: f"{share * device.memory_bytes / 1e9:.1f}"} for share in shares] or [{}]
    here = chosen_gpus(gpus or "1")
    return [{device.traits.visible_devices: gpu, **part} for part in parts for gpu in here]


@dataclass(frozen=True)
class Outcome:
    """The end of a bench: the lines of all tasks that have finished, now or before, in the tasks' order."""

    lines: list[TaskResult]
    left: int  # tasks without a line
    is_stopped: bool  # True after Ctrl-C or SIGTERM; otherwise another process works on the tasks that are left


def run_bench(request: BenchRequest, gpus: str, lanes: int, *, pictures: bool | None, say: Say) -> Outcome:
    """Solves the tasks that are left and writes the summary.

    Several lanes solve the tasks that fit their parts of a GPU; then one lane a GPU solves the rest. `pictures` None
    draws pictures if matplotlib is installed. Raises FoundryError if no task could start.
    """
    tasks = find_tasks(request)
    rounds = [places_of(request, gpus, lanes), *([places_of(request, gpus)] if lanes > 1 else [])]
    is_drawn = _will_draw(pictures, say)
    settle(request, versions_of(describe(request.target)))
    results = ResultFile(request.where)
    digests = {task.name: digest_of(task) for task in tasks}
    known = sum(results.knows(name, digest) is not None for name, digest in digests.items())
    with BenchProgress(Console(stderr=True), say, len(tasks), known) as progress:

        def on_task(task: BenchTask, line: TaskResult | None) -> None:
            """Shows that a task begins (line None) or has ended, and then rewrites the summary."""
            progress(task, line)
            if line is not None:  # the summary is complete so far at any time, also after a kill
                write_summary(_lines_of(results, digests), request.where, pictures=False)

        is_stopped = asyncio.run(_work(request, rounds, on_task))
    lines = _lines_of(results, digests)
    write_summary(lines, request.where, pictures=is_drawn)
    return Outcome(lines, len(tasks) - len(lines), is_stopped)


def _will_draw(pictures: bool | None, say: Say) -> bool:
    """True if pictures will be drawn.

    Without matplotlib it prints a line and returns False, or raises MissingTool if the user asked for pictures.
    """
    if pictures is False:
        return False
    try:
        check_drawable()
    except MissingTool:
        if pictures:
            raise
        say("no pictures: matplotlib is not installed (after pip install matplotlib the same command draws them)")
        return False
    return True


def _lines_of(results: ResultFile, digests: Mapping[str, str]) -> list[TaskResult]:
    """The results of the tasks in the order of `digests`; results of a task whose digest has changed are left out."""
    found = {line.task: line for line in results.read() if digests.get(line.task) == line.digest}
    return [found[name] for name in digests if name in found]


async def _work(request: BenchRequest, rounds: Sequence[Sequence[dict[str, str]]], tell: Listener) -> bool:
    """Runs the rounds one after another. True if Ctrl-C or SIGTERM stopped it; tasks in flight keep their state."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    for places in rounds:
        if stop.is_set():
            break
        if places == [{}]:
            await work(request, tell, stop)
        else:
            await spread(replace(request, is_sharing=places is not rounds[-1]), places, tell, stop)
    return stop.is_set()


def write_summary(lines: Sequence[TaskResult], folder: Path, *, pictures: bool) -> None:
    """Writes summary.md, summary.json, the page and, if asked, the pictures of a bench into its folder."""
    drawn = draw(lines, folder) if pictures and lines else []
    (folder / SUMMARY).write_text(report(lines, drawn))
    found = [{**asdict(one), "correct": one.correct} for one in figures_of(lines)]
    (folder / FIGURES).write_text(json.dumps(found, indent=2) + "\n")
    write_page(lines, folder)
