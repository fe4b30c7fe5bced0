"""Questions of a run to the person at the terminal: y or n, at any time, while Ctrl-C still ends the run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foundry.graph.run.opening import Asker


def asker_of(answer: bool | None, quiet: Callable[[], AbstractContextManager[object]]) -> Asker:
    """The function that answers a run's questions: from the flag or, without one, from the terminal if there is one.

    `answer` True (`--yes`) answers all questions, False (`--no`) the first. `quiet` keeps other output away from the
    terminal during a question.
    """
    given = [answer] if answer is not None else []

    async def ask(question: str) -> bool | None:
        """The user's answer: the one given beforehand, or asked for in the terminal; None without a terminal."""
        if given:
            return given[0] if given[0] else given.pop()
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return None
        with quiet():
            return await _ask_terminal(question)

    return ask


async def _ask_terminal(question: str) -> bool | None:
    """Asks until y or n is typed: True for y, False for n; None where the terminal is closed."""
    while True:
        print(f"{question} [y/n] ", end="", file=sys.stderr, flush=True)
        said = await _read_line()
        if said is None:
            return None
        word = said.strip().lower()
        if word in ("y", "yes", "n", "no"):
            return word.startswith("y")


async def _read_line() -> str | None:
    """One line of standard input, without a thread that would outlive a Ctrl-C; None at its end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    number = sys.stdin.fileno()

    def wake() -> None:
        """Ends the wait for a line, unless it has ended."""
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(number, wake)
    try:
        await ready
        line = os.read(number, 4096).decode(errors="replace")
        return line or None
    finally:
        loop.remove_reader(number)
