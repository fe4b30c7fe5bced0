"""A candidate's file as a model sees it: what it need not see is folded to one line each.

Of a file of Foundry's form a model sees the kernels in SOURCE, without the texts that the kernel compiler pastes there
unchanged. If that is still too long, bodies of functions are folded, those of the kernel compiler's own machinery
first. An
answer may use such a line too, and it is unfolded again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from foundry.knowledge.compiler.file.texts import library_texts
from foundry.knowledge.compiler.whole_file import REGION

SOURCE_CHARS = 4_000  # about 1,100 tokens: bodies are folded until a file fits
WHOLE_CHARS = 16_000  # what the tool `show` gives; of files that are still longer only the two ends are shown
MOST_LAUNCHES = 8  # that are told of one file
LEAST_CUT = 500  # characters beyond that are worth a gap
FOLDED_BODY = 300  # characters of a body that are worth a line
LOADER = "# @foundry loader@ stands for the task's model and Foundry's own loader"
BEFORE = "# @foundry begin@ stands for imports and facts about the build"
AFTER = "# @foundry end@ stands for the model, the loader, and forward, which launches the kernels"
_FRAME = re.compile(
    r'\A(# Foundry kernel, target .*?^)(SOURCE = r""".*?"""\n)(.*^# ---- the task\'s model.*)\Z',
    re.MULTILINE | re.DOTALL,
)
_BEGIN_LOADER, _INSIDE_LOADER = "# ---- the task's model", "# ---- building and loading"
_END_LOADER = re.compile(r"^(?:_Pointers = |_PARAMETERS = )", re.MULTILINE)
_OPENING = re.compile(r"[A-Za-z_\[][^\n]*\{\s*\Z")  # a line at file scope that opens a body
_NO_BODY = ("namespace", "class ", "def ", "enum", "SOURCE", "FOUNDRY")
_OF_THE_TASK = re.compile(r"(?:\b|_)k_")  # begins the names that the kernel compiler gives to this task's kernels
_GAP = "\n# ... "  # begins the line that stands for the middle of a file
_LAUNCHES = re.compile(r"^_LAUNCHES_0 = \[.*?^\]", re.MULTILINE | re.DOTALL)
_PASTED = (".h", ".cuh", ".cpp")


def mark(name: str) -> str:
    """The line that stands for a text of the kernel compiler."""
    return f"// @foundry {name}@"


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
        """The text as the model sees it."""
        return "".join(part.seen for part in self.parts)

    def place(self, start: int, end: int) -> tuple[int, int] | None:
        """The range in the file of the characters start..end of the shown text.

        None if one of the two lies inside a line that stands for hidden text.
        """
        first, last = self._real(start, is_end=False), self._real(end, is_end=True)
        return None if first is None or last is None else (first, last)

    def _real(self, position: int, *, is_end: bool) -> int | None:
        """The place in the real file of a position in the folded one; None inside a line that stands for hidden
        text."""
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


def fold(text: str, most: int = SOURCE_CHARS, *, to_judge: bool = False) -> Folded:
    """The file as it is shown: bodies are folded until it has at most `most` characters, as far as that is possible.

    A file that is still far too long shows its two ends only. `to_judge` also shows text that its author could have
    written between Foundry's marks.
    """
    parts = list(_without_loader(Part(text, text)) if to_judge else _without_frame(text))
    for name, pasted in _pasted().items():
        parts = [piece for part in parts for piece in _split(part, mark(name), pasted)]
    parts = _without_bodies(parts, most)
    length = sum(len(part.seen) for part in parts)
    return Folded(tuple(parts if length <= WHOLE_CHARS + LEAST_CUT else _cut(parts, length)))


def _without_frame(text: str) -> Iterator[Part]:
    """A file of the kernel compiler as its kernels; an author's whole file with the lines that it was written with."""
    if frame := _FRAME.match(text):
        before, kernels, after = frame.groups()
        yield from (Part(f"{BEFORE}\n", before), Part(kernels, kernels), Part(f"{AFTER}\n", after))
        return
    for part in _without_regions(text):
        yield from _without_loader(part)


def _without_regions(text: str) -> Iterator[Part]:
    """Yields the parts of an author's whole file; where lines were pasted in, the line that asked for them is seen."""
    at = 0
    for found in REGION.finditer(text):
        before = text[at : found.start()]
        yield from [Part(before, before)] if before else []
        yield Part(found[1], found[0])
        at = found.end()
    if at == 0 or text[at:]:
        yield Part(text[at:], text[at:])


def _without_loader(part: Part) -> Iterator[Part]:
    """Yields the parts of a file of Foundry's form; the loader's code, which all of them hold, is seen as one line."""
    begin = part.real.find(_BEGIN_LOADER) if part.seen == part.real else -1
    inside = part.real.find(_INSIDE_LOADER, begin) if begin >= 0 else -1
    end = _END_LOADER.search(part.real, inside) if inside >= 0 else None
    if end is None:
        yield part
        return
    before, hidden, after = part.real[:begin], part.real[begin : end.start()], part.real[end.start() :]
    yield Part(before, before)
    yield Part(f"{LOADER}\n\n", hidden)
    yield Part(after, after)


@dataclass(frozen=True)
class _Body:
    """The lines of one function or structure between its braces, in one part."""

    part: int
    start: int
    end: int
    of_the_task: bool


def _without_bodies(parts: list[Part], most: int) -> list[Part]:
    """The parts with as many bodies folded as it takes to fit, the kernel compiler's machinery before this task's
    kernels."""
    length = sum(len(part.seen) for part in parts)
    found = [body for number, part in enumerate(parts) if part.seen == part.real for body in _bodies(number, part)]
    chosen: dict[int, list[_Body]] = {}
    for body in sorted(found, key=lambda body: (body.of_the_task, body.start - body.end)):
        if length <= most:
            break
        chosen.setdefault(body.part, []).append(body)
        length -= body.end - body.start - len(_body_mark(0, ""))
    return [piece for number, part in enumerate(parts) for piece in _fold_bodies(part, number, chosen.get(number, []))]


def _bodies(number: int, part: Part) -> Iterator[_Body]:
    """Yields the function bodies in a part of native code that are long enough to fold."""
    lines = part.real.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    opened: int | None = None
    for index, line in enumerate(lines):
        if opened is None and _opens_body(lines, index):
            opened = index
        elif opened is not None and line.startswith("}"):
            begin, end = starts[opened + 1], starts[index]
            if end - begin >= FOLDED_BODY:
                yield _Body(number, begin, end, _OF_THE_TASK.search(lines[opened]) is not None)
            opened = None


def _opens_body(lines: Sequence[str], index: int) -> bool:
    """True if a line at file scope opens the body of a function or struct; namespaces, classes and enums do not count.

    Such a line is "name(...) {", or the last line of a signature over several.
    """
    line = lines[index]
    if line.startswith(_NO_BODY):
        return False
    is_continued = index > 0 and lines[index - 1].rstrip().endswith((",", "("))
    return _OPENING.match(line) is not None or (is_continued and line.rstrip().endswith(") {"))


def _body_mark(number: int, hidden: str) -> str:
    """The line that stands for a hidden body: its number and how many lines it has."""
    return f"  // @foundry body {number}@ {hidden.count(chr(10)):3} lines\n"


def _fold_bodies(part: Part, number: int, bodies: list[_Body]) -> Iterator[Part]:
    """Yields the part cut into pieces, with these bodies folded to one line each."""
    at = 0
    for body in sorted(bodies, key=lambda body: body.start):
        before, hidden = part.real[at : body.start], part.real[body.start : body.end]
        yield Part(before, before)
        yield Part(_body_mark(1000 * number + body.start, hidden), hidden)
        at = body.end
    if at == 0 or part.real[at:]:
        yield Part(part.seen, part.real) if at == 0 else Part(part.real[at:], part.real[at:])


def _split(part: Part, line: str, pasted: str) -> Iterator[Part]:
    """Yields the part in pieces; each occurrence of `pasted` is seen as `line`."""
    if part.seen != part.real or pasted not in part.real:
        yield part
        return
    for number, piece in enumerate(part.real.split(pasted)):
        if number:
            yield Part(line, pasted)
        if piece:
            yield Part(piece, piece)


def _cut(parts: list[Part], length: int) -> list[Part]:
    """The parts with the middle lines hidden; a part that is hidden already goes with the side on which it begins.

    `length` is the count of shown characters.
    """
    shown = "".join(part.seen for part in parts)
    first = shown.rfind("\n", 0, WHOLE_CHARS // 2) + 1
    last = shown.find("\n", length - WHOLE_CHARS // 2) + 1 or length
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
    return [*head, Part(f"{_GAP}{len(hidden)} characters are not shown ...\n", hidden), *tail]


def show(text: str, most: int = SOURCE_CHARS) -> str:
    """The file as a model sees it: of a file of the kernel compiler the code of its kernels alone."""
    shown = fold(text, most).text
    return shown.partition('r"""')[2].rpartition('"""')[0].strip("\n") if shown.startswith(BEFORE) else shown


def language_of(text: str) -> str:
    """The language of the fence around a file as it is shown: "cpp", "cuda", or "python" for a whole file."""
    frame = _FRAME.match(text)
    return "python" if frame is None else "cuda" if "target cuda" in frame[1].partition("\n")[0] else "cpp"


def launches_of(text: str) -> str:
    """How a CUDA file of the kernel compiler launches its kernels, in one line; "" for any other file."""
    table = _LAUNCHES.search(text)
    rows = ast.literal_eval(table[0].partition("=")[2].strip()) if table else []
    told = [
        f"{name} grid {_extents(grid)} block {_extents(block)}" + (f" shared_bytes {shared}" if shared else "")
        for name, grid, block, shared, _ in rows[:MOST_LAUNCHES]
    ]
    told += [f"{len(rows) - MOST_LAUNCHES} more"] if len(rows) > MOST_LAUNCHES else []
    return f"Launches: {'; '.join(told)}." if told else ""


def _extents(extents: Sequence[int]) -> str:
    """A grid or a block without ones at its end."""
    kept = list(extents)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "x".join(map(str, kept))


def code_words(text: str, most: int = SOURCE_CHARS) -> str:
    """The file as it is shown, in its fence; before it how its kernels are launched."""
    told = launches_of(text)
    return f"{told}{chr(10) if told else ''}```{language_of(text)}\n{show(text, most)}\n```"


def show_to_judge(text: str) -> str:
    """The file as an auditor sees it."""
    return fold(text, WHOLE_CHARS, to_judge=True).text


def is_shown_whole(text: str) -> bool:
    """True if a model sees the whole file apart from folded bodies."""
    return not any(part.seen.startswith(_GAP) for part in fold(text).parts)


def outline_of_file(text: str) -> str:
    """The text that replaces a file too long to be shown.

    A model cannot edit a file with gaps, and its two ends would take the room of other sections.
    """
    launches = _LAUNCHES.search(text)
    rows = launches[0].count("\n    (") if launches else 0
    does = f"with {rows} launches a call, " if rows else ""
    return (
        f"Its {len(text)} characters, {does}are too long to be shown: its kernels stand in a list here, and the tool "
        "`show` gives its two ends. Write a kernel of your own, for the whole task if a part of it is far too slow, or "
        "make moves."
    )


def unfold(text: str) -> str:
    """An answer's text with the kernel compiler's texts back in their places."""
    for name, pasted in _pasted().items():
        text = text.replace(mark(name), pasted)
    return text


@cache
def _pasted() -> dict[str, str]:
    """The texts that are pasted into files as they are, by their names."""
    return {name: text.strip() for name, text in library_texts().items() if name.endswith(_PASTED) and text.strip()}
