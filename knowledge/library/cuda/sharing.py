"""Kernels that differ in names and sizes only have one text: fifty layers that are alike compile as one of them does.

Sizes that differ become arguments of the launches where that costs no time: strides, offsets and ends, as they are
multiplied, added and compared. Divisors, ends of loops, sizes of arrays and arguments of templates stay numbers, so
kernels that differ in one of these have texts of their own; so has a kernel that is like no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.library.cuda.launches import KERNEL_PREFIX, Launch, decode, encode
from foundry.knowledge.library.cuda.space import identifier
from foundry.knowledge.library.ir.kernels import Kernel, PrintedKernel, TorchCall

# Buffers, and what row kernels call their states, values and partial states; no text of the library's has such a name.
_OWN_NAME = re.compile(r"\b([bsaSnwj])_\w+")
_HEAD = re.compile(r'^extern "C" __global__ [^{;]*?\b(\w+)\(([^()]*)\)\s*\{', re.MULTILINE)
# Not 0 and 1, which compilers make use of, nor what is divided afterwards.
_NUMBER = r"(?:[2-9]|[1-9]\d+)(?:LL)?\b"
_SIZE = re.compile(
    rf"(?<=\* ){_NUMBER}(?=[\]),;]| [-+<?&|])"  # a stride
    rf"|(?<=[-+] ){_NUMBER}(?=[\]),;]| [-+<?&|])"  # an offset
    rf"|(?:(?<= < )|(?<= >= )){_NUMBER}(?=[);]| [?&|])"  # an end
    rf"|(?:(?<=\bend_step = )|(?<=\bsteps = )){_NUMBER}(?=[,;])"
)
# Lines whose numbers the compiler needs: loops that it unrolls, types, arrays, shared memory.
_FIXED = re.compile(
    r"#|//|\b(?:for|constexpr|using|struct|template|static_assert|__shared__|asm|SHARED_STATES)\b"
    r"|^\s*[A-Za-z][\w:<>, ]*[ *&]\w+\[[^=(]*[;{=]"
    r"|\w<[^<>;]* [-+*/] \d|[/%] \("
)


@dataclass(frozen=True)
class _Text:
    """A printed kernel, its own name, and its sizes: (the function that has it, where it stands)."""

    printed: PrintedKernel
    own: str
    sizes: tuple[tuple[str, int, int], ...]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self.printed.functions[begin:end] for _, begin, end in self.sizes)

    @property
    def key(self) -> str:
        """The text without what kernels of one text may differ in: the kernel's name, its buffers' and values' in
        their order of appearance, and its sizes."""
        text, kept, behind = self.printed.functions, [], 0
        for _, begin, end in self.sizes:
            kept += [text[behind:begin], "LL@" if text[begin:end].endswith("LL") else "@"]
            behind = end
        numbers: dict[str, str] = {}
        text = re.sub(rf"\b{self.own}(?=_|\b)", f"{KERNEL_PREFIX}@", "".join(kept) + text[behind:])
        return _OWN_NAME.sub(lambda match: numbers.setdefault(match[0], f"{match[1]}_{len(numbers)}"), text)


def share_texts(
    steps: Sequence[Kernel | TorchCall], kernels: Sequence[PrintedKernel | None]
) -> tuple[PrintedKernel | None, ...]:
    """The printed kernels of a plan, those that are alike with the text and the kernels' names of the first of them.
    What an author wrote stays as it is."""
    alike: dict[str, dict[int, _Text]] = {}
    for position, (step, printed) in enumerate(zip(steps, kernels, strict=True)):
        if printed is not None and not printed.template.startswith("authored_"):
            own = KERNEL_PREFIX + identifier(step.name)
            text = _Text(printed, own, tuple(_sizes(printed.functions)))
            alike.setdefault(text.key, {})[position] = text
    found = list(kernels)
    for group in alike.values():
        for position, printed in zip(group, _shared(list(group.values())), strict=True):
            found[position] = printed
    return tuple(found)


def _sizes(functions: str) -> Iterator[tuple[str, int, int]]:
    """Numbers in the bodies of kernels that may as well be arguments: (kernel, begin, end)."""
    for head in _HEAD.finditer(functions):
        at = head.end()
        for line in functions[at : _end_of_body(functions, at)].splitlines(keepends=True):
            if not _FIXED.search(line):
                yield from ((head[1], at + size.start(), at + size.end()) for size in _SIZE.finditer(line))
            at += len(line)


def _end_of_body(text: str, begin: int) -> int:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return len(text)


def _shared(group: list[_Text]) -> Iterator[PrintedKernel]:
    """Kernels that are alike as launches of the first one's functions: sizes that are the same in all of them stay
    numbers, and those that differ in the same way are one argument."""
    first = group[0]
    given: dict[tuple[str, tuple[str, ...]], str] = {}  # (kernel, the size in each of the group) -> argument
    kept, behind = [], 0
    for (kernel, begin, end), values in zip(
        first.sizes, zip(*[text.values for text in group], strict=True), strict=True
    ):
        if len(set(values)) > 1:
            kept += [first.printed.functions[behind:begin], given.setdefault((kernel, values), f"given_{len(given)}")]
            behind = end
    functions = _HEAD.sub(lambda head: _with_parameters(head, given), "".join(kept) + first.printed.functions[behind:])
    for place, text in enumerate(group):
        more: dict[str, list[int]] = {}
        for kernel, values in given:
            more.setdefault(kernel, []).append(int(values[place].removesuffix("LL")))
        launches = [_of_first(launch, text.own, first.own, more) for launch in decode(text.printed.call)]
        yield replace(text.printed, functions=functions, call=encode(launches))


def _with_parameters(head: re.Match[str], given: dict[tuple[str, tuple[str, ...]], str]) -> str:
    added = "".join(
        f", {'long long' if values[0].endswith('LL') else 'int'} {name}"
        for (kernel, values), name in given.items()
        if kernel == head[1]
    )
    end = head.end(2) - head.start()
    return head[0][:end] + added + head[0][end:]


def _of_first(launch: Launch, own: str, first: str, more: dict[str, list[int]]) -> Launch:
    kernel = first + launch.kernel.removeprefix(own)
    return replace(launch, kernel=kernel, args=(*launch.args, *more.get(kernel, ())))
