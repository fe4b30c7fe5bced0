"""A line that is typed below the picture: keys in, a finished line out. Tab completes, arrows move and bring back what
was said before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Completer = Callable[[str], Sequence[str]]  # what the last word of a text may become

ENTER, TAB, ESCAPE, BACKSPACE = ("\r", "\n"), "\t", "\x1b", ("\x7f", "\b")
NAMED = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[3~": "delete",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x01": "home",
    "\x05": "end",
    "\x15": "clear",
    "\x17": "word",
}


def keys_of(read: str) -> list[str]:
    """The keys in what a terminal sent at once: characters, and the names of those that have one."""
    found = []
    while read:
        code = next((code for code in sorted(NAMED, key=len, reverse=True) if read.startswith(code)), read[0])
        found.append(NAMED.get(code, code))
        read = read[len(code) :]
    return found


@dataclass
class Line:
    """The text, the cursor and what was entered before. `offers` are the completions that Tab could not choose from."""

    complete: Completer
    text: str = ""
    cursor: int = 0
    offers: Sequence[str] = ()
    said: list[str] = field(default_factory=list)
    _back: int = 0  # how far `up` has gone

    def press(self, key: str) -> str | None:
        """Takes one key: edits the line, moves, recalls or completes. Returns the finished line on Enter, else None."""
        self.offers = ()
        if key in ENTER:
            return self._enter()
        if key == TAB:
            self._complete()
        elif key in ("up", "down"):
            self._recall(1 if key == "up" else -1)
        elif key in ("left", "right", "home", "end"):
            step = {"left": self.cursor - 1, "right": self.cursor + 1, "home": 0, "end": len(self.text)}[key]
            self.cursor = max(0, min(len(self.text), step))
        elif key in (*BACKSPACE, "delete", "word", "clear"):
            self._delete(key)
        elif len(key) == 1 and key.isprintable():
            self.text = self.text[: self.cursor] + key + self.text[self.cursor :]
            self.cursor += 1
        return None

    def _enter(self) -> str:
        """Empties the line and returns its text, which is remembered."""
        done = self.text
        self.text, self.cursor, self._back = "", 0, 0
        if done.strip() and done not in self.said[-1:]:
            self.said.append(done)
        return done

    def _delete(self, key: str) -> None:
        """Deletes the character before the cursor, the one at it, the word before it, or ("clear") all before it."""
        before, after = self.text[: self.cursor], self.text[self.cursor :]
        if key == "delete":
            after = after[1:]
        elif key == "word":
            before = before.rstrip().rpartition(" ")[0]
            before += " " if before else ""
        else:
            before = before[:-1] if key in BACKSPACE else ""
        self.text, self.cursor = before + after, len(before)

    def _recall(self, step: int) -> None:
        """Shows an earlier line, `step` further back."""
        self._back = max(0, min(len(self.said), self._back + step))
        self.text = self.said[-self._back] if self._back else ""
        self.cursor = len(self.text)

    def _complete(self) -> None:
        """Puts in the common start of all completions of the word before the cursor; if that adds nothing, offers
        them."""
        before, after = self.text[: self.cursor], self.text[self.cursor :]
        found = self.complete(before)
        if not found:
            return
        start = len(before) - len(before.rpartition(" ")[2])
        whole = _shared_start(found) + (" " if len(found) == 1 else "")
        if len(found) > 1 and len(whole) <= len(before) - start:
            self.offers = found
            return
        self.text, self.cursor = before[:start] + whole + after, start + len(whole)


def _shared_start(words: Sequence[str]) -> str:
    """The longest prefix that all words share. `words` must not be empty."""
    first, last = min(words), max(words)
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]
