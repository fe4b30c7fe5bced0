"""Runs Foundry's own commands for an agent: a process each, with the limits, the isolation and the words that the same
command has in a terminal, so that nothing an agent asks for takes another way to the machine."""

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

SHOWN_CHARS = 60_000  # of what a command says
END_S = 20.0  # for a search to keep its state when it is told to stop


class CommandFailed(FoundryError):
    """A command ended with what an agent can act on: its one line."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed as one document. Raises CommandFailed with its line on standard error."""
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise CommandFailed(self.line) from error

    @property
    def line(self) -> str:
        return self.err.strip().removeprefix("foundry: ")[-2000:] or f"it ended with exit code {self.code}"


async def start(*words: str) -> asyncio.subprocess.Process:
    """Begins a command. It hears nothing from our standard input, which is the agent's."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "foundry.cli", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the agent's terminal is not meant for it
        env={**os.environ, "NO_COLOR": "1"},
    )


async def finish(child: asyncio.subprocess.Process) -> Ended:
    """Waits for a command; it is ended when nobody waits any more."""
    try:
        out, err = await child.communicate()
    except asyncio.CancelledError:
        await end(child)
        raise
    return Ended(child.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


async def run(*words: str) -> Ended:
    """A command from its begin to its end."""
    return await finish(await start(*words))


async def end(child: asyncio.subprocess.Process) -> None:
    """Tells a command to stop with its state kept, and kills it where it does not."""
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
