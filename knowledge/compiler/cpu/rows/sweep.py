"""One sweep over a stretch of rows: vector blocks that update lanes, store results and keep staged values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from foundry.knowledge.compiler.cpu.rows.reduce import Accumulator
from foundry.knowledge.compiler.cpu.rows.row_space import RowSpace
from foundry.knowledge.compiler.cpu.space import Known, element_type, find_invariants, hoist, indent
from foundry.knowledge.compiler.ir.kernels import Expr, Plan, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, Emitter, Numbering, affine, loader
from foundry.knowledge.compiler.ir.views import distinct
from foundry.knowledge.compiler.schedule.passes import Pass

_TAIL = 16  # elements of a vector at a row's end: half-written vectors stall the loads that follow


@dataclass(frozen=True)
class RowForm:
    """The form of one row kernel: `lanes` elements at a time under the pragma `simd`, `chunk` elements between merges.

    `within`: threads share each row. `staged`: values are kept between sweeps. `streamed`: stores go past the caches.
    `schedule` and `threads` are OpenMP's clauses."""

    lanes: int
    simd: str
    chunk: int
    within: bool
    staged: bool
    streamed: bool
    schedule: str
    threads: str


@dataclass
class RowContext:
    """The facts that all sweeps of one kernel share. `names` (C identifier of each Named value) grows as passes define
    values."""

    plan: Plan
    rows: RowSpace
    form: RowForm
    staged: list[Expr]
    names: dict[str, str] = field(default_factory=dict)
    numbering: Numbering = field(default_factory=Numbering)

    def staged_in(self, values: Sequence[Expr]) -> set[int]:
        """Positions of the staged values that are computed on the way to `values`."""
        if not self.staged:
            return set()
        below = {self.numbering.number(node) for node in distinct(values)}
        return {i for i, value in enumerate(self.staged) if self.numbering.number(value) in below}


class Sweep:
    """Vector blocks over a range of the innermost dimension: updates of lanes, stores, staged values. `first`: it is
    the first sweep of its chunk, which also stores."""

    def __init__(self, context: RowContext, item: Pass, accumulators: Sequence[Accumulator], *, first: bool) -> None:
        self._context, self._accumulators, self._first = context, accumulators, first
        self._stores = [emit.store for emit in item.emits] if first else []
        self._values = [a.value for a in accumulators] + [store.value for store in self._stores]
        self._space = context.rows.space
        self._index = context.rows.indices[-1]

    def text(self, filled: set[int], begin: str, end: str) -> list[str]:
        """C++ statements of the sweep over [begin, end). `filled`: positions of staged values that can be read; it
        computes and stages the others."""
        context = self._context
        known: Known = [
            (value, f"staged{i}[{self._position()}]") for i, value in enumerate(context.staged) if i in filled
        ]
        fresh = sorted(context.staged_in(self._values) - filled)
        offset = self._space.offset(context.rows.indices)

        def moving(view: View) -> bool:
            """True if the view moves along the innermost dimension."""
            return self._space.strides(view)[-1] != 0

        hoisted, known = hoist(find_invariants(self._values, moving), offset, context.names, known, "h")
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), context.names, known=known)
        emitter.reserve([*self._values, *[context.staged[i] for i in fresh]])
        for i in fresh:
            name = emitter.identifier(context.staged[i])
            emitter.lines.append(f"staged{i}[{self._position()}] = {name};")
        lanes, targets = self._updates(emitter)
        params = [f"int64_t {self._index}", *[f"{kind}& {name}" for kind, name in lanes], *[p for p, _, _ in targets]]
        lines = [
            *hoisted,
            f"const auto element = [&]({', '.join(params)}) __attribute__((always_inline)) {{",
            indent(emitter.lines, 1),
            "};",
        ]
        arrays = [name.removesuffix("_l") for _, name in lanes]
        return [*lines, *self._blocks(arrays, begin, end)]

    def _position(self) -> str:
        """C text of the flat row-major position in the row."""
        sizes = self._context.rows.reduced_sizes
        steps = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
        return affine(0, [(step, f"r{d}") for d, step in enumerate(steps)])

    def _updates(self, emitter: Emitter) -> tuple[list[tuple[str, str]], list[tuple[str, str, str]]]:
        """((C type, name) of each lane reference, (C parameter, C type, buffer) of each store). Appends the statements
        that update and store an element to the emitter."""
        lanes: list[tuple[str, str]] = []
        for accumulator in self._accumulators:
            arrays = accumulator.first_lanes() if self._first else accumulator.second_lanes()
            names = [f"{lane.name}_l" for lane in arrays]
            lanes += [(lane.kind, name) for lane, name in zip(arrays, names, strict=True)]
            value = emitter.value(accumulator.value)
            if self._first:
                emitter.lines += accumulator.first_update(value, self._position(), names)
            else:
                emitter.lines += accumulator.second_update(value, names)
        targets = []
        for slot, store in enumerate(self._stores):
            dtype = self._context.plan.buffers[store.buffer].dtype
            emitter.lines.append(f"y{slot} = {CPU_DIALECT.store(emitter.value(store.value), dtype)};")
            kind = element_type(self._context.plan, store.buffer)
            targets.append((f"{kind}& y{slot}", kind, store.buffer))
        return lanes, targets

    def _blocks(self, arrays: list[str], begin: str, end: str) -> list[str]:
        """C++ loop that runs the lambda `element` over [begin, end) in vectors. `arrays`: C names of the lane
        arrays."""
        form = self._context.form
        width = form.lanes
        indices = self._context.rows.indices[:-1]
        direct = [f"b_{s.buffer}[{self._space.offset([*indices, '(i + l)'])(s.view)}]" for s in self._stores]
        outs = [f"{name}[l]" for name in arrays]
        lines = [f"int64_t i = {begin};", f"for (; i + {width} <= {end}; i += {width}) {{"]
        if form.streamed and self._stores:
            blocks = [f"y{slot}" for slot in range(len(self._stores))]
            kinds = [element_type(self._context.plan, s.buffer) for s in self._stores]
            lines += [f"  alignas(64) {kind} {name}[{width}];" for kind, name in zip(kinds, blocks, strict=True)]
            call = ", ".join(["i + l", *outs, *[f"{name}[l]" for name in blocks]])
            lines += [f"  {form.simd}", f"  for (int l = 0; l < {width}; ++l) element({call});"]
            starts = [self._space.offset([*indices, "i"])(s.view) for s in self._stores]
            lines += [
                f"  stream(b_{s.buffer} + ({start}), {name});"
                for s, start, name in zip(self._stores, starts, blocks, strict=True)
            ]
        else:
            call = ", ".join(["i + l", *outs, *direct])
            lines += [f"  {form.simd}", f"  for (int l = 0; l < {width}; ++l) element({call});"]
        lines.append("}")
        size = self._context.rows.reduced_sizes[-1]
        if rest := size % width:  # chunks are whole blocks, so only the end can be ragged
            tail = self._tail(rest, arrays, direct)
            is_whole = (begin, end) == ("0", str(size))
            lines += tail if is_whole else [f"if (i < {end}) {{", indent(tail, 1), "}"]
        return lines

    def _tail(self, rest: int, arrays: list[str], direct: list[str]) -> list[str]:
        """C++ statements for the last `rest` elements of a row, in vectors too: a lane without an element keeps its
        value."""
        simd, lines = self._context.form.simd, list[str]()
        width = min(_TAIL, self._context.form.lanes)
        while rest:
            count = min(rest, width)
            if count == width:
                call = ", ".join(["i + l", *[f"{name}[l]" for name in arrays], *direct])
                lines += [simd, f"for (int l = 0; l < {width}; ++l) element({call});"]
            else:
                call = ", ".join(["i + l", *[f"kept{number}" for number in range(len(arrays))], *direct])
                lines += [simd, f"for (int l = 0; l < {width}; ++l) {{"]
                lines += [f"  auto kept{number} = {name}[l];" for number, name in enumerate(arrays)]
                lines += [f"  if (l < {count}) element({call});"]
                lines += [f"  {name}[l] = kept{number};" for number, name in enumerate(arrays)]
                lines.append("}")
            rest -= count
            if rest:
                lines.append(f"i += {count};")
        return lines
