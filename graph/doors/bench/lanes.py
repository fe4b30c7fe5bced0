"""A bench on the GPUs of a host: processes, one or several a GPU, which share the tasks and the result file."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from foundry.graph.doors.bench.lane import Listener
from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.results import ResultFile
from foundry.graph.doors.bench.tasks import BenchTask, digest_of, find_tasks
from foundry.knowledge.codec import encode
from foundry.knowledge.errors import FoundryError

POLL_S = 0.5
LOGS = "lanes"  # folder of what the processes say


async def spread(request: BenchRequest, places: Sequence[dict[str, str]], tell: Listener, stop: asyncio.Event) -> None:
    """Runs a bench in one process for each place, tells finished lines as they come, and passes a stop on.

    A place is the environment of one process beyond ours. Raises FoundryError if a process failed; all have ended then.
    """
    logs = request.where / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    lanes = [
        await _start(request, place, (number, len(places)), logs / f"{number}.log")
        for number, place in enumerate(places)
    ]
    ended = asyncio.gather(*(lane.wait() for lane in lanes))
    waited_for = _unfinished(request)
    try:
        while not ended.done():
            await asyncio.wait([ended], timeout=POLL_S)
            _tell_lines(request, waited_for, tell)
            if stop.is_set():
                _let_go(lanes)
    finally:
        _let_go(lanes)
        await ended
    _tell_lines(request, waited_for, tell)
    failed = [number for number, lane in enumerate(lanes) if lane.returncode]
    if failed:
        said = (logs / f"{failed[0]}.log").read_text().strip().splitlines() or ["it said nothing"]
        problem = f"{len(failed)} of {len(lanes)} lanes ended early: {said[-1]}"
        raise FoundryError(problem, f"see {logs}, then run again")


async def _start(request: BenchRequest, place: dict[str, str], share: tuple[int, int], log: Path) -> Process:
    """Starts a lane's process; its output goes to `log`."""
    with log.open("wb") as said:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "foundry.graph.doors.bench.lane",
            encode(request),
            *map(str, share),
            env={**os.environ, **place},
            stdin=PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is ours to pass on: as the end of its standard input
        )


def _let_go(lanes: Sequence[Process]) -> None:
    """Tells the lanes to stop with their state kept."""
    for lane in lanes:
        if lane.stdin is not None:
            lane.stdin.close()


def _unfinished(request: BenchRequest) -> dict[str, tuple[BenchTask, str]]:
    """The tasks without a line, with their digests, by name."""
    results = ResultFile(request.where)
    found = {task.name: (task, digest_of(task)) for task in find_tasks(request)}
    return {name: asked for name, asked in found.items() if not results.knows(name, asked[1])}


def _tell_lines(request: BenchRequest, waited_for: dict[str, tuple[BenchTask, str]], tell: Listener) -> None:
    """Tells each line that the lanes have appended since."""
    for line in ResultFile(request.where).read():
        task, digest = waited_for.get(line.task, (None, ""))
        if task is not None and digest == line.digest:
            del waited_for[line.task]
            tell(task, line)
