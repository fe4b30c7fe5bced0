"""A workbench whose work is done by another process, on this or another machine. Free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, cast

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
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.task import Policy, Task
from foundry.tools.grade.host.answers import error_of
from foundry.tools.grade.host.workbench import BenchNotes, Intake, Workbench
from foundry.tools.process.channel import ChannelGarbled
from foundry.tools.process.messages import A, Malformed, NotDone, P, Question, asking
from foundry.tools.profiling.gather import Seen
from foundry.tools.remote.wire import AnswerHead, BenchOpening, Cancel, read_text, write_text
from foundry.tools.tune.tuner import TunedPlan

SERVER = (sys.executable, "-m", "foundry.tools.remote.server")
CLOSE_S = 30.0  # seconds in which the process must end by itself
LAST_WORDS_BYTES = 4096  # bytes of its standard error that are kept


class RemoteWorkbench:
    """A workbench behind the standard streams of a process. Each method asks its namesake there."""

    def __init__(self, process: Process) -> None:
        """Listens to a started process with pipes; asks nothing yet."""
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise AssertionError("started with pipes")
        self.device: Device
        self.notes = BenchNotes()
        self._process = process
        self._writer = process.stdin
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
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
            made.device = await made._ask(asking(BenchOpening.open, task=task, target=target, seed=seed, share=share))
        except BaseException:
            await made.aclose()
            raise
        return made

    async def intake(self) -> Intake:
        """The task's intake: what the remote process found on reading and tracing it."""
        return await self._call(Workbench.intake)

    async def baseline(self) -> Baseline:
        """Times the reference there; see `Workbench.baseline`."""
        return await self._call(Workbench.baseline)

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        """Announces which further baselines will be compared, so that they can be prepared early."""
        await self._call(Workbench.expect_contest, rivals=tuple(rivals))

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        """The comparison of a candidate with further baselines on the remote device."""
        return await self._call(Workbench.contest, text=text, build=build, rivals=tuple(rivals), foreign=foreign)

    async def build(self, text: str) -> Build:
        """Compiles a text there; see `Workbench.build`."""
        return await self._call(Workbench.build, text=text)

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        """Checks a candidate's correctness there; see `Workbench.verify`."""
        return await self._call(Workbench.verify, text=text, build=build, stage=stage)

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        """Audits a candidate there; see `Workbench.audit`."""
        return await self._call(Workbench.audit, text=text, build=build, verdict=verdict, policy=policy)

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        """Times a candidate there; see `Workbench.time`."""
        return await self._call(
            Workbench.time, text=text, build=build, stage=stage, incumbent_ms=incumbent_ms, beside=beside
        )

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        """Profiles a candidate there; see `Workbench.profile`."""
        return await self._call(Workbench.profile, text=text, build=build, audit=audit, timing=timing, lowered=lowered)

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        """Tunes a recipe there; see `Workbench.tune`."""
        return await self._call(Workbench.tune, recipe=recipe, seconds=seconds, seed=seed, hints=dict(hints))

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
        """Observes a candidate there; see `Workbench.observe`."""
        return await self._call(Workbench.observe, text=text, build=build, seconds=seconds, counted=counted)

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        """The gates of the GPU sanitizer's run of a candidate."""
        return await self._call(Workbench.sanitize, text=text, build=build)

    async def aclose(self) -> None:
        """Closes the stream, at which the process ends; kills its group after CLOSE_S seconds."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        await asyncio.gather(*self._listening)

    # ------------------------------------------------------------ messages

    async def _call(
        self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, A]], *_: P.args, **given: P.kwargs
    ) -> A:
        """The answer of the remote workbench's method."""
        return await self._ask(asking(cast(Any, method), **given))

    async def _ask(self, question: Question[A]) -> A:
        """Sends a question and waits for the answer with its number; cancels it there if it is cancelled here."""
        if self._listening[0].done():
            raise self._gone()
        number = next(self._numbers)
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = waiting
        try:
            write_text(self._writer, question.encoded(number))
            with contextlib.suppress(ConnectionError):  # the listening task notices the end
                await self._writer.drain()
            answer = question.read(await waiting)
        except (ChannelGarbled, Malformed) as error:
            raise FoundryError(f"a worker of this run gave an answer that is none: {error}") from error
        except asyncio.CancelledError:
            write_text(self._writer, Cancel(number=number).encoded())
            raise
        finally:
            self._asked.pop(number, None)
        if isinstance(answer, NotDone):
            raise error_of(answer.kind, answer.line, answer.remedy)
        return answer.answer

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Hands each answer to the call that waits for it, until the process ends."""
        try:
            while True:
                text = await read_text(reader)
                head = AnswerHead.model_validate_json(text)
                self.notes = head.notes or self.notes
                waiting = self._asked.get(head.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(text)
        except (EOFError, ValueError):  # the process ended, or sent something that is no answer
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
