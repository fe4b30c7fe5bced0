"""A workbench as a process of its own: `python -m foundry.tools.remote.server`, used over its standard streams.

It may run on another machine: its starter (ssh, a container, a cluster) connects the streams. The first message
opens the workbench, every other one is a call; it ends, with all that it started, when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from foundry.knowledge.codec import pack, unpack
from foundry.knowledge.device import Device
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.task import Task
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.device import describe, take_share_of_cores
from foundry.tools.machine.scratch import scratch_folder
from foundry.tools.process.channel import Message
from foundry.tools.remote.wire import answer, read_message, write_message


class BenchServer:
    """Answers calls to a workbench, any number at once."""

    def __init__(self, bench: Workbench, writer: asyncio.StreamWriter) -> None:
        self._bench, self._writer = bench, writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answers until the other side closes the stream."""
        with contextlib.suppress(EOFError):  # IncompleteReadError is one
            while True:
                message = await read_message(reader)
                if "cancel" in message:
                    if (task := self._tasks.get(int(message["cancel"]))) is not None:
                        task.cancel()
                    continue
                task = asyncio.create_task(self._answer(message))
                self._tasks[int(message["number"])] = task
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, message: Message) -> None:
        """Runs one call and sends its answer, or its error."""
        number = int(message["number"])
        try:
            found = await answer(self._bench, message)
        except FoundryError as error:
            found = {"number": number, **failure(error)}
        except Exception as error:  # our own fault: the caller must hear of it
            found = {"number": number, **failure(FoundryError(f"{type(error).__name__}: {error}"))}
        finally:
            self._tasks.pop(number, None)
        write_message(self._writer, found)
        await self._writer.drain()


def failure(error: FoundryError) -> Message:
    """An error as a message."""
    return {"error": [type(error).__name__, error.problem, error.remedy]}


async def _serve() -> None:
    """Opens the workbench as the first message says, and serves it."""
    reader, writer = await _streams()
    opening = await read_message(reader)
    take_share_of_cores(*opening["share"])
    with scratch_folder("bench") as scratch:
        try:
            device = describe(opening["target"])
            task: Task = unpack(Task, opening["task"])
            bench = await open_workbench(task, device, scratch, seed=int(opening["seed"]))
        except FoundryError as error:
            write_message(writer, failure(error))
            await writer.drain()
            return
        try:
            write_message(writer, {"device": pack(Device, device)})
            await BenchServer(bench, writer).serve(reader)
        finally:
            await bench.aclose()


async def _streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Standard input and output as streams; anything printed goes to standard error."""
    given, taken = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(given, "rb"))
    protocol: Any
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(taken, "wb"))
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def main() -> None:
    """Serves requests on standard input and output until the other side closes them."""
    with contextlib.suppress(EOFError, ConnectionError):  # the other side is gone
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
