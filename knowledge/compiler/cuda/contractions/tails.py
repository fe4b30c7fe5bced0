"""Tails of products and convolutions in CUDA: rows that are reduced where the result is made.

Each warp reduces its own part of a row, a segment, and leaves one state of it in scratch memory. A small launch joins
the states of every row in a fixed order, and computes and stores what the tail has once a row. No sum is atomic, so the
same input always gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.launches import Argument, Launch
from foundry.knowledge.compiler.cuda.rows.steps import Accumulator, EmitPass, ReducePass, steps_of
from foundry.knowledge.compiler.cuda.space import (
    Space,
    decompose,
    indent,
    make_emitter,
    signature_of,
    to_identifier,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.substitute import replace_names
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.passes import RowStep
from foundry.knowledge.errors import CannotLower

_ALIGN = 256
_COLUMNS = 32  # rows of a block whose states are neighbours in memory
_BLOCK = 256  # threads of a block that has one row
_THREADS_WANTED = 1 << 17  # threads that join states: fewer leave the device idle while they wait for memory

_JOIN = """\
// Joins partial states of @NAME@ in a fixed order@ABOUT@.
extern "C" __global__ void __launch_bounds__(@THREADS@) @KERNEL@(@PARAMETERS@) {
@BODY@
}
"""


def tail_text() -> str:
    """The library text that kernels with a tail need."""
    return read_library_text("cuda/contractions/tails.cuh")


def compose(expr: ir.Expr, value: ir.Expr) -> ir.Expr:
    """A stage's expression with the tail's value in place of "acc"."""
    return replace_names(expr, lambda node: value if node.name == "acc" else node)


def element_values(tail: ir.Tail | None) -> list[ir.Expr]:
    """Expressions that a tail computes of each element, from the contraction's own sum; [] without a tail."""
    if tail is None:
        return []
    exprs = [stage.value for stage in tail.stages if isinstance(stage, ir.Reduction)]
    exprs += [store.value for store in element_stores(tail)]
    return [tail.value, *(compose(expr, tail.value) for expr in exprs)]


def element_stores(tail: ir.Tail | None) -> list[ir.Store]:
    """The stores that a tail makes for each element; [] without a tail."""
    return [stage.store for stage in tail.stages if isinstance(stage, ir.Emit)] if tail else []


def reduce_once(tail: ir.Tail) -> tuple[tuple[Accumulator, ...], list[RowStep]]:
    """(the reductions of one pass over a row, the steps once a row after them). Raises CannotLower for a tail that
    needs more than one pass."""
    steps = steps_of(tail.stages, online=True)
    reductions = [step for step in steps if isinstance(step, ReducePass)]
    if len(reductions) != 1 or any(isinstance(step, EmitPass) for step in steps):
        raise CannotLower("the tail needs more than one pass over a row")
    return reductions[0].accumulators, [step for step in steps if isinstance(step, ir.Let | ir.EmitRow)]


def state_name(item: Accumulator) -> str:
    """The C variable of a reduction's state."""
    return f"a_{to_identifier(item.name)}"


@dataclass(frozen=True)
class Kept:
    """Elements that an epilogue keeps in arrays for the states: `count` is the C size of the arrays, `slot` C text of
    the present element's index, `at` of its place in the row."""

    accumulators: tuple[Accumulator, ...]
    tail: ir.Tail
    count: str
    slot: str
    at: str

    def declare(self) -> list[str]:
        """C declarations of the arrays."""
        lines = [f"bool exists[{self.count}] = {{}};"]
        for item in self.accumulators:
            lines.append(f"{item.value_type} {state_name(item)}_values[{self.count}];")
        if any(item.indexed for item in self.accumulators):
            lines.append(f"int place_at[{self.count}];")
        return lines

    def values(self) -> dict[str, ir.Expr]:
        """C texts of the array elements that the epilogue's body assigns, with the expressions assigned."""
        return {
            f"{state_name(item)}_values[{self.slot}]": compose(item.value, self.tail.value)
            for item in self.accumulators
        }

    def note(self, exists: str) -> list[str]:
        """C statements that record which elements exist, and their places if a reduction needs them."""
        lines = [f"exists[{self.slot}] = {exists};"]
        if any(item.indexed for item in self.accumulators):
            lines.append(f"place_at[{self.slot}] = {self.at};")
        return lines

    def add(self, item: Accumulator, part: str = "") -> str:
        """The C statement that takes the elements into the state; `part` is an index into the arrays."""
        name = state_name(item)
        if item.indexed:
            return f"tails::add_at({name}, {name}_values{part}, place_at{part}, exists{part});"
        return f"tails::add({name}, {name}_values{part}, exists{part});"

    def reduce(self, item: Accumulator, masks: int, part: str, *, every: bool) -> str:
        """The C statement that reduces the elements of the lanes whose numbers differ in bits of `masks` to one state.
        `every`: all elements exist."""
        name = state_name(item)
        return f"tails::reduce<{masks}, {str(every).lower()}>({name}, {name}_values{part}, exists{part});"


@dataclass(frozen=True)
class Dimension:
    """A dimension of rows, or of a row's states, with its stride in states."""

    size: int
    stride: int


class Joined:
    """The states of a tail in scratch memory, and the launches that join them.

    `outer` are the dimensions of the tail's rows, `inner` those of a row's states. Each reduction has `states` states,
    from `memory` bytes into the workspace; `end` is the byte behind them. Raises CannotLower for a tail that needs more
    than one pass."""

    def __init__(
        self,
        name: str,
        plan: ir.Plan,
        tail: ir.Tail,
        *,
        outer: Sequence[Dimension],
        inner: Sequence[Dimension],
        states: int,
        memory: int,
    ) -> None:
        self.name, self.plan, self.tail = name, plan, tail
        self.accumulators, self.rest = reduce_once(tail)
        self.outer, self.inner = list(outer), [item for item in inner if item.size > 1]
        self.rows = math.prod(item.size for item in outer)
        self.elements = math.prod(item.size for item in inner)
        self.parts, self.team, self.is_column = self._shape()
        self.end = memory
        self.places = self._place(states)
        self.part_places = self._place(self.rows * self.parts) if self.parts > 1 else {}

    def _shape(self) -> tuple[int, int, bool]:
        """(parts of a row that are joined first, threads of a row, True if neighbouring threads have neighbouring
        rows)."""
        long = [item for item in self.outer if item.size > 1]
        beside = bool(long) and long[-1].stride == 1
        is_column = beside or not any(item.stride == 1 and item.size >= 4 for item in self.inner)
        team = _BLOCK
        if is_column:
            team = min(32, max(1, 2 ** max(0, math.ceil(math.log2(max(1, self.elements / 4))))))
        wanted = math.ceil(_THREADS_WANTED / (self.rows * team))
        return max(1, min(wanted, self.elements // (team * 8))), team, is_column

    def _place(self, states: int) -> dict[str, int]:
        """Reserves memory for `states` states of each reduction and moves `end` behind it. Returns their bytes in the
        workspace by the reduction's name."""
        found = {}
        for item in self.accumulators:
            found[item.name] = self.end
            self.end += math.ceil(states * item.state_bytes / _ALIGN) * _ALIGN
        return found

    def slots(self, places: Mapping[str, int] | None = None, *, const: bool = False) -> list[tuple[str, Argument]]:
        """(C parameter, launch argument) for the states of each reduction; `places`: their bytes in the workspace."""
        kind = "const " if const else ""
        found = self.places if places is None else places
        return [
            (
                f"{kind}{item.state}* __restrict__ w_{to_identifier(item.name)}",
                cuda_launch.workspace_argument(found[item.name]),
            )
            for item in self.accumulators
        ]

    def keep(self, item: Accumulator, place: str) -> str:
        """The C statement that writes a state to memory; `place` is C text of its index."""
        return f"w_{to_identifier(item.name)}[{place}] = {state_name(item)};"

    # ------------------------------------------------ the launches

    def launches(self) -> list[tuple[str, Launch]]:
        """(CUDA text, launch) of the one or two kernels that join the states."""
        if self.parts == 1:
            return [self._launch(self.outer, self.inner, self.places, 1)]
        strides = _contiguous([item.size for item in self.outer])
        joined = [Dimension(item.size, stride) for item, stride in zip(self.outer, strides, strict=True)]
        first = self._launch(self.outer, self.inner, self.places, self.parts)
        return [first, self._launch(joined, [Dimension(self.parts, self.rows)], self.part_places, 1)]

    def _launch(
        self, outer: Sequence[Dimension], inner: Sequence[Dimension], places: Mapping[str, int], parts: int
    ) -> tuple[str, Launch]:
        """(CUDA text, launch) that joins the states of every row to one, then finishes the row; or joins each of its
        `parts` to one state."""
        rows = self.rows * parts
        is_column = self.is_column or (self.parts > 1 and parts == 1)
        team = 32 if is_column and not self.is_column else self.team
        exact = not is_column or rows % _COLUMNS == 0
        names = [f"o{d}" if item.size > 1 else "0" for d, item in enumerate(outer)]
        lines = [f"typedef {item.state} S_{to_identifier(item.name)};" for item in self.accumulators]
        lines += self._find_row(parts, is_column=is_column, exact=exact)
        lines += self._merge([pair for pair in zip(outer, names, strict=True) if pair[0].size > 1], inner, parts, team)
        lines += self._combine(team, is_column)
        tests = ["lane == 0", *([] if exact else [f"here < {rows}"])]
        slots = self.slots(places, const=True)
        if parts > 1:
            stored = [
                f"j_{to_identifier(item.name)}[part * {self.rows} + row] = {state_name(item)};"
                for item in self.accumulators
            ]
            lines += [f"if ({' && '.join(tests)}) {{", *stored, "}"]
            slots += [(text.replace(" w_", " j_"), slot) for text, slot in self.slots(self.part_places)]
            reads: list[str] = []
        else:
            more, reads = self._finish(names, tests)
            lines += more
        texts = [text for text, _ in slots]
        arguments = [slot for _, slot in slots]
        if reads:
            texts, arguments = [reads[0], *texts], [*reads[1:], *arguments]
        threads = (_COLUMNS, team, 1) if is_column else (team, 1, 1)
        kernel = f"{self.name}_parts" if parts > 1 else f"{self.name}_rows"
        holes = {
            "NAME": self.name,
            "ABOUT": " into fewer" if parts > 1 else ", and stores what is made of a row",
            "THREADS": str(math.prod(threads)),
            "KERNEL": kernel,
            "PARAMETERS": ", ".join(texts),
            "BODY": indent(lines),
        }
        grid = (math.ceil(rows / _COLUMNS) if is_column else rows, 1, 1)
        return fill(_JOIN, holes), Launch(kernel, grid, threads, tuple(arguments))

    def _find_row(self, parts: int, *, is_column: bool, exact: bool) -> list[str]:
        """C statements that find a thread's row, and its part of it; `exact`: the last block is full."""
        rows = self.rows * parts
        place, lane = ("(int)blockIdx.x", "(int)threadIdx.x")
        if is_column:
            place, lane = f"(int)blockIdx.x * {_COLUMNS} + (int)threadIdx.x", "(int)threadIdx.y"
        lines = [f"const int lane = {lane}, here = {place};"]
        lines += ["const int all = here;" if exact else f"const int all = here < {rows} ? here : {rows - 1};"]
        if parts > 1:
            return [*lines, f"const int part = all / {self.rows}, row = all % {self.rows};"]
        return [*lines, "const int row = all;"]

    def _merge(
        self, outer: Sequence[tuple[Dimension, str]], inner: Sequence[Dimension], parts: int, team: int
    ) -> list[str]:
        """C statements in which a thread merges every `team`-th state of its row, or of its part of it. `outer` has
        dimensions with the names of their indices."""
        elements = math.prod(item.size for item in inner)
        lines = decompose("row", [item.size for item, _ in outer], [name for _, name in outer], "int") if outer else []
        lines += [f"{item.state} {state_name(item)};" for item in self.accumulators]
        chunk = math.ceil(elements / parts)
        begin, end = (f"part * {chunk}", f"math::minimum(part * {chunk} + {chunk}, {elements})")
        first, stop = ("lane", str(elements)) if parts == 1 else (f"{begin} + lane", end)
        lines += ["#pragma unroll 4", f"for (int e = {first}; e < {stop}; e += {team}) {{"]
        lines += (
            decompose("e", [item.size for item in inner], [f"e{d}" for d in range(len(inner))], "int") if inner else []
        )
        address = [f"(long long){name} * {item.stride}" for item, name in outer]
        address += [f"(long long)e{d} * {item.stride}" for d, item in enumerate(inner)]
        lines += [f"const long long from = {' + '.join(address) or '0'};"]
        lines += [f"{state_name(item)}.merge(w_{to_identifier(item.name)}[from]);" for item in self.accumulators]
        return [*lines, "}"]

    def _combine(self, team: int, is_column: bool) -> list[str]:
        """C statements that combine the states of a row's threads."""
        lines = []
        for item in self.accumulators:
            state, slots = state_name(item), f"partials_{to_identifier(item.name)}"
            count = _COLUMNS * team if is_column else team // 32
            call = f"reduce_column<{team}, {_COLUMNS}>" if is_column else f"reduce_block<{team // 32}>"
            lines.append(f"SHARED_STATES(S_{to_identifier(item.name)}, {slots}, {count});")
            lines.append(f"{state} = {call}({state}, {slots});")
        return lines

    def _finish(self, names: Sequence[str], tests: Sequence[str]) -> tuple[list[str], list[str]]:
        """(C statements that compute and store a row's results, [parameter list, its buffers ...])."""
        known = define_results(self.accumulators)
        lines = [f"const auto {text} = {source};" for text, source in known.texts]
        space = row_space(self.rest, [item.size for item in self.outer], names)
        body = finish_row(self.rest, space, self.plan, known.names)
        values, stores = row_values(self.rest)
        signature, arguments = signature_of(self.plan, leaves(values), stores)
        return [*lines, f"if ({' && '.join(tests)}) {{", *body, "}"], [signature, *arguments]


@dataclass(frozen=True)
class Results:
    """Named values of reductions: `names` has the C variable of each, `texts` (C variable, C text of its value)."""

    names: dict[str, str]
    texts: list[tuple[str, str]]


def define_results(accumulators: Sequence[Accumulator], at: str = "") -> Results:
    """The named values of the reductions. `at`: C index of an element if states are in arrays, else ""."""
    names, texts = {}, []
    for item in accumulators:
        for name, member in item.defines:
            names[name] = f"n_{to_identifier(name)}"
            texts.append((names[name], f"{state_name(item)}{at}.{member}"))
    return Results(names, texts)


def row_values(rest: Sequence[RowStep]) -> tuple[list[ir.Expr], list[ir.Store]]:
    """(expressions that are computed once a row, stores among them)."""
    values = [step.value if isinstance(step, ir.Let) else step.store.value for step in rest]
    return values, [step.store for step in rest if isinstance(step, ir.EmitRow)]


def row_space(rest: Sequence[RowStep], sizes: Sequence[int], names: Sequence[str]) -> Space:
    """The space of a tail's rows, over which its stages have their views."""
    values, stores = row_values(rest)
    seen: list[ir.View] = [leaf.view for leaf in leaves(values)] + [store.view for store in stores]
    return Space(tuple(sizes), tuple(names), {view: view for view in seen}, "int")


def finish_row(rest: Sequence[RowStep], space: Space, plan: ir.Plan, names: dict[str, str]) -> list[str]:
    """C statements that compute and store what a row has once; `names` has the C texts of its reductions' results."""
    lines: list[str] = []
    known = dict(names)
    for number, step in enumerate(rest):
        body = make_emitter(space, [], known, f"z{number}_")
        if isinstance(step, ir.Let):
            known[step.name] = f"n_{to_identifier(step.name)}"
            body.lines.append(f"const auto {known[step.name]} = {body.value(step.value)};")
        else:
            body.store(step.store, space.offset, plan.buffers[step.store.buffer].dtype)
        lines += body.lines
    return lines


def _contiguous(sizes: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor of these sizes, in elements."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= size
    return strides[::-1]
