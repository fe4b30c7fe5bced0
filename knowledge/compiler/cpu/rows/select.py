"""The first elements of each row in order (top-k) on the CPU. Elements that may be among them are kept, those behind
the last one found so far are not; then the kept ones are sorted."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, loop_head, loops_over, print_function
from foundry.knowledge.compiler.cpu.space import Space, choose_threads, indent, register_type, traffic_bytes
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, SelectKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, loader
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

_LONGEST_ROW = 1 << 31  # places have 32 bits
_SPARE = 64  # entries kept besides those wanted, at least


def print_select(kernel: SelectKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a SelectKernel.

    `choices` may hold "threads" and "spare" (entries kept besides those wanted, as a multiple of these). Raises
    CannotLower for rows of 2^31 elements or more."""
    if kernel.length >= _LONGEST_ROW:
        raise CannotLower(f"select {kernel.name}: its rows are too long")
    tuning = Tuning(choices)
    values = [kernel.value, *(store.value for store in kernel.stores)]
    threads = choose_threads(tuning, device, traffic_bytes(values, kernel.stores, plan))
    room, call = _print_call(kernel, tuning)
    kept = kernel.count - kernel.first
    heads = loops_over("o", kernel.outer)
    heads = heads or [loop_head("only", 1)]
    kind = register_type(kernel.dtype)
    work = [
        f"const auto value = [&](int64_t i) __attribute__((always_inline)) -> {kind} {{",
        indent(_print_value(kernel), 1),
        "};",
        call,
        f"for (int64_t r = 0; r < {kept}; ++r) {{",
        indent(_print_stores(kernel, plan), 1),
        "}",
    ]
    entry = f"selecting::Key<{kind}>::Entry"
    collapse = f" collapse({len(heads)})" if len(heads) > 1 else ""
    body = [
        f"#pragma omp parallel{threads}",
        "{",
        f"  std::unique_ptr<{entry}[]> memory(new {entry}[{room}]);",
        f"  {entry}* const kept = memory.get();",
        f"  #pragma omp for{collapse} schedule(static)",
        *("  " + head for head in heads[:-1]),
        f"  {heads[-1]} {{",
        indent(work, 2),
        "  }",
        "}",
    ]
    about = f"{kept} of each of {math.prod(kernel.outer)} rows of {kernel.length}, in order"
    function = Function(kernel.name, about, body, values, kernel.stores)
    shared = ["rows/select.h"]
    return print_function(function, plan, tuning, template="select", shared=shared, pages=False)


def _print_call(kernel: SelectKernel, tuning: Tuning) -> tuple[int, str]:
    """(number of entries with room, C++ call that puts the first of them in order). May declare the tunable "spare"."""
    kind, largest = register_type(kernel.dtype), "true" if kernel.largest else "false"
    if kernel.ties != "first":
        assert kernel.first == 0
        is_sorted = "true" if kernel.ties == "as in topk" else "false"
        call = (
            f"selecting::select_as_topk<{kind}, {largest}, {is_sorted}>(value, {kernel.length}, {kernel.count}, kept);"
        )
        return (kernel.count + 1 if 64 * kernel.count <= kernel.length else kernel.length), call
    meaning = "times the wanted entries, kept besides them: more are thrown away at once, less often"
    spare = tuning.number("spare", (1, 2, 4, 8), 1, "algorithm", meaning)
    room = min(kernel.length, kernel.count + max(spare * kernel.count, _SPARE))
    sizes = f"{kernel.length}, {kernel.first}, {kernel.count}, {room}"
    return room, f"selecting::select<{kind}, {largest}>(value, {sizes}, kept);"


def _space(kernel: SelectKernel, last: int) -> Space:
    """The space of the rows, unmerged, with `last` elements each."""
    return Space((*kernel.outer, last), tuple(range(len(kernel.outer) + 1)))


def _list_names(kernel: SelectKernel, last: str) -> list[str]:
    """C names of the indices: those of the row, then `last`."""
    return [*(f"o{d}" for d in range(len(kernel.outer))), last]


def _print_value(kernel: SelectKernel) -> list[str]:
    """C++ statements that return element i of a row."""
    offset = _space(kernel, kernel.length).offset(_list_names(kernel, "i"))
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, prefix="v")
    text = emitter.value(kernel.value)
    return [*emitter.lines, f"return {text};"]


def _print_stores(kernel: SelectKernel, plan: Plan) -> list[str]:
    """C++ statements that store element r of those found."""
    offset = _space(kernel, kernel.count - kernel.first).offset(_list_names(kernel, "r"))
    emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {"acc": "acc", "index": "index"})
    emitter.store_all(kernel.stores, offset, plan.buffers)
    return [
        f"const int64_t index = selecting::place(kept[{kernel.first} + r]);",
        f"const {register_type(kernel.dtype)} acc = value(index);",
        *emitter.lines,
    ]
