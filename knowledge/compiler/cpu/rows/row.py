"""Row kernels for the CPU: reductions, softmax, normalisations and losses along rows that are contiguous in memory.

Rows are shared between threads; within one, passes run over vector blocks with independent lanes, chunk by chunk. With
few long rows the threads share each row instead. Rows with another contiguous dimension are printed by `column.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, loop_head, loops_over, nest, print_function, share_in_team
from foundry.knowledge.compiler.cpu.rows.reduce import Accumulator, to_identifier
from foundry.knowledge.compiler.cpu.rows.row_space import RowSpace
from foundry.knowledge.compiler.cpu.rows.sweep import RowContext, RowForm, Sweep
from foundry.knowledge.compiler.cpu.space import (
    choose_threads,
    indent,
    item_bytes,
    register_type,
    traffic_bytes,
    vector_widths,
)
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, loader
from foundry.knowledge.compiler.ir.views import distinct, views_of
from foundry.knowledge.compiler.schedule.kept import values_of_later_sweeps
from foundry.knowledge.compiler.schedule.passes import (
    Pass,
    Schedule,
    find_softmax_pairs,
    schedule_passes,
    stores_in,
    value_of,
)
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES

_STACK_BYTES = 512 * 1024  # staged values that a thread may keep on its stack
_CHUNKS = (1024, 4096, 16384)  # elements of a row between two merges of float32 lane sums into float64


def print_row(kernel: ir.RowKernel, plan: ir.Plan, device: Device, choices: dict[str, Choice]) -> ir.PrintedKernel:
    """C++ of a RowKernel, vectorised along its rows or over neighbouring rows.

    `choices` may hold:
    - "layout": "row" or "column", what vectors run along
    - "parallel": "rows" gives whole rows to threads, "within" shares each row between all threads
    - "algorithm": "staged" keeps computed values in cache, "recompute" reads inputs again, "online" rescales in one
      pass
    - "vector": bytes of a register
    - "unroll": vectors in flight
    - "chunk": elements of a row between two merges of partial results
    - "tile": rows side by side (layout "column" only)
    - "stream": 1 stores past the caches
    - "schedule": "static" or "dynamic"
    - "threads": threads of the kernel
    A value that is not legal for this kernel gives way to the default.
    """
    from foundry.knowledge.compiler.cpu.rows.column import column_dimension, print_column

    tuning = Tuning(choices)
    rows = RowSpace.of(kernel)
    column, layouts = column_dimension(kernel, rows)
    meaning = "vectorise along the row, or over neighbouring rows at once"
    layout = tuning.text("layout", layouts, layouts[0], "algorithm", meaning)
    if layout == "column" and column is not None:
        return print_column(kernel, plan, device, rows=rows, dimension=column, tuning=tuning)
    return _RowPrinter(kernel, plan, device, rows, tuning).print_kernel()


class _RowPrinter:
    """Prints one kernel of contiguous rows; declares its tunables in `tuning`."""

    def __init__(self, kernel: ir.RowKernel, plan: ir.Plan, device: Device, rows: RowSpace, tuning: Tuning) -> None:
        self._kernel, self._plan, self._device, self._rows, self._tuning = kernel, plan, device, rows, tuning
        self._values = [*map(value_of, kernel.stages)]
        self._stores = stores_in(kernel.stages)
        self._inner = rows.reduced_sizes[-1]
        within = self._choose_within()
        self._algorithm = self._choose_algorithm(within)
        self._schedule: Schedule = schedule_passes(kernel.stages, online=self._algorithm == "online")
        self._staged = self._stage(within)
        self._form = self._decide(within)
        self._context = RowContext(plan, rows, self._form, self._staged)
        self._names = self._context.names

    # -- decisions

    def _choose_within(self) -> bool:
        """True if the threads share every row, by the tunable "parallel"; False if rows are short."""
        rows, length, cores = self._rows.rows, self._rows.length, self._device.cores
        if cores < 2 or length < 16384:
            return False
        default = "within" if rows < cores or (rows % cores and rows < 4 * cores) else "rows"
        meaning = "give whole rows to threads, or share every row between all threads"
        return self._tuning.text("parallel", ("rows", "within"), default, "parallel", meaning) == "within"

    def _choose_algorithm(self, within: bool) -> str:
        """ "staged", "recompute" or "online", by the tunable "algorithm". `within`: threads share rows, so nothing is
        staged."""
        plain = schedule_passes(self._kernel.stages, online=False)
        bytes_staged = self._staged_bytes(plain)
        legal = ["recompute"]
        if bytes_staged and bytes_staged <= _STACK_BYTES and not within:
            legal.insert(0, "staged")
        if find_softmax_pairs(self._kernel.stages):
            legal.append("online")
        row_bytes = self._rows.length * 4
        if "staged" in legal:
            default = "staged"
        elif "online" in legal and row_bytes > 256 * 1024:
            default = "online"
        else:
            default = "recompute"
        meaning = "staged keeps computed values in cache, recompute reads inputs again, online rescales in one pass"
        return self._tuning.text("algorithm", legal, default, "algorithm", meaning)

    def _values_of_sweeps(self, plan: Schedule) -> list[list[ir.Expr]]:
        """The values that each sweep over the row computes; a pass has one or two sweeps."""
        found: list[list[ir.Expr]] = []
        for item in plan.passes:
            found.append(item.values)
            again = [r.value for r in item.reductions if Accumulator(r, self._rows.length).two_sweeps]
            if again:
                found.append(again)
        return found

    def _contiguous_loads(self) -> frozenset[int]:
        """Identities of loads with a step of 0 or 1 along the row: reading these again costs no more than a copy."""
        leaves = [node for node in distinct(self._values) if isinstance(node, ir.Load)]
        return frozenset(id(leaf) for leaf in leaves if self._rows.reduced_strides(leaf.view)[-1] in (0, 1))

    def _staged_bytes(self, plan: Schedule) -> int:
        """Bytes of a row's values that "staged" would keep between sweeps."""
        values = values_of_later_sweeps(self._values_of_sweeps(plan), self._contiguous_loads())
        return sum(self._rows.length * _register_bytes(value) for value in values if self._moves(value))

    def _moves(self, value: ir.Expr) -> bool:
        """True if the value changes along the row."""
        views = views_of([value])
        return any(any(self._rows.reduced_strides(view)) for view in views)

    def _stage(self, within: bool) -> list[ir.Expr]:
        """The values that are kept between sweeps; [] unless the algorithm is "staged"."""
        if self._algorithm != "staged" or within:
            return []
        values = values_of_later_sweeps(self._values_of_sweeps(self._schedule), self._contiguous_loads())
        return [value for value in values if self._moves(value)]

    def _decide(self, within: bool) -> RowForm:
        """The form of the kernel, by tunables that this declares."""
        tuning, inner = self._tuning, self._inner
        widths = vector_widths(self._device)
        width = tuning.number("vector", widths, widths[0], "vector", "bytes of a register; wider may lower the clock")
        per_vector = width // item_bytes(self._values, self._stores, self._plan)
        fits = [unroll for unroll in (1, 2, 4, 8) if unroll * per_vector <= max(inner, per_vector)]
        meaning = "vectors in flight, each with lanes of its own; more hide latency, cost registers"
        unroll = tuning.number("unroll", fits, min(4, fits[-1]), "vector", meaning)
        length = self._rows.length
        sums = any(isinstance(s, ir.Reduction) and s.op in ("sum", "moments") for s in self._kernel.stages)
        longest = 64 * per_vector * unroll if sums else _CHUNKS[-1]  # as accurate as pairwise summation
        chunks = [size for size in _CHUNKS if size < length and size <= longest] or [min(length, _CHUNKS[0])]
        chunks += [length] if chunks[-1] < length <= longest else []
        meaning = "elements between two merges: small ones stay in L1, large ones merge less"
        chunk = tuning.number("chunk", chunks, max(c for c in chunks if c <= 4096 or c == chunks[0]), "tile", meaning)
        written = sum(
            self._plan.buffers[s.buffer].numel * ITEM_BYTES[self._plan.buffers[s.buffer].dtype] for s in self._full()
        )
        can_stream = bool(self._full()) and inner >= per_vector and all(self._is_aligned(s) for s in self._full())
        meaning = "1 writes past the caches: saves reading the lines first, loses the output for a later kernel"
        default = int(can_stream and written > self._device.cache_bytes // 2)
        streamed = tuning.number("stream", (0, 1) if can_stream else (0,), default, "memory", meaning)
        order = tuning.text("schedule", ("static", "dynamic"), "static", "parallel", "who takes which row")
        threads = choose_threads(tuning, self._device, traffic_bytes(self._values, self._stores, self._plan))
        simd = "#pragma omp simd" if width == widths[0] else f"#pragma omp simd simdlen({per_vector})"
        staged = self._algorithm == "staged"
        return RowForm(
            per_vector * unroll,
            simd,
            chunk,
            within=within,
            staged=staged,
            streamed=bool(streamed),
            schedule=order,
            threads=threads,
        )

    def _full(self) -> list[ir.Store]:
        """The stores of one value for each element of a row."""
        return [stage.store for stage in self._kernel.stages if isinstance(stage, ir.Emit)]

    def _is_aligned(self, store: ir.Store) -> bool:
        """True if every vector of the store starts on a cache line."""
        item = ITEM_BYTES[self._plan.buffers[store.buffer].dtype]
        strides = self._rows.space.strides(store.view)
        return strides[-1] == 1 and all(stride * item % 64 == 0 for stride in strides[:-1])

    # -- text

    def print_kernel(self) -> ir.PrintedKernel:
        """The printed kernel: threads share the rows, or each row."""
        kernel, form = self._kernel, self._form
        body = self._within() if form.within else self._by_rows()
        shape = f"{self._rows.rows} rows of {self._rows.length}"
        about = f"{shape}, {len(self._schedule.passes)} passes, {self._algorithm}"
        return print_function(
            Function(kernel.name, about, body, self._values, self._stores),
            self._plan,
            self._tuning,
            template="row",
            shared=["rows/reduce.h"],
        )

    def _by_rows(self) -> list[str]:
        """C++ statements in which threads take whole rows."""
        form, rows = self._form, self._rows
        stage = [
            f"alignas(64) {register_type(value.dtype)} staged{i}[{rows.length}];"
            for i, value in enumerate(self._staged)
        ]
        work = self._scalars(self._schedule.before)
        for number, item in enumerate(self._schedule.passes):
            work += [f"// pass {number + 1}: {_describe(item)}", *self._pass(number, item)]
        heads = loops_over("o", rows.outer_sizes)
        return share_in_team(heads, work, form.schedule, form.threads, setup=stage, fence=form.streamed)

    def _pass(self, number: int, item: Pass) -> list[str]:
        """C++ statements of pass number `number`: states, chunks, and what is computed once a row after them."""
        accumulators = [Accumulator(reduction, self._rows.length) for reduction in item.reductions]
        lines = [f"{a.state} {a.row};" for a in accumulators]
        lines += self._chunks(number, item, accumulators, None)
        return [*lines, *self._finish(item, accumulators)]

    def _finish(self, item: Pass, accumulators: Sequence[Accumulator]) -> list[str]:
        """C++ statements that define the named results of a pass and compute what a row has once after it."""
        lines = []
        for accumulator in accumulators:
            for name, kind, text in accumulator.results():
                self._names[name] = f"{to_identifier(name)}_value"
                lines.append(f"const {kind} {self._names[name]} = {text};")
        return [*lines, *self._scalars(item.after)]

    def _scalars(self, stages: Sequence[ir.Let | ir.EmitRow]) -> list[str]:
        """C++ statements for once a row: values of Let stages, stores of EmitRow stages."""
        offset = self._rows.space.offset(
            [*self._rows.indices[: self._rows.outer], *["0"] * len(self._rows.reduced_sizes)]
        )
        lines: list[str] = []
        for stage in stages:
            emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), self._names, prefix=f"s{len(self._names)}_")
            if isinstance(stage, ir.Let):
                text = emitter.value(stage.value)
                self._names[stage.name] = f"{to_identifier(stage.name)}_value"
                kind = register_type(stage.value.dtype)
                lines += [*emitter.lines, f"const {kind} {self._names[stage.name]} = {text};"]
            else:
                emitter.store(stage.store, offset, self._plan.buffers[stage.store.buffer].dtype)
                lines += ["{", indent(emitter.lines, 1), "}"]
        return lines

    def _chunks(
        self, number: int, item: Pass, accumulators: Sequence[Accumulator], segment: tuple[str, str] | None
    ) -> list[str]:
        """C++ loops for a pass over the row, or over `segment` (C texts of begin and end) of its first loop, chunk by
        chunk."""
        sizes = self._rows.reduced_sizes
        depth = len(sizes) - 1
        chunk = self._form.chunk
        if self._inner > chunk or depth == 0:  # chunks lie within the innermost dimension
            step = -(-chunk // self._form.lanes) * self._form.lanes
            outer = loops_over("r", sizes[:depth])
            ranges = _cut_range(f"r{depth}", "0", str(self._inner), self._inner, step)
            if segment is not None and depth:
                outer[0] = loop_head("r0", segment[1], segment[0])
            elif segment is not None:
                ranges = _Range(
                    [f"for (int64_t chunk = {segment[0]}; chunk < {segment[1]}; chunk += {step})"],
                    [f"const int64_t end = chunk + {step} < {segment[1]} ? chunk + {step} : {segment[1]};"],
                    "chunk",
                    "end",
                    False,
                )
            heads = [*outer, *ranges.heads]
            body = [
                *ranges.setup,
                *self._sweep(number, item, accumulators, loops=[], begin=ranges.begin, end=ranges.end),
            ]
            return nest(heads, body)
        group = max(1, chunk // self._inner)  # a chunk is a group of whole innermost rows
        heads = loops_over("r", sizes[: depth - 1])
        begin, end = ("0", str(sizes[depth - 1]))
        if segment is not None and depth == 1:
            begin, end = segment
        elif segment is not None:
            heads[0] = loop_head("r0", segment[1], segment[0])
        name = f"r{depth - 1}"
        if group >= sizes[depth - 1] and begin == "0" and end == str(sizes[depth - 1]):
            inner = [loop_head(name, sizes[depth - 1])]
            setup = [f"const int64_t count = {sizes[depth - 1] * self._inner};"]
        else:
            heads.append(f"for (int64_t group = {begin}; group < {end}; group += {group})")
            setup = [
                f"const int64_t group_end = group + {group} < {end} ? group + {group} : {end};",
                f"const int64_t count = (group_end - group) * {self._inner};",
            ]
            inner = [loop_head(name, "group_end", "group")]
        body = [
            *setup,
            "(void)count;",
            *self._sweep(number, item, accumulators, loops=inner, begin="0", end=str(self._inner)),
        ]
        return nest(heads, body)

    def _sweep(
        self,
        number: int,
        item: Pass,
        accumulators: Sequence[Accumulator],
        loops: list[str],
        begin: str,
        end: str,
    ) -> list[str]:
        """C++ statements for one chunk: a sweep, a second one if a reduction needs it, the merge into the row's states.

        `loops`: heads of loops inside the chunk; `begin`, `end`: C texts of its bounds in the innermost dimension."""
        count = "count" if loops else f"({end} - {begin})"
        lanes = [lane for a in accumulators for lane in a.first_lanes()]
        lines = [_declare(lane.name, lane.kind, lane.start, self._form.lanes) for lane in lanes]
        sweep = Sweep(self._context, item, accumulators, first=True)
        text = sweep.text(self._staged_before(number, first=True), begin, end)
        if not accumulators:
            return nest(loops, text) if loops else text
        lines += nest(loops, text)
        double = [a for a in accumulators if a.two_sweeps]
        if double:
            for accumulator in double:
                lines += accumulator.between(count)
                lines += [_declare(n.name, n.kind, n.start, self._form.lanes) for n in accumulator.second_lanes()]
            sweep = Sweep(self._context, item, double, first=False)
            lines += nest(loops, sweep.text(self._staged_before(number, first=False), begin, end))
        return [*lines, *[a.merge_chunk(count) for a in accumulators]]

    def _staged_before(self, number: int, *, first: bool) -> set[int]:
        """Positions of the staged values that an earlier sweep has filled."""
        earlier = [value for item in self._schedule.passes[:number] for value in item.values]
        if not first:
            earlier += self._schedule.passes[number].values
        return self._context.staged_in(earlier)

    # -- sharing one row

    def _within(self) -> list[str]:
        """C++ statements in which every pass is a parallel loop over segments of the row; their states merge in
        order."""
        form, lines = self._form, self._scalars(self._schedule.before)
        first = self._rows.reduced_sizes[0]
        segments = min(first, 16 * self._device.cores)
        size = -(-first // segments)
        if len(self._rows.reduced_sizes) == 1:
            size = -(-size // self._form.lanes) * self._form.lanes
        segments = -(-first // size)
        for number, item in enumerate(self._schedule.passes):
            accumulators = [Accumulator(reduction, self._rows.length) for reduction in item.reductions]
            body = [
                f"const int64_t first = segment * {size}, last = first + {size} < {first} ? first + {size} : {first};"
            ]
            body += [f"{a.state} {a.row};" for a in accumulators]
            body += self._chunks(number, item, accumulators, ("first", "last"))
            body += [f"{a.row}_parts[segment] = {a.row};" for a in accumulators]
            lines += [
                f"// pass {number + 1}: {_describe(item)}",
                *[f"{a.state} {a.row}_parts[{segments}];" for a in accumulators],
                *share_in_team(
                    [loop_head("segment", segments)], body, form.schedule, form.threads, fence=form.streamed
                ),
                *[f"{a.state} {a.row};" for a in accumulators],
                *[f"for (const auto& part : {a.row}_parts) {a.row}.merge(part);" for a in accumulators],
                *self._finish(item, accumulators),
            ]
        heads = loops_over("o", self._rows.outer_sizes)
        return nest(heads, lines)


@dataclass(frozen=True)
class _Range:
    """A loop over chunks of a dimension: heads of loops, statements inside them, and C texts of a chunk's bounds.
    `single`: there is only one chunk."""

    heads: list[str]
    setup: list[str]
    begin: str
    end: str
    single: bool


def _cut_range(name: str, begin: str, end: str, size: int, step: int) -> _Range:
    """A loop over a dimension in chunks of `step`, or whole if it is no longer than one."""
    if size <= step:
        return _Range([], [], begin, end, True)
    head = f"for (int64_t chunk = {begin}; chunk < {end}; chunk += {step})"
    last = f"chunk + {step}" if size % step == 0 else f"(chunk + {step} < {end} ? chunk + {step} : {end})"
    return _Range([head], [f"const int64_t end = {last};"], "chunk", "end", False)


def _declare(name: str, kind: str, start: str, lanes: int) -> str:
    """C++ statements that declare a lane array and fill it with `start`."""
    return f"alignas(64) {kind} {name}[{lanes}]; fill({name}, {start});"


def _register_bytes(value: ir.Expr) -> int:
    """Bytes of a value in a register."""
    return {"double": 8, "int64_t": 8}.get(register_type(value.dtype), 4)


def _describe(item: Pass) -> str:
    """Words for a comment: the reductions and stores of a pass."""
    parts = [f"{r.op if isinstance(r, ir.Reduction) else 'max and sum of exp'}" for r in item.reductions]
    parts += [f"store {emit.store.buffer}" for emit in item.emits]
    return ", ".join(parts)
