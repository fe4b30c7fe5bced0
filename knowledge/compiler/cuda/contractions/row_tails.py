"""Tails of matrix products in CUDA: rows of the result are reduced, each warp over its own columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.contractions.tails import Dimension, Joined, state_name
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.launches import Argument, Launch
from foundry.knowledge.compiler.cuda.rows.steps import Accumulator
from foundry.knowledge.compiler.cuda.space import Space, make_emitter
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Plan, Store
from foundry.knowledge.errors import CannotLower

_SUM = "acc[i][h * 4 + j]"


@dataclass(frozen=True)
class RowLanes:
    """The lanes of a warp that share a row of a block's tile, and their elements of it.

    - `masks`: bits in which the numbers of lanes that share a row differ; `leader`: C test that is true of one of them
    - `parts`: segments of a row in a warp, each of `columns` columns; `segments`: those of the whole row
    - `segment`: C text of the number in the row of segment `part`
    - `count`: elements of a segment in a lane; `h` and `column`: C texts of where element k is among the sums (with
      j = k % 4) and of its column"""

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

    Raises CannotLower if a tail's row ends inside eight columns."""
    width = kernel.tail.extent[-1] if kernel.tail else kernel.n
    columns = part_n if width == kernel.n else math.gcd(part_n, width)
    if columns % 8:
        raise CannotLower("rows of a tail end inside the eight columns of an instruction")
    segments = math.ceil(kernel.n / tile_n) * tile_n // columns
    h, column = f"part * {columns // 8} + k / 4", "first_n + warp_n + h * 8 + lane % 4 / 2 * 4 + k % 4"
    segment = f"(first_n + warp_n) / {columns} + part"
    parts = part_n // columns
    return RowLanes(
        2,
        "(lane & 2) == 0",
        columns,
        segments=segments,
        parts=parts,
        segment=segment,
        h=h,
        column=column,
        count=columns // 2,
    )


def ordinary_lanes(kernel: GemmKernel, tile_n: int, thread_n: int) -> RowLanes:
    """The lanes of a row in the kernel for the ordinary units: eight share a row, and a warp's columns are apart.

    Raises CannotLower if a tail's rows are parts of the columns."""
    if kernel.tail and kernel.tail.extent[-1] != kernel.n:
        raise CannotLower("rows of a tail are parts of the columns")
    warps = tile_n // thread_n // 8
    segment = f"first_n / {tile_n} * {warps} + warp % {warps}"
    columns = tile_n // warps
    segments = math.ceil(kernel.n / tile_n) * warps
    column = f"first_n + h * {tile_n // thread_n * 4} + tx * 4 + k % 4"
    return RowLanes(
        7,
        "lane % 8 == 0",
        columns,
        segments=segments,
        parts=1,
        segment=segment,
        h="k / 4",
        column=column,
        count=thread_n,
    )


class RowTail:
    """Prints the tail of a product: what a warp makes of a row in its registers, and the launches that join warps'
    states.

    `tile` is (rows, columns) of a block's tile; the states begin `memory` bytes into the workspace. Raises CannotLower
    for a tail that does not reduce whole rows of `width` columns."""

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
        """(C parameter, launch argument) for the states of each reduction."""
        return self.joined.slots()

    def launches(self) -> list[tuple[str, Launch]]:
        """(CUDA text, launch) of each kernel that joins the states."""
        return self.joined.launches()

    def epilogue(self, stores: Sequence[Store], acc: str, guard: str, element_guard: str) -> list[str]:
        """C statements that store four neighbours and replace their sums by the values that are reduced."""
        value = {_SUM: self.tail.value}
        return epilogue_lines(
            self.out, stores, self.plan, acc=acc, vector=4, guard=guard, element_guard=element_guard, kept=value
        )

    def after_row(self) -> list[str]:
        """C statements behind a row's columns: reduce each segment of a warp and write its states to memory."""
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
        """The C test that an element's column exists; [] if all do."""
        return [f"column(k) < {self.kernel.n}"] if self.has_edge_n else []

    def _value(self, item: Accumulator) -> list[str]:
        """C statements of a function body that returns a reduction's value of element k."""
        lines = [f"const int h = {self.lanes.h}, j = k % 4;", f"const {self.out.index} n = column(k) - j;"]
        body = make_emitter(self.out.with_inner("(n + j)"), [], {"acc": _SUM})
        value = body.value(item.value)
        return [*lines, *body.lines, f"return ({item.value_type})({value});"]


def _strides(sizes: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor of these sizes, in elements."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
