"""Row kernels whose contiguous dimension is an outer one: neighbouring rows are in the lanes of a vector.

A task owns a tile of rows; every pass walks the reduced dimensions and updates all rows of the tile at once. Chunks of
the walk carry float32 sums into float64 and let two-sweep reductions reread cached data, as in `row.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.loops import (
    Function,
    loop_head,
    loops_over,
    nest,
    print_function,
    share_loops,
    width_of_tile,
)
from foundry.knowledge.compiler.cpu.rows.reduce import Accumulator, Lanes, to_identifier
from foundry.knowledge.compiler.cpu.rows.row_space import RowSpace
from foundry.knowledge.compiler.cpu.space import (
    choose_threads,
    indent,
    item_bytes,
    register_type,
    traffic_bytes,
    vector_widths,
)
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, affine, loader
from foundry.knowledge.compiler.ir.views import distinct, views_of
from foundry.knowledge.compiler.schedule.passes import Pass, schedule_passes, stores_in, value_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

_SHORT_ROW = 16  # elements; lanes along a shorter row would stay half empty


def column_dimension(kernel: ir.RowKernel, rows: RowSpace) -> tuple[int | None, list[str]]:
    """(merged outer dimension to vectorise over, or None; layouts worth trying, best first)."""
    if not rows.outer or max(rows.outer_sizes) < 4:
        return None, ["row"]
    leaves = views_of(map(value_of, kernel.stages))
    full = [view for view in leaves if any(rows.reduced_strides(view))]
    full += [s.view for s in stores_in(kernel.stages) if any(rows.reduced_strides(s.view))]
    unit = [
        sum(_elements(rows, view) for view in full if rows.space.strides(view)[dim] == 1)
        for dim in range(len(rows.space.sizes))
    ]
    if (across := _across_slices(kernel, rows)) is not None:
        return across, ["column", "row"]
    best = max(range(rows.outer), key=lambda dim: (unit[dim], rows.space.sizes[dim]))
    along, size = unit[-1], rows.space.sizes[best]
    if unit[best] > along and size >= 8:
        return best, ["column", "row"] if along or rows.length < 4 * _SHORT_ROW else ["column"]
    if rows.length < _SHORT_ROW and size >= 4 * rows.length:
        return best, ["column", "row"]
    if unit[best] or (rows.length < 4 * _SHORT_ROW and size >= rows.length):
        return best, ["row", "column"]
    return None, ["row"]


def _elements(rows: RowSpace, view: ir.View) -> int:
    """Number of different elements in a view: those that many points share (a mask's row) count once."""
    sizes = zip(rows.space.sizes, rows.space.strides(view), strict=True)
    return math.prod(size for size, stride in sizes if stride)


def _across_slices(kernel: ir.RowKernel, rows: RowSpace) -> int | None:
    """The outer dimension along which slices chosen by an index are contiguous; None without one.

    Vectors along it read whole slices."""

    def varies(expr: ir.Expr, dims: Sequence[int]) -> bool:
        """True if the expression reads a view that moves along one of the dimensions."""
        views = views_of([expr])
        return any(rows.space.strides(view)[dim] for view in views for dim in dims)

    reduced = range(rows.outer, len(rows.space.sizes))
    chosen = [
        g for g in distinct(map(value_of, kernel.stages)) if isinstance(g, ir.Gather) and varies(g.index, reduced)
    ]
    for dim in range(rows.outer):
        is_whole = all(rows.space.strides(g.view)[dim] == 1 and not varies(g.index, [dim]) for g in chosen)
        if chosen and is_whole and rows.space.sizes[dim] >= _SHORT_ROW // 2:
            return dim
    return None


@dataclass(frozen=True)
class _Form:
    """The form of one kernel: rows of a tile, elements of a row between two merges, and OpenMP's pragma, schedule and
    clause of threads."""

    tile: int
    chunk: int
    simd: str
    schedule: str
    threads: str


def print_column(
    kernel: ir.RowKernel, plan: ir.Plan, device: Device, rows: RowSpace, dimension: int, tuning: Tuning
) -> ir.PrintedKernel:
    """C++ of a RowKernel, vectorised over its merged outer dimension `dimension`. For `choices` see `print_row`."""
    return _ColumnPrinter(kernel, plan, device, rows=rows, dimension=dimension, tuning=tuning).print_kernel()


class _ColumnPrinter:
    """Prints one row kernel over tiles of neighbouring rows; declares its tunables in `tuning`. `_names` grows as
    passes define values."""

    def __init__(
        self, kernel: ir.RowKernel, plan: ir.Plan, device: Device, rows: RowSpace, dimension: int, tuning: Tuning
    ) -> None:
        self._kernel, self._plan, self._device, self._rows = kernel, plan, device, rows
        self._dimension, self._tuning = dimension, tuning
        self._values, self._stores = [*map(value_of, kernel.stages)], stores_in(kernel.stages)
        self._names: dict[str, str] = {}
        self._across = rows.space.sizes[dimension]
        self._form = self._decide()
        indices = rows.indices
        indices[dimension] = "(tile + l)"
        self._offset = rows.space.offset(indices)
        self._accumulators: list[Accumulator] = []

    def _decide(self) -> _Form:
        """The form of the kernel, by tunables that this declares."""
        tuning = self._tuning
        widths = vector_widths(self._device)
        width = tuning.number("vector", widths, widths[0], "vector", "bytes of a register; wider may lower the clock")
        per_vector = width // item_bytes(self._values, self._stores, self._plan)
        others = self._rows.rows // self._across
        tiles = [per_vector * n for n in (1, 2, 4, 8, 16, 32, 64) if per_vector * n <= max(self._across, per_vector)]
        wanted = [tile for tile in tiles if others * -(-self._across // tile) >= 4 * self._device.cores]
        default = max([tile for tile in wanted if tile <= 16 * per_vector], default=tiles[0])
        meaning = "rows side by side: wide tiles read longer runs of memory, narrow ones balance and stay in registers"
        tile = tuning.number("tile", tiles, default, "tile", meaning)
        length = self._rows.length
        sums = any(isinstance(s, ir.Reduction) and s.op in ("sum", "moments") for s in self._kernel.stages)
        # a lane's float32 sum must stay as accurate as pairwise summation
        chunks = [size for size in ((32, 64) if sums else (64, 256, 1024)) if size < length] or [length]
        meaning = "elements of a row between two merges of its partial results"
        chunk = tuning.number("chunk", chunks, chunks[min(1, len(chunks) - 1)], "tile", meaning)
        order = tuning.text("schedule", ("static", "dynamic"), "static", "parallel", "who takes which tile")
        threads = choose_threads(tuning, self._device, traffic_bytes(self._values, self._stores, self._plan))
        simd = "#pragma omp simd" if width == widths[0] else f"#pragma omp simd simdlen({per_vector})"
        return _Form(tile, chunk, simd, order, threads)

    def print_kernel(self) -> ir.PrintedKernel:
        """The printed kernel: threads share the tiles of rows, each of which goes through all passes."""
        kernel, form, rows = self._kernel, self._form, self._rows
        plan = schedule_passes(kernel.stages, online=False)
        work = [width_of_tile(form.tile, self._across), *self._scalars(plan.before)]
        for number, item in enumerate(plan.passes):
            work += [f"// pass {number + 1}", *self._pass(item)]
        heads = loops_over("o", rows.outer_sizes)
        del heads[self._dimension]
        heads.append(f"for (int64_t tile = 0; tile < {self._across}; tile += {form.tile})")
        body = share_loops(heads, work, form.schedule, form.threads)
        about = f"{rows.rows} rows of {rows.length}, {form.tile} side by side"
        return print_function(
            Function(kernel.name, about, body, self._values, self._stores),
            self._plan,
            self._tuning,
            template="column",
            shared=["rows/reduce.h"],
        )

    def _each(self, body: Sequence[str]) -> list[str]:
        """C++ loop that runs `body` for every row of the tile, in lanes."""
        return [self._form.simd, "for (int l = 0; l < width; ++l) {", indent(body, 1), "}"]

    def _array(self, lanes: Lanes) -> str:
        """C++ statements that declare one value for each row of the tile, with its neutral element."""
        return f"alignas(64) {lanes.kind} {lanes.name}[{self._form.tile}]; fill({lanes.name}, {lanes.start});"

    def _emitter(self, prefix: str) -> Emitter:
        """An expression printer at the current element of row `tile + l`."""
        return Emitter(CPU_DIALECT, loader(CPU_DIALECT, self._offset), self._names, prefix=prefix)

    def _pass(self, item: Pass) -> list[str]:
        """C++ statements of one pass: states, the walk, named results, and what is computed once a row after it."""
        accumulators = [Accumulator(reduction, self._rows.length) for reduction in item.reductions]
        lines = [f"{a.state} {a.row}[{self._form.tile}];" for a in accumulators]
        lines += self._walk(item, accumulators)
        for a in accumulators:
            body = []
            for name, kind, text in a.results("[l]"):
                self._names[name] = f"{to_identifier(name)}_value[l]"
                lines.append(f"alignas(64) {kind} {to_identifier(name)}_value[{self._form.tile}];")
                body.append(f"{self._names[name]} = {text};")
            lines += ["for (int l = 0; l < width; ++l) {", indent(body, 1), "}"]
        return [*lines, *self._scalars(item.after)]

    def _scalars(self, stages: Sequence[ir.Let | ir.EmitRow]) -> list[str]:
        """C++ statements for once a row: values of Let stages, stores of EmitRow stages."""
        lines: list[str] = []
        indices = [*self._rows.indices[: self._rows.outer], *["0"] * len(self._rows.reduced_sizes)]
        indices[self._dimension] = "(tile + l)"
        offset = self._rows.space.offset(indices)
        for stage in stages:
            emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), self._names, prefix="s")
            if isinstance(stage, ir.Let):
                target = f"{to_identifier(stage.name)}_value"
                lines.append(f"alignas(64) {register_type(stage.value.dtype)} {target}[{self._form.tile}];")
                emitter.lines.append(f"{target}[l] = {emitter.value(stage.value)};")
                self._names[stage.name] = f"{target}[l]"
            else:
                emitter.store(stage.store, offset, self._plan.buffers[stage.store.buffer].dtype)
            lines += self._each(emitter.lines)
        return lines

    def _walk(self, item: Pass, accumulators: Sequence[Accumulator]) -> list[str]:
        """C++ loops over the reduced dimensions.

        They are cut into chunks along the outermost one whose inner dimensions together are shorter than a chunk."""
        sizes = self._rows.reduced_sizes
        at = next(d for d in range(len(sizes)) if math.prod(sizes[d + 1 :]) <= self._form.chunk)
        inside = math.prod(sizes[at + 1 :])
        step = max(1, self._form.chunk // inside)
        outer = loops_over("r", sizes[:at])
        inner = [loop_head(f"r{d}", sizes[d]) for d in range(at + 1, len(sizes))]
        first, last, setup = "0", str(sizes[at]), []
        if step < sizes[at] and accumulators:
            outer.append(f"for (int64_t chunk = 0; chunk < {sizes[at]}; chunk += {step})")
            end = f"chunk + {step}"
            setup = [f"const int64_t end = {end if sizes[at] % step == 0 else f'{end} < {last} ? {end} : {last}'};"]
            first, last = "chunk", "end"
        inner.insert(0, loop_head(f"r{at}", last, first))
        count = f"(({last} - {first}) * {inside})"
        body = [*setup, *self._chunk(item, accumulators, inner, count)]
        return nest(outer, body)

    def _chunk(self, item: Pass, accumulators: Sequence[Accumulator], loops: Sequence[str], count: str) -> list[str]:
        """C++ statements of one chunk: a sweep, a second one if a reduction needs it, the merge into the rows' states.
        `count`: C text of its elements."""
        lines = [self._array(lane) for a in accumulators for lane in a.first_lanes()]
        lines += nest(loops, self._sweep(accumulators, [emit.store for emit in item.emits], first=True))
        double = [a for a in accumulators if a.two_sweeps]
        if double:
            for a in double:
                lines += [*self._between_arrays(a), *self._each(self._between(a, count))]
                lines += [self._array(lane) for lane in a.second_lanes()]
            lines += nest(loops, self._sweep(double, [], first=False))
        for a in accumulators:
            lines += [loop_head("l", "width").replace("int64_t", "int") + f" {a.row}[l].merge({self._part(a, count)});"]
        return lines

    def _between_arrays(self, a: Accumulator) -> list[str]:
        """C++ declarations of the values that a second sweep needs of the first."""
        names = [f"{a.row}_centre"] if a.op == "moments" else [f"{a.row}_top", f"{a.row}_from"]
        return [f"alignas(64) {a.kind} {name}[{self._form.tile}];" for name in names]

    def _between(self, a: Accumulator, count: str) -> list[str]:
        """C++ statements that compute these values from the lanes of the first sweep."""
        if a.op == "moments":
            return [f"{a.row}_centre[l] = {a.row}_lanes[l] / ({a.kind}){count};"]
        return [
            f"{a.row}_top[l] = {a.row}_max[l];",
            f"{a.row}_from[l] = {a.state}::reference({a.row}_max[l]);",
        ]

    def _part(self, a: Accumulator, count: str) -> str:
        """C text of the part that a lane adds to the state of its row."""
        if a.op == "moments":
            return f"{{(double){count}, {a.row}_centre[l], {a.row}_squares[l]}}"
        if a.two_sweeps:
            return f"{{{a.row}_top[l], {a.row}_exps[l]}}"
        if a.positioned:
            return f"{{{a.row}_best[l], {a.row}_at[l] == {a.at_none} ? INT64_MAX : {a.row}_at[l]}}"
        return f"{{{a.row}_lanes[l]}}"

    def _sweep(self, accumulators: Sequence[Accumulator], stores: Sequence[ir.Store], *, first: bool) -> list[str]:
        """C++ statements that update the lanes with one element of each row, and store."""
        emitter = self._emitter("t")
        values: list[ir.Expr] = [a.value for a in accumulators] + [store.value for store in stores]
        emitter.reserve(values)
        for a in accumulators:
            value = emitter.value(a.value)
            lanes = [f"{lane.name}[l]" for lane in (a.first_lanes() if first else a.second_lanes())]
            if first:
                emitter.lines += a.first_update(value, self._position(), lanes)
            else:
                emitter.lines += a.second_update(value, lanes, "[l]")
        for store in stores:
            emitter.store(store, self._offset, self._plan.buffers[store.buffer].dtype)
        return self._each(emitter.lines)

    def _position(self) -> str:
        """C text of the element's row-major position in its row."""
        sizes = self._rows.reduced_sizes
        return affine(0, [(math.prod(sizes[d + 1 :]), f"r{d}") for d in range(len(sizes))])
