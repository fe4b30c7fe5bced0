"""Runs Foundry's own commands for an agent, each in a process of its own.

A command has the same limits, isolation and output as in a terminal, so an agent reaches the machine only this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

from foundry.knowledge.errors import FoundryError

SHOWN_CHARS = 60_000  # most characters of a command's output that an agent gets
END_S = 20.0  # seconds in which a stopped search may save its state


class CommandFailed(FoundryError):
    """A command failed; the message is its one line, on which an agent can act."""


@dataclass(frozen=True)
class Ended:
    """A command's exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON document that it printed. Raises CommandFailed with its line on standard error if it is none."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise CommandFailed(self.line) from error

    @property
    def line(self) -> str:
        """The last 2,000 characters of standard error without "foundry: "; the exit code in words, if it is empty."""
        return self.err.strip().removeprefix("foundry: ")[-2000:] or f"it ended with exit code {self.code}"


async def start(*words: str) -> asyncio.subprocess.Process:
    """Starts a command. It reads nothing from our standard input, which is the agent's."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "foundry.cli", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the agent's terminal is not meant for it
        env={**os.environ, "NO_COLOR": "1"},
    )


async def finish(child: asyncio.subprocess.Process) -> Ended:
    """Waits for a command's end; ends the command if the wait is cancelled."""
    try:
        out, err = await child.communicate()
    except asyncio.CancelledError:
        await end(child)
        raise
    return Ended(child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


async def run(*words: str) -> Ended:
    """Starts a command and waits for its end. Returns its exit code and both outputs."""
    return await finish(await start(*words))


async def end(child: asyncio.subprocess.Process) -> None:
    """Asks a command to stop (SIGTERM keeps its state); kills it if it still runs after END_S seconds.

    Returns at once if it has ended.
    """
    if child.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(child.wait(), END_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
