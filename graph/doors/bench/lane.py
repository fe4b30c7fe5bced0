"""One process of a bench: solves the tasks that are neither finished nor claimed, one after the other.

As a program it is a lane of `--gpus`: it ends with the process that started it, and its task keeps its state. Its warm
process starts before this one imports the modules of a bench, so that both start up at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from foundry.knowledge.errors import FoundryError
from foundry.tools.machine.device import describe, take_share_of_cores, usable_cores
from foundry.tools.process.zygote import Zygote

if TYPE_CHECKING:
    from foundry.graph.doors.bench.request import BenchRequest
    from foundry.graph.doors.bench.results import TaskResult
    from foundry.graph.doors.bench.tasks import BenchTask
    from foundry.knowledge.device import Device

Listener = Callable[["BenchTask", "TaskResult | None"], None]  # result None: the task begins


async def work(request: BenchRequest, tell: Listener, stop: asyncio.Event, zygote: Zygote | None = None) -> None:
    """Solves the tasks that are left and appends their lines, until none is left or `stop` is set. `zygote`: the warm
    process, which this ends; None: the first task begins one."""
    from foundry.graph.doors.bench.one_task import is_too_large, run_task, runs_of
    from foundry.graph.doors.bench.results import ResultFile
    from foundry.graph.doors.bench.tasks import digest_of, find_tasks, in_turn
    from foundry.graph.run.opening import WarmParts

    results, parts = ResultFile(request.where), WarmParts(zygote)
    try:
        versions = versions_of(describe(request.target))
        for task in in_turn(find_tasks(request)):
            digest = digest_of(task)
            if stop.is_set() or results.knows(task.name, digest):
                continue
            if is_too_large(request, task):
                continue
            with claimed(runs_of(request, task)) as is_ours:
                if not is_ours or results.knows(task.name, digest):
                    continue
                tell(task, None)
                line = await run_task(task, digest, request, parts, versions=versions, stop=stop)
                if line is not None:
                    results.append(line)
                    tell(task, line)
    finally:
        parts.close()


def versions_of(device: Device) -> dict[str, str]:
    """The versions and the device that two lines must share to be compared."""
    import foundry
    from foundry.tools.protocol.rules import PROTOCOL_VERSION

    return {
        "foundry": foundry.__version__,
        "protocol": PROTOCOL_VERSION,
        "torch": device.facts.get("torch", ""),
        "device": device.key,
    }


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Claims the task of these runs; yields True if this process has it. A claim ends with its process in any case."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "claim", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


# ------------------------------------------------------------ a lane as a process


def _watch_for_the_end(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Waits for the end of standard input, then sets `stop`.

    Standard input ends when the process that started this one stops it, or has ended itself.
    """
    while os.read(0, 1):
        pass
    with contextlib.suppress(RuntimeError):  # the loop is closed: all is done
        loop.call_soon_threadsafe(stop.set)


async def _lane(asked: str) -> None:
    """Solves the tasks of a bench in this process until its standard input ends. `asked`: a BenchRequest as JSON."""
    zygote = Zygote.begin(threads=usable_cores())
    zygote.go_on()
    from foundry.graph.doors.bench.request import BenchRequest
    from foundry.knowledge.codec import decode

    stop = asyncio.Event()
    watch = (asyncio.get_running_loop(), stop)
    threading.Thread(target=_watch_for_the_end, args=watch, daemon=True).start()
    await work(decode(BenchRequest, asked), lambda _task, _line: None, stop, zygote)


def main() -> None:
    """Entry of a lane's process: takes its share of the cores and solves tasks; an error is one line and an exit
    code."""
    try:
        take_share_of_cores(int(sys.argv[2]), int(sys.argv[3]))
        asyncio.run(_lane(sys.argv[1]))
    except FoundryError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
