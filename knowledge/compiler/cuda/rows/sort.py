"""Sorts items by segment in CUDA: a stable sort by digits of a few bits, whose order is the same in every call."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.space import (
    LARGEST_INT,
    Space,
    buffers_of,
    indent,
    index_type,
    list_parameters,
    make_emitter,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, SortKernel
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

WARPS = 4  # warps of a block
STRETCHES = (128, 256, 512, 1024, 2048, 4096)
_DIGIT_BITS = 8
_MOST_STRETCHES = 2048  # one block adds up what they have counted

_FIRST = """\
// @ITEMS@ items in the order of @SEGMENTS@ segments; a key outside comes behind all.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@_first_count(@READS@int* table) {
    const auto key = [&](int i) {
@KEY@
    };
    sorting::count<@WARPS@, @DIGITS@>(key, @ITEMS@, @STRETCH@, @STRETCHES@, 0, table);
}
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@_first_place(@READS@const int* table, int* keys,
                                                                          int* order) {
    const auto key = [&](int i) {
@KEY@
    };
    const auto item = [](int i) { return i; };
    sorting::place<@WARPS@, @DIGITS@>(key, item, @ITEMS@, @STRETCH@, @STRETCHES@, 0, table, keys, order);
}
extern "C" __global__ void __launch_bounds__(1024) @NAME@_add(int* table) {
    sorting::add_up(table, @DIGITS@ * @STRETCHES@);
}
extern "C" __global__ void __launch_bounds__(256) @NAME@_starts(const int* keys, int* starts) {
    sorting::find_starts(keys, @ITEMS@, @SEGMENTS@, starts);
}
"""
_LATER = """\
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@_count(const int* known, int* table, long long shift) {
    const auto key = [=](int i) { return known[i]; };
    sorting::count<@WARPS@, @DIGITS@>(key, @ITEMS@, @STRETCH@, @STRETCHES@, (int)shift, table);
}
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@_place(const int* known, const int* before,
                                                                    const int* table, int* keys, int* order,
                                                                    long long shift) {
    const auto key = [=](int i) { return known[i]; };
    const auto item = [=](int i) { return before[i]; };
    sorting::place<@WARPS@, @DIGITS@>(key, item, @ITEMS@, @STRETCH@, @STRETCHES@, (int)shift, table, keys, order);
}
"""


def print_sort(kernel: SortKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a SortKernel.

    `choices` may hold "stretch", the items that one warp counts and puts in place; a value that is not legal for this
    kernel gives way to the default. Raises CannotLower for 2^30 items or segments."""
    if max(kernel.items, kernel.segments) > LARGEST_INT // 2:
        raise CannotLower(f"sort {kernel.name}: too many items or segments")
    usual = [size for size in STRETCHES if kernel.items <= size * _MOST_STRETCHES]
    default = max(256, usual[0] if usual else STRETCHES[-1])
    tuning, meaning = Tuning(choices, declares_fixed=True), "items that one warp counts and puts in place"
    stretch = tuning.number("stretch", STRETCHES, default, "parallel", meaning)
    stretches = math.ceil(kernel.items / stretch)
    bits = kernel.segments.bit_length()  # keys go up to the number of segments, which is that of those outside
    passes = max(1, math.ceil(bits / _DIGIT_BITS))
    per_pass = max(1, math.ceil(bits / passes))
    name = symbol_of(kernel)
    reads, key = _print_key(kernel)
    signature, arguments = list_parameters(plan, reads, ())
    values = {
        "NAME": name,
        "ITEMS": kernel.items,
        "SEGMENTS": kernel.segments,
        "THREADS": 32 * WARPS,
        "WARPS": WARPS,
        "DIGITS": 1 << per_pass,
        "STRETCH": stretch,
        "STRETCHES": stretches,
        "READS": f"{signature}, " if signature else "",
        "KEY": key,
    }
    text = _FIRST + (_LATER if passes > 1 else "")
    sizes = (kernel.items, kernel.items, kernel.items if passes > 1 else 0, stretches << per_pass)
    made = _launches(kernel, name, arguments, (passes, per_pass, stretches), sizes)
    return print_launches(
        fill(text, values),
        made,
        tuning,
        template="sort",
        shared=["rows/sort.cuh"],
        workspace_bytes=4 * sum(map(_round_up_words, sizes)),
    )


def _round_up_words(words: int) -> int:
    """A number of 32-bit words, rounded up to 256 bytes."""
    return -(-words // 64) * 64


def _print_key(kernel: SortKernel) -> tuple[list[str], str]:
    """(names of the buffers that the key reads, C statements that return the segment of item i; the number of segments
    for a key outside)."""
    found = leaves([kernel.key])
    views = [leaf.view for leaf in found]
    space = Space((kernel.items,), ("i",), {view: view for view in views}, index_type((kernel.items,), views))
    body = make_emitter(space, [], {})
    text = body.value(kernel.key)
    last = [f"const long long wanted = (long long)({text});", f"const long long end = {kernel.segments};"]
    lines = [*body.lines, *last, "return (int)(wanted >= 0 && wanted < end ? wanted : end);"]
    return buffers_of(found, ())[0], indent(lines, 2)


def _launches(
    kernel: SortKernel, name: str, arguments: list[str], shape: tuple[int, int, int], sizes: tuple[int, ...]
) -> list[Launch]:
    """The launches that sort: count, add up and place for each digit, then find where segments begin.

    `shape` is (digits, bits of a digit, stretches), `sizes` the words of four scratch memories. Keys alternate between
    two memories; the order alternates between one and the buffer that has it in the end."""
    passes, per_pass, stretches = shape
    starts = [0]
    for size in sizes[:-1]:
        starts.append(starts[-1] + 4 * _round_up_words(size))
    keys, table = (
        [launches.workspace_argument(starts[0]), launches.workspace_argument(starts[1])],
        launches.workspace_argument(starts[3]),
    )
    orders = [kernel.order, launches.workspace_argument(starts[2])]
    grid, block, one = (math.ceil(stretches / WARPS), 1, 1), (32 * WARPS, 1, 1), (1, 1, 1)
    made: list[Launch] = []
    for turn in range(passes):
        shift, (new, old) = turn * per_pass, (keys[turn % 2], keys[1 - turn % 2])
        order, before = orders[(passes - 1 - turn) % 2], orders[(passes - turn) % 2]
        adding = Launch(f"{name}_add", one, (1024, 1, 1), (table,))
        if turn == 0:
            made += [Launch(f"{name}_first_count", grid, block, (*arguments, table)), adding]
            made.append(Launch(f"{name}_first_place", grid, block, (*arguments, table, new, order)))
        else:
            made += [Launch(f"{name}_count", grid, block, (old, table, shift)), adding]
            made.append(Launch(f"{name}_place", grid, block, (old, before, table, new, order, shift)))
    blocks = math.ceil((kernel.segments + 1) / 256)
    made.append(Launch(f"{name}_starts", (blocks, 1, 1), (256, 1, 1), (keys[(passes - 1) % 2], kernel.starts)))
    return made
