"""Kernels that differ only in names and sizes share one text, so that fifty alike layers compile as fast as one.

Sizes that differ become arguments of the launches where that costs no time: strides, offsets and ends, as they are
multiplied, added and compared. Divisors, ends of loops, sizes of arrays and template arguments stay numbers; kernels
that differ in one of these keep texts of their own. Tables that differ are joined to one array, and the index where a
kernel's own table begins is an argument."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.cuda.launches import KERNEL_PREFIX, Launch, decode, encode, symbol_of
from foundry.knowledge.compiler.ir.kernels import Kernel, PrintedKernel, TorchCall

# Buffers, and what row kernels call their states, values and partial states; no text of the kernel compiler's has such
# a name.
_OWN_NAME = re.compile(r"\b([bsaSnwj])_\w+")
_HEAD = re.compile(r'^extern "C" __global__ [^{;]*?\b(\w+)\(([^()]*)\)\s*\{', re.MULTILINE)
# 0 and 1 stay, because compilers make use of them, and so do numbers before a division.
_NUMBER = r"(?:[2-9]|[1-9]\d+)(?:LL)?\b"
# Variables of kernels that hold a size: their values may become arguments even if they divide.
_NAMED = ("all_steps", "split_steps", "all_splits", "pieces", "each", "blocks", "point", "chunks", "channels")
_SIZE = re.compile(
    rf"(?<=\* ){_NUMBER}(?=[\]),;]| [-+<?&|])"  # a stride
    rf"|(?<=[-+] ){_NUMBER}(?=[\]),;]| [-+<?&|])"  # an offset
    rf"|(?:(?<= < )|(?<= >= )){_NUMBER}(?=[);]| [?&|])"  # an end
    rf"|(?<=\bend_step = ){_NUMBER}(?=[,;])" + "".join(rf"|(?<=\b{name} = )\d+(?=[,;])" for name in _NAMED)
)
# Tables of kernels; no function of theirs but the kernels themselves may read one that is to be shared.
_TABLE = re.compile(r"^__device__ const int (\w+)\[(\d+)\] = \{([^{}]*)\};$", re.MULTILINE)
# Lines whose numbers the compiler needs: loops that it unrolls, types, arrays, shared memory.
_FIXED = re.compile(
    r"#|//|\b(?:for|constexpr|using|struct|template|static_assert|__shared__|asm|SHARED_STATES)\b"
    r"|^\s*[A-Za-z][\w:<>, ]*[ *&]\w+\[[^=(]*[;{=]"
    r"|\w<[^<>;]* [-+*/] \d|[/%] \("
)


@dataclass(frozen=True)
class _Place:
    """A place where texts may differ: a size, or the number that goes before the index of a table's element."""

    kernel: str  # the function that has it
    begin: int
    end: int
    table: str = ""


@dataclass(frozen=True)
class _Text:
    """A printed kernel, its function's name, the elements of its tables by table name, and the places that may
    differ."""

    printed: PrintedKernel
    own: str
    tables: dict[str, str]
    places: tuple[_Place, ...]

    def value(self, place: _Place) -> str:
        """The text at a place: a number, or all elements of the table that the place indexes."""
        return self.tables[place.table] if place.table else self.printed.functions[place.begin : place.end]

    @property
    def key(self) -> str:
        """A text that is equal for kernels that can share one: buffers and values are numbered in order of appearance,
        and sizes, elements of tables and the kernel's own name are left out."""
        text, kept, behind = self.printed.functions, [], 0
        for place in self.places:
            kept += [text[behind : place.begin], "LL@" if text[place.begin : place.end].endswith("LL") else "@"]
            behind = place.end
        text = _TABLE.sub(
            lambda table: table[1] if table[1] in self.tables else table[0], "".join(kept) + text[behind:]
        )
        numbers: dict[str, str] = {}
        text = re.sub(rf"\b{self.own}(?=_|\b)", f"{KERNEL_PREFIX}@", text)
        return _OWN_NAME.sub(lambda match: numbers.setdefault(match[0], f"{match[1]}_{len(numbers)}"), text)


def share_texts(
    steps: Sequence[Kernel | TorchCall], kernels: Sequence[PrintedKernel | None]
) -> tuple[PrintedKernel | None, ...]:
    """The printed kernels of a plan; kernels that are alike get the text and kernel names of the first of them.

    Kernels of an author stay as they are.
    """
    alike: dict[str, dict[int, _Text]] = {}
    for position, (step, printed) in enumerate(zip(steps, kernels, strict=True)):
        if printed is not None and not printed.template.startswith("authored_"):
            own = symbol_of(step)
            text = _find_places(printed, own)
            alike.setdefault(text.key, {})[position] = text
    found = list(kernels)
    for group in alike.values():
        for position, printed in zip(group, _shared(list(group.values())), strict=True):
            found[position] = printed
    return tuple(found)


def _find_places(printed: PrintedKernel, own: str) -> _Text:
    """The kernel's text with all places where it may differ from an alike kernel. `own` is its function's name. A table
    has places only if kernels alone read it."""
    functions = printed.functions
    bodies = [(head[1], head.end(), _end_of_body(functions, head.end())) for head in _HEAD.finditer(functions)]
    places = [_Place(kernel, *size) for kernel, begin, end in bodies for size in _sizes(functions, begin, end)]
    tables: dict[str, str] = {}
    for table in _TABLE.finditer(functions):
        found = [
            _Place(kernel, begin + read.end(), begin + read.end(), table[1])
            for kernel, begin, end in bodies
            for read in re.finditer(rf"\b{table[1]}\[", functions[begin:end])
        ]
        if len(found) == len(re.findall(rf"\b{table[1]}\b", functions)) - 1:
            tables[table[1]] = table[3]
            places += found
    return _Text(printed, own, tables, tuple(sorted(places, key=lambda place: place.begin)))


def _sizes(functions: str, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields (begin, end) of each number in a kernel's body that could be an argument instead."""
    at = begin
    for line in functions[begin:end].splitlines(keepends=True):
        if not _FIXED.search(line):
            yield from ((at + size.start(), at + size.end()) for size in _SIZE.finditer(line))
        at += len(line)


def _end_of_body(text: str, begin: int) -> int:
    """The position of the brace that closes the body which begins at `begin`; the text's end if there is none."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return len(text)


def _shared(group: list[_Text]) -> Iterator[PrintedKernel]:
    """Yields the kernels of a group, in order, all with the functions of the first one and launches of their own.

    Numbers that are equal in all of them stay; those that differ in the same way become one argument."""
    first = group[0]
    given: dict[tuple[str, tuple[str, ...]], str] = {}  # (kernel, the size in each of the group) -> argument
    joined: dict[str, str] = {}
    kept, behind = [], 0
    for number, place in enumerate(first.places):
        values = tuple(text.value(text.places[number]) for text in group)
        if len(set(values)) == 1:
            continue
        if place.table:
            joined[place.table], values = _join_tables(values)
        name = given.setdefault((place.kernel, values), f"given_{len(given)}")
        kept += [first.printed.functions[behind : place.begin], f"{name} + " if place.table else name]
        behind = place.end
    functions = "".join(kept) + first.printed.functions[behind:]
    functions = _TABLE.sub(lambda table: _with_elements(table, joined), functions)
    functions = _HEAD.sub(lambda head: _with_parameters(head, given), functions)
    for own, text in enumerate(group):
        more: dict[str, list[int]] = {}
        for kernel, values in given:
            more.setdefault(kernel, []).append(int(values[own].removesuffix("LL")))
        launches = [_of_first(launch, text.own, first.own, more) for launch in decode(text.printed.call)]
        yield replace(text.printed, functions=functions, call=encode(launches))


def _join_tables(tables: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(elements of all different tables as one text, index as text at which each given table begins)."""
    begins: dict[str, int] = {}
    total = 0
    for table in tables:
        if table not in begins:
            begins[table] = total
            total += table.count(",") + 1
    return ", ".join(begins), tuple(str(begins[table]) for table in tables)


def _with_elements(table: re.Match[str], joined: dict[str, str]) -> str:
    """The declaration of a table, with the elements of the joined table if it was joined."""
    elements = joined.get(table[1])
    if elements is None:
        return table[0]
    return f"__device__ const int {table[1]}[{elements.count(',') + 1}] = {{{elements}}};"


def _with_parameters(head: re.Match[str], given: dict[tuple[str, tuple[str, ...]], str]) -> str:
    """The head of a kernel function, with a parameter added for each of its numbers that became an argument."""
    added = "".join(
        f", {'long long' if values[0].endswith('LL') else 'int'} {name}"
        for (kernel, values), name in given.items()
        if kernel == head[1]
    )
    end = head.end(2) - head.start()
    return head[0][:end] + added + head[0][end:]


def _of_first(launch: Launch, own: str, first: str, more: dict[str, list[int]]) -> Launch:
    """The launch as one of the first kernel's functions: `own` is the function name it had, `first` the name it gets.
    `more` has the arguments to append, by function."""
    kernel = first + launch.kernel.removeprefix(own)
    return replace(launch, kernel=kernel, args=(*launch.args, *more.get(kernel, ())))
