"""Rows too long for any chip, with parts between those of other rows. All parts are read in memory order: one launch
reduces parts, one combines those of each row, and one reads all of it again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from foundry.knowledge.compiler.cuda.launches import Launch, Workspace
from foundry.knowledge.compiler.cuda.rows.row_shape import RowShape
from foundry.knowledge.compiler.cuda.rows.row_text import RowText, part_pointer
from foundry.knowledge.compiler.cuda.rows.steps import EmitPass, ReducePass, Step
from foundry.knowledge.compiler.cuda.space import Space, indent, signature_of, to_identifier
from foundry.knowledge.compiler.ir.kernels import EmitRow, Expr, Let, Plan, RowKernel, Store
from foundry.knowledge.compiler.ir.views import leaves

_KERNEL = """\
extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{
{body}
}}
"""
_MOST_COMBINING = 256  # threads that combine the parts of a row


class StreamedRow:
    """Prints a row kernel as three launches if it has one reduction, and two more for each further one."""

    def __init__(self, kernel: RowKernel, plan: Plan, shape: RowShape, name: str) -> None:
        self.plan, self.shape, self.name = plan, shape, name
        self.planes = shape if shape.column else _planes(shape)
        unit = shape.team * shape.vector
        load = unit * min(shape.in_flight, shape.part)  # elements that all threads load at a time
        pieces = -(-self.planes.length // (unit * shape.part))
        self.chunk = -(-self.planes.length // (pieces * load)) * load
        self.pieces = -(-self.planes.length // self.chunk)
        self.parts = self.pieces * self.planes.rows // shape.rows
        self.memory = Workspace()
        for step in shape.steps:
            for item in step.accumulators if isinstance(step, ReducePass) else ():
                self.memory.reserve(part_pointer(item.name), shape.rows * self.parts * item.state_bytes)
                self.memory.reserve(_whole(item.name), shape.rows * item.state_bytes)

    def print(self) -> tuple[str, list[Launch], int]:
        """(CUDA text, launches, bytes of scratch memory)."""
        steps = self.shape.steps
        reductions = [i for i, step in enumerate(steps) if isinstance(step, ReducePass)]
        made: list[tuple[str, Launch]] = []
        for phase, at in enumerate(reductions):
            made.append(self._reduce(f"{self.name}_part{phase}", at))
            made.append(self._combine(f"{self.name}_combine{phase}", at, is_last=at == reductions[-1]))
        made.append(self._emit())
        return "\n".join(source for source, _ in made), [launch for _, launch in made], self.memory.bytes

    # ------------------------------------------------------------ launches

    def _reduce(self, name: str, at: int) -> tuple[str, Launch]:
        """(CUDA text, launch) that reduces each part, in the order of memory, to one state. `at` is the number of the
        reduction's step."""
        step = self.shape.steps[at]
        assert isinstance(step, ReducePass)
        text = RowText(self.planes, self.plan)
        before = self.shape.steps[:at]
        lines = [*self._position(text), *self._known(text, before)]
        lines += [*text.declare_states(step), *text.loop_over_row(step, "begin", "end"), *text.combine(step)]
        lines += text.keep_states(step, lambda name: f"{part_pointer(name)}[{self._place('part')}]")
        values = [*step.values, *_let_values(before)]
        return self._launch(name, lines, self.planes, values=values, stores=[], states=self._states(before, step, None))

    def _combine(self, name: str, at: int, *, is_last: bool) -> tuple[str, Launch]:
        """(CUDA text, launch) that combines the states of each row's parts in a fixed order. The last one also computes
        and stores what a row has once."""
        step = self.shape.steps[at]
        assert isinstance(step, ReducePass)
        shape = self._combining()
        text = RowText(shape, self.plan)
        before = self.shape.steps[:at]
        lines = [*text.locate_row(), "const int owner = row;", *self._known(text, before)]
        lines += text.merge_parts(step, self.parts, lambda name: f"{part_pointer(name)}[{self._place('i')}]")
        lines += text.keep_states(step, lambda name: f"{_whole(name)}[owner]")
        rows = [one for one in self.shape.steps if isinstance(one, EmitRow)] if is_last else []
        after = self.shape.steps[at + 1 :] if is_last else ()
        lines += [line for one in after if isinstance(one, Let) for line in text.define_let(one)]
        lines += [line for one in rows for line in text.emit_row(one)]
        values = [*_let_values([*before, *after]), *(one.store.value for one in rows)]
        states = self._states(before, None, step)
        return self._launch(name, lines, shape, values=values, stores=[one.store for one in rows], states=states)

    def _emit(self) -> tuple[str, Launch]:
        """(CUDA text, launch) that reads all parts again and stores their elements, in the order of memory."""
        steps = self.shape.steps
        text = RowText(self.planes, self.plan)
        lines = [*self._position(text), *self._known(text, steps)]
        passes = [step for step in steps if isinstance(step, EmitPass)]
        lines += [line for step in passes for line in text.loop_over_row(step, "begin", "end")]
        values = [*_let_values(steps), *(value for step in passes for value in step.values)]
        stores = [emit.store for step in passes for emit in step.emits]
        return self._launch(
            self.name, lines, self.planes, values=values, stores=stores, states=self._states(steps, None, None)
        )

    # ------------------------------------------------------------ their text

    @property
    def _blocks(self) -> int:
        """Number of blocks that read all parts."""
        return self.planes.blocks * self.pieces

    def _position(self, text: RowText) -> list[str]:
        """C statements that find a block's piece of a contiguous run, the row that owns it (`owner`) and its number in
        the row (`part`)."""
        pieces = self.pieces
        lines = ["const int number = (int)blockIdx.x;"]
        if self.shape.column:
            unit, piece, part = f"(number % {self.planes.blocks})", f"number / {self.planes.blocks}", "piece"
            owner = "row"
        else:
            unit, piece = f"(number / {pieces})", f"number % {pieces}"
            sizes = dict(zip(self.shape.space.names, self.shape.space.sizes, strict=True))
            names = self.shape.space.names
            owner = _flat([(name, sizes[name]) for name in names[: self.shape.outer]])
            inside = [(name, sizes[name]) for name in names[self.shape.outer : self.planes.outer]]
            part = f"({_flat(inside)}) * {pieces} + piece"
        lines += [*text.locate_row(unit), f"const int piece = {piece};"]
        lines += [f"const int owner = (int)({owner});", f"const int part = (int)({part});"]
        return [*lines, *text.bound_part("piece", self.chunk)]

    def _place(self, part: str) -> str:
        """C text of the index of a row's state of a part; states that one warp combines are neighbours."""
        return f"{part} * {self.shape.rows} + owner" if self.shape.column else f"owner * {self.parts} + {part}"

    def _combining(self) -> RowShape:
        """The shape of a launch that combines parts: its team and block; other fields as in the kernel's shape."""
        shape = self.shape
        if shape.column:
            team = min(8, 1 << (self.parts.bit_length() - 1))
            return replace(shape, team=team, threads=32 * team)
        team = 32
        while team < min(self.parts, _MOST_COMBINING):
            team *= 2
        return replace(shape, team=team, threads=team if team > 32 else 128)

    def _known(self, text: RowText, before: Iterable[Step]) -> list[str]:
        """C statements that read the values that earlier launches reduced, and compute the Let values after them."""
        lines = []
        for step in before:
            if isinstance(step, ReducePass):
                for item in step.accumulators:
                    lines.append(f"const {item.state} {text.state_name(item)} = {_whole(item.name)}[owner];")
                lines += text.define_results(step)
            elif isinstance(step, Let):
                lines += text.define_let(step)
        return lines

    def _states(self, before: Iterable[Step], reduced: ReducePass | None, combined: ReducePass | None) -> list[str]:
        """C parameters for states: known ones of whole rows, and those that this launch reduces or combines."""
        found = [
            f"const {item.state}* __restrict__ {_whole(item.name)}"
            for step in before
            if isinstance(step, ReducePass)
            for item in step.accumulators
        ]
        for item in reduced.accumulators if reduced else ():
            found.append(f"{item.state}* __restrict__ {part_pointer(item.name)}")
        for item in combined.accumulators if combined else ():
            found.append(f"const {item.state}* __restrict__ {part_pointer(item.name)}")
            found.append(f"{item.state}* __restrict__ {_whole(item.name)}")
        return found

    def _launch(
        self, name: str, lines: list[str], shape: RowShape, values: list[Expr], stores: list[Store], states: list[str]
    ) -> tuple[str, Launch]:
        """(CUDA text, launch) of one kernel. `values` are the expressions it reads, `states` its further parameters."""
        signature, arguments = signature_of(self.plan, leaves(values), stores)
        text = ", ".join([part for part in (signature, *states) if part])
        source = _KERNEL.format(threads=shape.threads, name=name, parameters=text, body=indent(lines))
        places = [self.memory.argument(state.rpartition(" ")[2]) for state in states]
        blocks = self._blocks if shape is self.planes else shape.blocks
        block = (shape.rows_per_block, shape.team, 1) if shape.column else (shape.threads, 1, 1)
        return source, Launch(name, (blocks, 1, 1), block, (*arguments, *places))


def _planes(shape: RowShape) -> RowShape:
    """The same shape with the contiguous runs of rows as its rows, in the order of memory."""
    space, count = shape.space, len(shape.walk)
    order = (*shape.walk, *range(count, len(space.sizes)))
    where = {
        view: replace(seen, strides=tuple(seen.strides[dimension] for dimension in order))
        for view, seen in space.where.items()
    }
    sizes = tuple(space.sizes[dimension] for dimension in order)
    turned = Space(sizes, tuple(space.names[dimension] for dimension in order), where, space.index)
    return replace(
        shape, space=turned, outer=count, rows=math.prod(sizes[:count]), length=math.prod(sizes[count:]), splits=1
    )


def _whole(name: str) -> str:
    """The name of the kernel parameter that points to a reduction's states of whole rows."""
    return f"whole_{to_identifier(name)}"


def _let_values(steps: Iterable[Step]) -> list[Expr]:
    """The expressions of the Let steps."""
    return [step.value for step in steps if isinstance(step, Let)]


def _flat(dimensions: Iterable[tuple[str, int]]) -> str:
    """C text of the row-major index over (name, size) dimensions; "0" without any."""
    found = ""
    for name, size in dimensions:
        found = f"({found}) * {size} + {name}" if found else name
    return found or "0"
