"""A candidate's file as a model sees it: the library's runtime header, the same in every file, is folded to one line.

That saves about 7,000 tokens a step in both directions: an answer may use the line too, and it is unfolded again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from foundry.knowledge.library.file.texts import read_library_text

SOURCE_CHARS = 60_000  # about 15,000 tokens; of longer files only the two ends are shown
_HEADERS = {"cpu": "cpu/runtime.h", "cuda": "cuda/runtime.cuh"}


def mark(target: str) -> str:
    """The line that stands for a target's runtime header."""
    return f"// @foundry {target} runtime header@ keep this line: it stands for the library's {_HEADERS[target]}"


@dataclass(frozen=True)
class Part:
    """A piece of a file: as a model sees it, and as it stands in the file."""

    seen: str
    real: str


@dataclass(frozen=True)
class Folded:
    """A file as a model sees it, and the way back."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.seen for part in self.parts)

    def place(self, start: int, end: int) -> tuple[int, int] | None:
        """Where in the file the characters start..end of the shown text stand; None when they end inside a line that
        stands for hidden text."""
        first, last = self._real(start, is_end=False), self._real(end, is_end=True)
        return None if first is None or last is None else (first, last)

    def _real(self, position: int, *, is_end: bool) -> int | None:
        seen = real = 0
        for part in self.parts:
            after = seen + len(part.seen)
            if position < after or (is_end and position == after):
                if part.seen == part.real:
                    return real + position - seen
                return {seen: real, after: real + len(part.real)}.get(position)
            seen, real = after, real + len(part.real)
        return real if position == seen else None

    def restore(self, text: str) -> str:
        """The answer's text with each marking line replaced by the text that it hid."""
        for part in self.parts:
            if part.seen != part.real:
                text = text.replace(part.seen, part.real)
        return unfold(text)


def fold(text: str) -> Folded:
    """The file with its runtime header as one line, and its two ends only when it is still too long."""
    parts = [Part(text, text)]
    for target in _HEADERS:
        header = _header(target)
        before, found, after = text.partition(header) if header else (text, "", "")
        if found:
            parts = [Part(before, before), Part(mark(target), header), Part(after, after)]
            break
    length = sum(len(part.seen) for part in parts)
    return Folded(tuple(parts if length <= SOURCE_CHARS else _cut(parts, length)))


def _cut(parts: list[Part], length: int) -> list[Part]:
    """The parts with the middle hidden; a part that is hidden already goes with the side on which it begins."""
    first, last = SOURCE_CHARS // 2, length - SOURCE_CHARS // 2
    head: list[Part] = []
    middle: list[Part] = []
    tail: list[Part] = []
    at = 0
    for part in parts:
        end = at + len(part.seen)
        if part.seen != part.real:
            (head if at < first else middle if at < last else tail).append(part)
        else:
            cuts = [min(max(cut - at, 0), len(part.seen)) for cut in (0, first, last)] + [len(part.seen)]
            for side, start, stop in zip((head, middle, tail), cuts, cuts[1:], strict=False):
                side += [Part(part.seen[start:stop], part.seen[start:stop])] if stop > start else []
        at = end
    hidden = "".join(part.real for part in middle)
    return [*head, Part(f"\n# ... {len(hidden)} characters are not shown ...\n", hidden), *tail]


def show(text: str) -> str:
    """The file as a model sees it."""
    return fold(text).text


def unfold(text: str) -> str:
    """An answer's text with the runtime header back in its place."""
    for target in _HEADERS:
        text = text.replace(mark(target), _header(target))
    return text


@cache
def _header(target: str) -> str:
    return read_library_text(_HEADERS[target]).strip()
