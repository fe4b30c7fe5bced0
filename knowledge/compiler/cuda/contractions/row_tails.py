"""Tails of matrix products in CUDA: rows of the result, reduced over the columns of each warp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.contractions.tails import Dimension, Joined, state_name
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.launches import Argument, Launch
from foundry.knowledge.compiler.cuda.rows.steps import Accumulator
from foundry.knowledge.compiler.cuda.space import Space, emitter
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Plan, Store
from foundry.knowledge.errors import CannotLower

_SUM = "acc[i][h * 4 + j]"


@dataclass(frozen=True)
class RowLanes:
    """The lanes that share the rows of a block's tile: those whose numbers differ in bits of `masks` share a row,
    `leader` is true of one of them. A warp has `parts` segments of a row, each of `columns`, of which a lane has
    `count` elements: the k-th one is j = k % 4 of the four at `h`, and in `column`. Which of the row's `segments` a
    part is tells `segment`."""

    masks: int
    leader: str
    columns: int
    segments: int
    parts: int
    segment: str
    h: str
    column: str
    count: int


def tensor_lanes(kernel: GemmKernel, tile_n: int, part_n: int) -> RowLanes:
    """The lanes of a row in kernels for tensor cores: two share a row of a part of `part_n` columns.

    Raises CannotLower if a tail's row ends inside eight columns.
    """
    width = kernel.tail.extent[-1] if kernel.tail else kernel.n
    columns = part_n if width == kernel.n else math.gcd(part_n, width)
    if columns % 8:
        raise CannotLower("rows of a tail end inside the eight columns of an instruction")
    segments = math.ceil(kernel.n / tile_n) * tile_n // columns
    h, column = f"part * {columns // 8} + k / 4", "first_n + warp_n + h * 8 + lane % 4 / 2 * 4 + k % 4"
    segment = f"(first_n + warp_n) / {columns} + part"
    parts = part_n // columns
    return RowLanes(2, "(lane & 2) == 0", columns, segments, parts, segment, h, column, columns // 2)


def ordinary_lanes(kernel: GemmKernel, tile_n: int, thread_n: int) -> RowLanes:
    """The lanes of a row in the kernel for the ordinary units: eight share a row, and a warp's columns are apart.

    Raises CannotLower if a tail's rows are parts of the columns.
    """
    if kernel.tail and kernel.tail.extent[-1] != kernel.n:
        raise CannotLower("rows of a tail are parts of the columns")
    warps = tile_n // thread_n // 8
    segment = f"first_n / {tile_n} * {warps} + warp % {warps}"
    columns = tile_n // warps
    segments = math.ceil(kernel.n / tile_n) * warps
    column = f"first_n + h * {tile_n // thread_n * 4} + tx * 4 + k % 4"
    return RowLanes(7, "lane % 8 == 0", columns, segments, 1, segment, "k / 4", column, thread_n)


class RowTail:
    """The text of a product's tail: what it makes of a row in a warp's registers, and the launches behind it."""

    def __init__(
        self, kernel: GemmKernel, plan: Plan, name: str, out: Space, lanes: RowLanes, tile: tuple[int, int], memory: int
    ) -> None:
        tail = kernel.tail
        assert tail is not None
        width = tail.extent[-1]
        if any(extent > 1 for extent in tail.extent[:-1]) or kernel.n % width:
            raise CannotLower("the tail reduces rows, not columns")
        self.kernel, self.plan, self.out, self.lanes, self.tail = kernel, plan, out, lanes, tail
        self.has_edge_m, self.has_edge_n = kernel.m % tile[0] > 0, kernel.n % tile[1] > 0
        self.rows = math.prod(kernel.batch) * kernel.m
        whole = width == kernel.n
        parts = lanes.segments if whole else width // lanes.columns
        strides = _strides((*kernel.batch, kernel.m))
        outer = [Dimension(size, step) for size, step in zip((*kernel.batch, kernel.m), strides, strict=True)]
        outer.append(Dimension(kernel.n // width, parts * self.rows))
        inner = [Dimension(parts, self.rows)]
        states = lanes.segments * self.rows
        self.joined = Joined(name, plan, tail, outer=outer, inner=inner, states=states, memory=memory)
        self.whole = whole

    @property
    def end(self) -> int:
        """The offset in bytes of the workspace behind the states."""
        return self.joined.end

    def slots(self) -> list[tuple[str, Argument]]:
        return self.joined.slots()

    def launches(self) -> list[tuple[str, Launch]]:
        return self.joined.launches()

    def epilogue(self, stores: Sequence[Store], acc: str, guard: str, element_guard: str) -> list[str]:
        """Statements that store four neighbours and replace their sums by the values that are reduced."""
        value = {_SUM: self.tail.value}
        return epilogue_lines(self.out, stores, self.plan, acc, 4, guard, element_guard, value)

    def after_row(self) -> list[str]:
        """The code after a row's columns: reduces each segment of a warp and writes its states to memory."""
        lanes, kernel, items = self.lanes, self.kernel, self.joined.accumulators
        batch = f"batch * {kernel.m} + " if math.prod(kernel.batch) > 1 else ""
        lines = ["#pragma unroll", f"for (int part = 0; part < {lanes.parts}; ++part) {{"]
        lines += [f"const auto column = [&](int k) {{ const int h = {lanes.h}; return {lanes.column}; }};"]
        edges = [*([f"m < {kernel.m}"] if self.has_edge_m else []), *(self._last_column())]
        lines += [f"const auto exists = [&](int k) {{ return {' && '.join(edges) or 'true'}; }};"]
        every = str(not edges).lower()
        for item in items:
            state = state_name(item)
            lines += [
                f"{item.state} {state};",
                f"const auto value_of_{state} = [&](int k) {{",
                *self._value(item),
                "};",
            ]
            kind = f"<{lanes.masks}, {lanes.count}, {every}>"
            if item.indexed:
                at = "column(k)" if self.whole else f"column(k) % {self.tail.extent[-1]}"
                place = f"[&](int k) {{ return (int)({at}); }}"
                lines.append(f"tails::reduce_row_at{kind}({state}, value_of_{state}, exists, {place});")
            else:
                lines.append(f"tails::reduce_row{kind}({state}, value_of_{state}, exists);")
        keep = [self.joined.keep(item, "row_state") for item in items]
        lines += [f"if ({lanes.leader} && m < {kernel.m}) {{"]
        lines += [f"const long long row_state = (long long)({lanes.segment}) * {self.rows} + {batch}m;", *keep]
        return [*lines, "}", "}"]

    def _last_column(self) -> list[str]:
        return [f"column(k) < {self.kernel.n}"] if self.has_edge_n else []

    def _value(self, item: Accumulator) -> list[str]:
        """The body of a function that gives a reduction's value of element k."""
        lines = [f"const int h = {self.lanes.h}, j = k % 4;", f"const {self.out.index} n = column(k) - j;"]
        body = emitter(self.out.with_inner("(n + j)"), [], {"acc": _SUM})
        value = body.value(item.value)
        return [*lines, *body.lines, f"return ({item.value_type})({value});"]


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
