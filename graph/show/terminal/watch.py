"""Shows a run in a terminal as it goes, from its log, with a line to type on; or prints its plain lines."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from foundry.agents.expert import experts
from foundry.graph.run.opening import Parts
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.terminal.line import ESCAPE, Line, keys_of
from foundry.graph.show.terminal.plain import PlainLines
from foundry.graph.show.terminal.reader import RunReader
from foundry.graph.show.terminal.scene import Scene, Standing
from foundry.graph.show.terminal.screen import Below, draw
from foundry.graph.show.words.completion import Names, complete
from foundry.graph.show.words.conversation import Conversation
from foundry.knowledge.errors import FoundryError

T = TypeVar("T")
REFRESH_S = 1.0  # seconds between pictures while the user does not type
CLOCK_S = 2.0  # seconds between pictures while the run has no events either
KEYS_S = 0.05
LEAVE = ("exit", "quit", "q")


def can_draw(console: Console) -> bool:
    """True if the console is a terminal that can do more than print lines."""
    return console.is_terminal and not console.is_dumb_terminal


def watch_plain(
    path: Path,
    print_line: Callable[[str], None],
    is_over: Callable[[], bool] | None = None,
    *,
    verbose: bool = False,
) -> None:
    """Prints a line for every evaluation, past ones first, until no process works on the run any more."""
    reader = RunReader(path)
    lines = PlainLines(Scene(reader.request), print_line, reader.run if verbose else None)
    try:
        while True:
            is_last = not reader.standing().is_active if is_over is None else is_over()
            for event in reader.news():
                lines.take(event)
            if is_last:
                return
            time.sleep(REFRESH_S)
    finally:
        reader.close()


@dataclass
class Window:
    """The live view in a terminal; with `typing` it reads the user's lines there."""

    console: Console
    path: Path
    typing: bool = True
    below: Below = field(default_factory=Below)

    def __post_init__(self) -> None:
        """Opens the run and reads where it stands; draws nothing yet."""
        self._reader = RunReader(self.path)
        self._scene = Scene(self._reader.request)
        self._standing: Standing = self._reader.standing()
        self._line = Line(lambda text: self._completions(text))
        self._speaker = Speaker(self.path)
        self._names: Future[Names] | None = None
        self._answer: Future[str] | None = None
        self._left = threading.Event()
        self._shown = ""
        self._next = 0.0

    @property
    def is_over(self) -> bool:
        """True if no process works on the run any more."""
        return not self._standing.is_active

    def show(self, *, until_over: bool) -> None:
        """Draws until `leave` is called, the user leaves, or, if asked for, the run is over."""
        typed = _raw_keys() if self.typing else contextlib.nullcontext()
        picture = Live(
            console=self.console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        with typed, picture as live:
            while not self._left.is_set():
                self._take_keys()
                self._take_answer()
                if time.monotonic() >= self._next:
                    self._refresh(live)
                    if until_over and self.is_over and not self.below.reply and not self._line.text:
                        return

    def leave(self) -> None:
        """Ends `show` soon, from any thread."""
        self._left.set()

    def close(self) -> None:
        """Closes the run, and the speaker unless an answer is under way."""
        if self._answer is None:
            self._speaker.close()
        self._reader.close()

    def _refresh(self, live: Live) -> None:
        """Reads new events and draws the picture if it has changed; sets when to look next, sooner while the run
        works."""
        news = self._reader.news()
        for event in news:
            self._scene.take(event)
        self._standing = self._reader.standing()
        width, height = self.console.size
        self.below.typed = self._line.text if self.typing else None
        self.below.cursor, self.below.offers = self._line.cursor, self._line.offers
        lines = draw(self._scene, self._standing, self.below, now=time.time(), width=width, height=height)
        picture = Text("\n").join(lines)
        shown = f"{picture.plain}{self._line.cursor}"
        if shown != self._shown:
            self._shown = shown
            live.update(picture, refresh=True)
        self._next = time.monotonic() + (REFRESH_S if news or self._standing.is_active else CLOCK_S)

    def _take_keys(self) -> None:
        """Waits for keys until the next refresh and handles them; Ctrl-D leaves."""
        if not self.typing:
            self._left.wait(KEYS_S)
            return
        number = sys.stdin.fileno()
        if not select.select([number], [], [], min(KEYS_S * 4, max(0.0, self._next - time.monotonic())))[0]:
            return
        read = os.read(number, 4096)
        if not read or read == b"\x04":
            self._left.set()
        for key in keys_of(read.decode(errors="replace")):
            self._press(key)
        self._next = 0.0

    def _press(self, key: str) -> None:
        """Handles a key: pages through the reply, clears it, or edits the line."""
        if key in ("page up", "page down"):
            self.below.first += (-1 if key == "page up" else 1) * max(1, self.console.size.height // 2)
        elif key == ESCAPE:
            self.below.reply = []
        elif (said := self._line.press(key)) is not None:
            self._take_entered(said.strip())

    def _take_entered(self, line: str) -> None:
        """Handles an entered line: leaves, or begins to answer it in the background."""
        self.below.first = 0
        if not line:
            self.below.reply = []
        elif line in LEAVE:
            self._left.set()
        elif self._answer is None:
            self.below.reply = ["..."]
            self._answer = _begin(lambda: self._speaker.reply_to(line))

    def _take_answer(self) -> None:
        """Shows the answer once it is there."""
        if self._answer is not None and self._answer.done():
            self.below.reply, self.below.first = self._answer.result().splitlines(), 0
            self._answer, self._next = None, 0.0

    def _completions(self, text: str) -> Sequence[str]:
        """The completions of a line. The run's names are read at the first call, in a thread, because that is slow."""
        if self._names is None:
            self._names = _begin(self._speaker.names)
        names = self._names.result() if self._names.done() else Names()
        return complete(text, names, tuple(experts()))


def _begin(work: Callable[[], T]) -> Future[T]:
    """Runs `work` in a daemon thread, so that the program can end before it."""
    found: Future[T] = Future()
    threading.Thread(target=lambda: found.set_result(work()), daemon=True).start()
    return found


class Speaker:
    """The user's lines from the live view to a run; an answer may take a while."""

    def __init__(self, path: Path) -> None:
        """For the run in this folder; the conversation is opened when it is first needed."""
        self._path = path
        self._conversation: Conversation | None = None

    def reply_to(self, line: str) -> str:
        """The chat's reply to a line; for an error its one line."""
        try:
            return self._open().say(line).text
        except FoundryError as error:
            return str(error)

    def names(self) -> Names:
        """The run's names for completion; empty if it cannot be read."""
        try:
            return self._open().names()
        except FoundryError:
            return Names()

    def _open(self) -> Conversation:
        """The conversation with the run, opened when first needed."""
        if self._conversation is None:
            self._conversation = Conversation(RunDirectory.inspect(self._path), Parts())
        return self._conversation

    def close(self) -> None:
        """Closes the run, if a conversation was opened."""
        if self._conversation is not None:
            self._conversation.run.close()


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Keys come one by one and are not echoed; Ctrl-C stays a signal. The terminal is as it was afterwards."""
    number = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


class Beside:
    """The live view beside a search in the same process: a thread of its own draws from the log. It begins when the
    run's folder is known."""

    def __init__(self, console: Console) -> None:
        """Shows nothing until the run's folder is known."""
        self._console = console
        self._window: Window | None = None
        self._thread: threading.Thread | None = None
        self._path: Path | None = None

    def begin(self, path: Path) -> None:
        """Starts the thread that draws the run in this folder."""
        self._path = path
        self._window = Window(self._console, path, typing=sys.stdin.isatty())
        self._thread = threading.Thread(target=self._window.show, kwargs={"until_over": False}, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread and closes the view."""
        if self._window is not None and self._thread is not None:
            self._window.leave()
            self._thread.join()
            self._window.close()
            self._window = self._thread = None

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Leaves the terminal to somebody else."""
        self.end()
        try:
            yield
        finally:
            if self._path is not None:
                self.begin(self._path)
