"""Sorts items by segment on the CPU: a counting sort whose stretches are counted side by side."""

from __future__ import annotations

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, print_function
from foundry.knowledge.compiler.cpu.space import indent
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, SortKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, affine, loader
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

_MOST_THREADS = 1024  # size of an array in sort.h
_ITEMS_OF_A_THREAD = 8192  # items; fewer are sorted before a second thread is awake


def print_sort(kernel: SortKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a SortKernel.

    `choices` may hold "threads": stretches of items that are counted side by side, each with a table of all segments. A
    value that is not legal for this kernel gives way to the default."""
    tuning = Tuning(choices)
    most = min(device.cores, _MOST_THREADS)
    counts = [1 << i for i in range(most.bit_length()) if 1 << i < most] + [most]
    useful = min(kernel.items // _ITEMS_OF_A_THREAD, 2 * kernel.items // max(kernel.segments, 1))
    default = max([count for count in counts if count <= useful], default=1)
    meaning = "stretches of items that are counted side by side; each has a table of all segments to clear and to read"
    threads = tuning.number("threads", counts, default, "parallel", meaning)
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, lambda view: affine(view.offset, [(view.strides[0], "i")])))
    value = emitter.value(kernel.key)
    more = [(f"int32_t* b_{name}", f"b_{name}") for name in (kernel.starts, kernel.order)]
    more.append(("char* workspace", "workspace"))
    sizes = f"{kernel.items}, {kernel.segments}, {threads}"
    body = [
        "const auto key = [=](int64_t i) __attribute__((always_inline)) -> int64_t {",
        indent([*emitter.lines, f"return (int64_t)({value});"], 1),
        "};",
        "int32_t* const keys = (int32_t*)workspace;",
        f"sort_items({sizes}, key, b_{kernel.starts}, b_{kernel.order}, keys, keys + {kernel.items});",
    ]
    about = f"{kernel.items} items in the order of {kernel.segments} segments"
    return print_function(
        Function(kernel.name, about, body, reads=[kernel.key], stores=(), more=more),
        plan,
        tuning,
        template="sort",
        shared=["rows/sort.h"],
        workspace_bytes=4 * (kernel.items + threads * kernel.segments),
    )
