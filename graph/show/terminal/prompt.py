"""The prompt of `foundry agent chat` without a line: words one after another, completed by Tab, and what came of them
told as soon as it is known."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from foundry.graph.show.effects import WAITS, History
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.words.completion import Names, complete
from foundry.graph.show.words.conversation import Conversation
from foundry.tools.words import make_printable

SIGN = "> "
LEAVE = ("exit", "quit")
LOOK_S = 0.5


def typed_lines(conversation: Conversation, path: Path) -> Iterator[str]:
    """Lines typed or piped, until the end or `exit`; on a terminal with a prompt, completion and later news."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with _news(path) if is_terminal else contextlib.nullcontext():
        if is_terminal:
            _complete_by_tab(conversation)
        while True:
            try:
                line = input(SIGN if sys.stdin.isatty() else "").strip()
            except EOFError:
                return
            if line in LEAVE:
                return
            if line:
                yield line


def _complete_by_tab(conversation: Conversation) -> None:
    """Makes Tab complete the words of a line to the run."""
    import readline

    from foundry.agents.expert import experts

    found: list[str] = []
    names: list[Names] = []

    def offer(word: str, number: int) -> str | None:
        """Completion number `number` of the line so far, None after the last; called by readline."""
        if number == 0:
            names[:] = names or [conversation.names()]
            text = readline.get_line_buffer()[: readline.get_endidx()]
            found[:] = complete(text, names[0], tuple(experts()))
        return f"{found[number]} " if number < len(found) else None  # readline puts no space behind the only one

    readline.set_completer_delims(" ")
    readline.set_completer(offer)
    readline.parse_and_bind("tab: complete")


class Effects:
    """Follows the effects of a run's directives; `news` returns the changes since its last call."""

    def __init__(self, path: Path) -> None:
        """Opens the run and reads the effects known already, which are no news."""
        self._reader = RunReader(path)
        self._history = History()
        self._told: dict[int, str] = {}
        self._is_listening = False
        self.news()  # effects known at the start are not news
        self._is_listening = True

    def news(self) -> list[str]:
        """Lines such as `d3 taken by @tiling in i0g4 -> c57 (+12 %)`.

        A directive has news when it is taken, when a candidate follows it, and when the candidate is evaluated.
        """
        for event in self._reader.news():
            self._history.take(event)
        standing = self._reader.standing()
        lines = []
        for said in standing.directives:
            effect = self._history.effect(said, standing.taken)
            is_new = self._told.get(said.id) != effect and not effect.startswith(WAITS)
            self._told[said.id] = effect
            if is_new and self._is_listening:
                lines.append(make_printable(f"d{said.id} {effect}"))
        return lines

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()


@contextlib.contextmanager
def _news(path: Path) -> Iterator[None]:
    """Prints effects of all users' directives above the prompt while the user types."""
    import readline

    effects, over = Effects(path), threading.Event()

    def watch() -> None:
        """Prints new effects above the line that is typed, until the end."""
        while not over.wait(LOOK_S):
            for line in effects.news():
                sys.stdout.write(f"\r\x1b[K{line}\n{SIGN}{readline.get_line_buffer()}")
                sys.stdout.flush()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        effects.close()
