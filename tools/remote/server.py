"""A workbench as a process of its own: `python -m foundry.tools.remote.server`, used over its standard streams.

It may run on another machine: its starter (ssh, a container, a cluster) connects the streams. The first message
opens the workbench, every other one is a call; it ends, with all that it started, when its standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from foundry.knowledge.errors import FoundryError
from foundry.tools.grade.host.workbench import Workbench, open_workbench
from foundry.tools.machine.device import describe, take_share_of_cores
from foundry.tools.machine.scratch import scratch_folder
from foundry.tools.process.messages import Asked, Done, Message, NotDone, questions_of
from foundry.tools.remote.wire import BenchDone, BenchOpening, Cancel, read_text, write_text


class BenchServer:
    """Answers calls to a workbench, any number at once."""

    def __init__(self, bench: Workbench, writer: asyncio.StreamWriter) -> None:
        """Answers nothing yet; answers go to `writer`."""
        self._bench, self._writer = bench, writer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answers messages, each in a task of its own, until the other side closes the stream; then cancels what is
        left."""
        with contextlib.suppress(EOFError):  # IncompleteReadError is one
            while True:
                asked = questions_of(Workbench, Cancel).validate_json(await read_text(reader))
                if not isinstance(asked, Cancel):
                    self._tasks[asked.number] = asyncio.create_task(self._answer(asked))
                elif (task := self._tasks.get(asked.number)) is not None:
                    task.cancel()
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, asked: Asked) -> None:
        """Runs one call and sends its answer, or its error."""
        found: Message
        try:
            answer = await asked.answered_by(self._bench)
            notes = await asyncio.to_thread(lambda: self._bench.notes)  # may wait for a process's start
            found = BenchDone(number=asked.number, answer=answer, notes=notes)
        except FoundryError as error:
            found = NotDone.because(error, asked.number)
        except Exception as error:  # our own fault: the caller must hear of it
            found = NotDone.because(FoundryError(f"{type(error).__name__}: {error}"), asked.number)
        finally:
            self._tasks.pop(asked.number, None)
        write_text(self._writer, found.encoded())
        await self._writer.drain()


async def _serve() -> None:
    """Reads the opening message, opens its workbench and serves it; a failure to open is sent as the answer."""
    reader, writer = await _streams()
    opening = questions_of(BenchOpening).validate_json(await read_text(reader))
    take_share_of_cores(*opening.share)
    with scratch_folder("bench") as scratch:
        try:
            device = describe(opening.target)
            bench = await open_workbench(opening.task, device, scratch, seed=opening.seed)
        except FoundryError as error:
            write_text(writer, NotDone.because(error, opening.number).encoded())
            await writer.drain()
            return
        try:
            write_text(writer, Done(number=opening.number, answer=device).encoded())
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
