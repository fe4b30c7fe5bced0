"""A workbench whose work is done by another process, on this or another machine. Free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Contest,
    ForeignName,
    Gate,
    Profile,
    Recipe,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.codec import pack, unpack
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.task import Policy, Task
from foundry.tools.grade.host.answers import raise_error
from foundry.tools.grade.host.workbench import BenchNotes, Intake
from foundry.tools.process.channel import Message
from foundry.tools.profiling.gather import Seen
from foundry.tools.remote.wire import CALLS, question, read_message, write_message
from foundry.tools.tune.tuner import TunedPlan

SERVER = (sys.executable, "-m", "foundry.tools.remote.server")
CLOSE_S = 30.0  # seconds in which the process must end by itself
LAST_WORDS_BYTES = 4096  # bytes of its standard error that are kept


class RemoteWorkbench:
    """A workbench behind the standard streams of a process. Each method asks its namesake there."""

    def __init__(self, process: Process) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("started with pipes")
        self.device: Device
        self.notes = BenchNotes()
        self._process = process
        self._writer = process.stdin
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._said = b""
        self._listening = [
            asyncio.create_task(self._listen(process.stdout)),
            asyncio.create_task(self._overhear(process.stderr)),
        ]

    @classmethod
    async def open(
        cls,
        task: Task,
        target: TargetName,
        *,
        seed: int,
        place: Mapping[str, str] | None = None,
        share: tuple[int, int] = (0, 1),
        command: Sequence[str] = SERVER,
        folder: Path | None = None,
    ) -> RemoteWorkbench:
        """Starts the process (3 s). Raises FoundryError.

        `place` adds to its environment. `share` is its part of the host's cores: (0, 2) is the first half. `folder`
        is its working directory.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **(place or {})},
            cwd=folder,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # Ctrl-C is passed on as the end of its standard input
        )
        made = cls(process)
        try:
            opening = {"task": pack(Task, task), "target": target, "seed": seed, "share": list(share)}
            answer = await made._exchange(-1, opening)
            made.device = unpack(Device, answer["device"])
        except BaseException:
            await made.aclose()
            raise
        return made

    async def intake(self) -> Intake:
        """The task's intake: what the remote process found on reading and tracing it."""
        found: Intake = await self._ask("intake")
        return found

    async def baseline(self) -> Baseline:
        found: Baseline = await self._ask("baseline")
        return found

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        """Announces which further baselines will be compared, so that they can be prepared early."""
        await self._ask("expect_contest", tuple(rivals))

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        """The comparison of a candidate with further baselines on the remote device."""
        found: Contest = await self._ask("contest", text, build, tuple(rivals), foreign)
        return found

    async def build(self, text: str) -> Build:
        found: Build = await self._ask("build", text)
        return found

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        found: Verdict = await self._ask("verify", text, build, stage)
        return found

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        found: Audit = await self._ask("audit", text, build, verdict, policy)
        return found

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        found: Timing = await self._ask("time", text, build, stage, incumbent_ms, beside)
        return found

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        found: Profile = await self._ask("profile", text, build, audit, timing, lowered)
        return found

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        found: TunedPlan = await self._ask("tune", recipe, seconds, seed, dict(hints))
        return found

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
        found: Seen = await self._ask("observe", text, build, seconds, counted)
        return found

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        """The gates of the GPU sanitizer's run of a candidate."""
        found: list[Gate] = await self._ask("sanitize", text, build)
        return found

    async def aclose(self) -> None:
        """Closes the stream; the process ends with all that it started."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await asyncio.gather(*self._listening)

    # ------------------------------------------------------------ messages

    async def _ask(self, name: str, *given: object) -> Any:
        """Calls a method of the remote workbench by name and returns its record."""
        number = next(self._numbers)
        answer = await self._exchange(number, question(number, name, given))
        return unpack(CALLS[name].gives, answer["answer"])

    async def _exchange(self, number: int, message: Message) -> Message:
        """Sends a message and waits for the answer with its number; cancels the call there if it is cancelled here."""
        if self._listening[0].done():
            raise self._gone()
        waiting: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[number] = waiting
        try:
            write_message(self._writer, message)
            with contextlib.suppress(ConnectionError):  # the listening task notices the end
                await self._writer.drain()
            answer = await waiting
        except asyncio.CancelledError:
            write_message(self._writer, {"cancel": number})
            raise
        finally:
            self._asked.pop(number, None)
        raise_error(answer)
        return answer

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hands each answer to the call that waits for it, until the process ends."""
        try:
            while True:
                message = await read_message(reader)
                if "notes" in message:
                    self.notes = unpack(BenchNotes, message["notes"])
                waiting = self._asked.get(int(message.get("number", -1)))
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        except (EOFError, ValueError, KeyError, FoundryError):  # the process ended, or sent something that is no answer
            await asyncio.wait([self._listening[1]], timeout=1.0)
            for waiting in self._asked.values():
                if not waiting.done():
                    waiting.set_exception(self._gone())

    async def _overhear(self, reader: asyncio.StreamReader) -> None:
        """Keeps the last bytes that the process writes to its standard error."""
        while heard := await reader.read(LAST_WORDS_BYTES):
            self._said = (self._said + heard)[-LAST_WORDS_BYTES:]

    def _gone(self) -> FoundryError:
        """The error for a process that has ended, with its last line."""
        lines = self._said.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return FoundryError(f"a worker of this run is gone: {lines[-1][:300]}", "resume the run")
