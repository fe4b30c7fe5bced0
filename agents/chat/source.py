"""A candidate's file as a model sees it: each text that the library pastes into files unchanged is folded to one line.

That saves 7,000 tokens a step and more, in both directions: an answer may use the line too, and it is unfolded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from foundry.knowledge.library.file.texts import library_texts

SOURCE_CHARS = 60_000  # about 15,000 tokens; of longer files only the two ends are shown
_PASTED = (".h", ".cuh")
_WORDS = {"cpu/runtime.h": "cpu runtime header", "cuda/runtime.cuh": "cuda runtime header"}


def mark(name: str) -> str:
    """The line that stands for a text of the library."""
    return f"// @foundry {_WORDS.get(name, name)}@ keep this line: it stands for the library's {name}"


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
    """The file with the library's texts as one line each, and its two ends only when it is still too long."""
    parts = [Part(text, text)]
    for name, pasted in _pasted().items():
        parts = [piece for part in parts for piece in _split(part, mark(name), pasted)]
    length = sum(len(part.seen) for part in parts)
    return Folded(tuple(parts if length <= SOURCE_CHARS else _cut(parts, length)))


def _split(part: Part, line: str, pasted: str) -> Iterator[Part]:
    """A part with each occurrence of a text as its line."""
    if part.seen != part.real or pasted not in part.real:
        yield part
        return
    for number, piece in enumerate(part.real.split(pasted)):
        if number:
            yield Part(line, pasted)
        if piece:
            yield Part(piece, piece)


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
    """An answer's text with the library's texts back in their places."""
    for name, pasted in _pasted().items():
        text = text.replace(mark(name), pasted)
    return text


@cache
def _pasted() -> dict[str, str]:
    """The texts that are pasted into files as they are, by their names."""
    return {name: text.strip() for name, text in library_texts().items() if name.endswith(_PASTED) and text.strip()}
