"""Reductions of segments on the CPU without a sort. Items are added in their order, each stretch of them into a table
of all segments, and the tables are combined in order. Memory is read from front to back."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, loops_over, print_function
from foundry.knowledge.compiler.cpu.space import (
    Space,
    choose_threads,
    find_invariants,
    hoist,
    indent,
    register_type,
    traffic_bytes,
)
from foundry.knowledge.compiler.ir.kernels import Named, Plan, PrintedKernel, SegmentKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, affine, loader
from foundry.knowledge.compiler.ir.views import distinct, views_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

COMBINE = {"sum": "a + b", "prod": "a * b", "max": "math::maximum(a, b)", "min": "math::minimum(a, b)", "last": "b"}
_NUMBERS_OF_A_PART = 64 * 1024 // 4  # elements; for as many bytes `choose_threads` wakes a second thread
_MOST_TABLE_BYTES = 1 << 28  # bytes of all tables


def neutral_of(op: str, kind: str) -> str:
    """C text of the neutral element of an operation; any value for "last"."""
    numbers = {"sum": "0", "prod": "1", "last": "0"}
    return f"({kind}){numbers[op]}" if op in numbers else f"{'lowest' if op == 'max' else 'highest'}<{kind}>()"


def print_direct(kernel: SegmentKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a SegmentKernel with a key.

    `choices` may hold "parts" (stretches of items, each with a table of all segments) and "threads". A value that is
    not legal for this kernel gives way to the default."""
    return _DirectPrinter(kernel, plan, device, Tuning(choices)).print_kernel()


class _DirectPrinter:
    """Prints one reduction of segments through tables; declares its tunables in `tuning`."""

    def __init__(self, kernel: SegmentKernel, plan: Plan, device: Device, tuning: Tuning) -> None:
        assert kernel.key is not None
        self._kernel, self._plan, self._tuning, self._key = kernel, plan, tuning, kernel.key
        stored = [store.value for store in kernel.stores]
        self._values = [kernel.value, *stored]
        views = [*views_of(self._values), *[store.view for store in kernel.stores]]
        self._space = Space.merge((2, *kernel.shape[1:]), views, barriers=[1])  # items, or segments, come first
        self._type = register_type(kernel.dtype)
        self._held = "double" if kernel.op in ("sum", "prod") and self._type == "float" else self._type
        self._counts = kernel.op == "last" or any(
            isinstance(node, Named) and node.name == "count" for node in distinct(stored)
        )
        self._inner = math.prod(kernel.shape[1:])
        self._parts = self._choose_parts(device)
        self._threads = choose_threads(tuning, device, traffic_bytes([*self._values, self._key], kernel.stores, plan))

    def _choose_parts(self, device: Device) -> int:
        """Number of tables, by the tunable "parts"."""
        counts = [1 << i for i in range(device.cores.bit_length()) if 1 << i < device.cores] + [device.cores]
        fitting = [count for count in counts if count == 1 or count * 8 * self._table <= _MOST_TABLE_BYTES]
        numbers, each = self._kernel.items * self._inner, self._kernel.items // self._kernel.shape[0]
        useful = min(numbers // _NUMBERS_OF_A_PART, each)
        default = max((count for count in fitting if count <= useful), default=1)
        meaning = "stretches of items that are taken in side by side; each has a table to clear and to join"
        return self._tuning.number("parts", fitting, default, "parallel", meaning)

    def print_kernel(self) -> PrintedKernel:
        """The printed kernel: clear the tables, add items to them, join them."""
        kernel = self._kernel
        body = [*self._setup(), f"#pragma omp parallel{self._threads}", "{"]
        body += [indent([*self._clear(), *self._take_in(), *self._join()], 1), "}"]
        about = f"{kernel.op} of {kernel.items} items in {kernel.shape[0]} segments, as they come"
        reads, workspace = [*self._values, self._key], [("char* workspace", "workspace")]
        return print_function(
            Function(kernel.name, about, body, reads=reads, stores=kernel.stores, more=workspace),
            self._plan,
            self._tuning,
            template="segment_direct",
            pages=False,
            workspace_bytes=8 * self._parts * (self._table + self._counts * kernel.shape[0]),
        )

    @property
    def _table(self) -> int:
        """Number of elements of a table."""
        return self._kernel.shape[0] * self._inner

    def _setup(self) -> list[str]:
        """C++ statements that define `combine` and the pointers to tables and counts."""
        combine = f"{{ (void)a; return {COMBINE[self._kernel.op]}; }}"
        held, inline = self._held, "__attribute__((always_inline))"
        return [
            f"const auto combine = [](const {held} a, const {held} b) {inline} -> {held} {combine};",
            f"{held}* const tables = ({held}*)workspace;",
            f"int64_t* const counts = (int64_t*)(workspace + {8 * self._parts * self._table});",
            "(void)counts;",
        ]

    def _loops(self, body: list[str]) -> list[str]:
        """C++ loops that run `body` for each element `at` of an item, the innermost dimension in vectors."""
        sizes = self._space.sizes[1:]
        if not sizes:
            return ["constexpr int64_t at = 0;", *body]
        names = [f"o{d}" for d in range(len(sizes))]
        at = "0"
        for name, size in zip(names, sizes, strict=True):
            at = name if at == "0" else f"({at}) * {size} + {name}"
        heads = loops_over("o", sizes)
        inner = [f"{heads[-1]} {{", indent([f"const int64_t at = {at};", *body], 1), "}"]
        return [*(f"{head} {{" for head in heads[:-1]), "#pragma omp simd", *inner, *("}" for _ in heads[:-1])]

    def _indices(self, first: str) -> list[str]:
        """C names of the indices: `first` (an item's or segment's), then those of its elements."""
        return [first, *(f"o{d}" for d in range(len(self._space.sizes) - 1))]

    def _take_in(self) -> list[str]:
        """C++ statements by which each thread adds stretches of items to tables of their own."""
        kernel, offset = self._kernel, self._space.offset(self._indices("item"))
        keys = Emitter(CPU_DIALECT, loader(CPU_DIALECT, lambda view: affine(view.offset, [(view.strides[0], "item")])))
        key = keys.value(self._key)
        known = find_invariants([kernel.value], lambda view: any(self._space.strides(view)[1:]))
        before, held = hoist(known, offset, {}, [], "h") if self._space.sizes[1:] else ([], [])
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, known=held, prefix="v")
        text = emitter.value(kernel.value)
        step = [*emitter.lines, f"own[at] = combine(own[at], ({self._held})({text}));"]
        work = [
            *keys.lines,
            f"const int64_t segment = (int64_t)({key});",
            f"if ((uint64_t)segment >= {kernel.shape[0]}) continue;",
            f"{self._held}* __restrict const own = table + segment * {self._inner};",
            *(["++count[segment];"] if self._counts else []),
            *before,
            *self._loops(step),
        ]
        first, last = (f"(int64_t){kernel.items} * {part} / {self._parts}" for part in ("part", "(part + 1)"))
        count = f"int64_t* __restrict const count = counts + (int64_t)part * {kernel.shape[0]};"
        return [
            "#pragma omp for schedule(static)",
            f"for (int part = 0; part < {self._parts}; ++part) {{",
            f"  {self._held}* __restrict const table = tables + (int64_t)part * {self._table};",
            *([indent([count], 1)] if self._counts else []),
            f"  for (int64_t item = {first}; item < {last}; ++item) {{",
            indent(work, 2),
            "  }",
            "}",
        ]

    def _clear(self) -> list[str]:
        """C++ statements that reset all tables to neutral elements; for "last" only their counts."""
        neutral = neutral_of(self._kernel.op, self._held)
        cleared = [] if self._kernel.op == "last" else [("tables", self._parts * self._table, neutral)]
        cleared += [("counts", self._parts * self._kernel.shape[0], "0")] if self._counts else []
        return [
            line
            for name, size, value in cleared
            for line in (
                "#pragma omp for simd schedule(static)",
                f"for (int64_t i = 0; i < {size}; ++i) {name}[i] = {value};",
            )
        ]

    def _join(self) -> list[str]:
        """C++ statements that combine the tables and store the result of each segment."""
        kernel, segments = self._kernel, self._kernel.shape[0]
        offset = self._space.offset(self._indices("segment"))
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {"acc": "acc", "count": "count"})
        emitter.store_all(kernel.stores, offset, self._plan.buffers)
        parts = f"for (int part = 1; part < {self._parts}; ++part)"
        joined = f"combine(total, tables[(int64_t)part * {self._table} + segment * {self._inner} + at])"
        if kernel.op == "last":
            joined = f"counts[(int64_t)part * {segments} + segment] ? {joined} : total"
        step = [f"{self._held} total = tables[segment * {self._inner} + at];"]
        step += [f"{parts} total = {joined};"] if self._parts > 1 else []
        step += [f"const {self._type} acc = ({self._type})total;", "(void)acc;", *emitter.lines]
        count = ["int64_t count = counts[segment];", f"{parts} count += counts[(int64_t)part * {segments} + segment];"]
        return [
            "#pragma omp for schedule(static)",
            f"for (int64_t segment = 0; segment < {segments}; ++segment) {{",
            *([indent(count, 1)] if self._counts else []),
            indent(self._loops(step), 1),
            "}",
        ]
