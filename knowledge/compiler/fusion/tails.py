"""Reduction epilogues (`tail`): a row kernel that reads all of a product's or convolution's result moves into the
kernel that computes it.

A result that no other step needs is then never written. If the row kernel also stores a value for each element, a
convolution whose channels fit one tile stores it at once. Otherwise a map reads the result again, with the reduced
values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.fusion.finish.row_constants import hoist_row_constants
from foundry.knowledge.compiler.fusion.finish.tidy import tidy
from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.fusion.windows import split_rounding
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import column_axis, reductions_of, store_space
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    ConvKernel,
    Emit,
    EmitRow,
    Expr,
    Gather,
    GemmKernel,
    Let,
    Load,
    MapKernel,
    Named,
    Reduction,
    RowKernel,
    Store,
    Tail,
    View,
)
from foundry.knowledge.compiler.ir.substitute import (
    SpaceMap,
    replace_loads,
    replace_names,
    same_view,
    sought,
)
from foundry.knowledge.compiler.ir.weight import limit_weight, weight_of
from foundry.knowledge.opgraph import ITEM_BYTES, contiguous_strides

WHOLE_CHANNELS = 128  # most channels for which a convolution's tile holds all channels of its pixels
_SIMPLE = ("sum", "max", "min")
_LONG_ROW_BYTES = 160 << 10  # a row kernel reads longer rows twice: they do not fit on chip
Contraction = GemmKernel | ConvKernel


def join_tails(state: FusionState) -> bool:
    """Gives products and convolutions a tail where a row kernel reads all of their result; True if any got one."""
    if not state.forms.has_tails:
        return False
    changed = False
    for kernel, name in state.producers():
        if not isinstance(kernel, Contraction) or kernel.tail is not None or not state.apart.isdisjoint(kernel.ops):
            continue
        for reader in state.readers(name):
            if not isinstance(reader, RowKernel) or not state.once("tail", kernel, reader):
                continue
            late = state.joinable(kernel, reader)
            joined = None if late is None else _join(state, kernel, reader, name)
            if late is None or joined is None:
                state.refuse("tail", kernel, reader)
                continue
            merged, after = joined
            state.join(kernel, reader, late, merged, worth_cutting=True)
            if after is not None:
                at = state.place(merged) + 1
                state.replace_steps([], [after], [*state.steps[:at], after, *state.steps[at:]])
            state.tailed.append(name)
            changed = True
            break
    return changed


def _join(
    state: FusionState, kernel: Contraction, reader: RowKernel, name: str
) -> tuple[Contraction, MapKernel | None] | None:
    """The kernel with its reduction epilogue, and the map that stores the reader's value for each element, if one is
    needed. None if they do not fit."""
    tidied = tidy(kernel)
    assert isinstance(tidied, Contraction)
    if isinstance(tidied, GemmKernel) and tidied.is_split:
        return None
    stays = state.must_stay(name, reader)
    reader = _hoisted(reader)
    for width in _widths(tidied, reader):
        found = _find_rows(tidied, reader, name, width)
        if found is not None:
            try:
                return _Join(state, tidied, reader, name, found).build(stays)
            except views.NotAffine:
                return None
    return None


def _hoisted(reader: RowKernel) -> RowKernel:
    """The reader with row constants of its stores computed once per row."""
    hoisted = hoist_row_constants(reader)
    return hoisted if reductions_of(hoisted) == reductions_of(reader) else reader


@dataclass(frozen=True)
class _Rows:
    """The mapping of a row kernel's space to a contraction's store space. "Cut" means that the column axis is split
    in two: which part, and the place in it."""

    mapping: SpaceMap  # the row kernel's space to the cut space
    whole: SpaceMap  # the row kernel's space to the store space
    extent: tuple[int, ...]  # a row's length along each axis of the store space
    numbering: View  # a row's number, over the cut space


def _widths(kernel: Contraction, reader: RowKernel) -> list[int]:
    """Lengths that a row may have along the column axis: all of it, one, or the products of the reader's reduced
    dimensions."""
    columns = store_space(kernel)[column_axis(kernel)]
    found = [columns, 1]
    length = 1
    for size in reversed(reader.reduced):
        length *= size
        found += [size, length]
    spatial = math.prod(store_space(kernel)[2:]) if isinstance(kernel, ConvKernel) else 1
    found += [math.prod(reader.reduced) // spatial]
    return [width for width in dict.fromkeys(found) if width and columns % width == 0]


def _cut(view: View, column: int, width: int) -> View:
    """The view with its column axis split in two: parts of `width`, and the place in the part."""
    before, after = view.strides[:column], view.strides[column + 1 :]
    return View(view.offset, (*before, view.strides[column] * width, view.strides[column], *after))


def _find_rows(kernel: Contraction, reader: RowKernel, name: str, width: int) -> _Rows | None:
    """The mapping of the reader's rows to the kernel's result if a row takes `width` columns, else None."""
    stored = next(store.view for store in kernel.stores if store.buffer == name)
    space = store_space(kernel)
    column = column_axis(kernel)
    shape = store_space(reader)
    view = sought(reader, name)
    if view is None or math.prod(shape) != math.prod(space) or views.covering_order(space, stored) is None:
        return None
    order = views.covering_order(shape, view)
    if order is None:
        return None
    cut = (*space[:column], space[column] // width, width, *space[column + 1 :])
    mapping = SpaceMap(shape, order, _cut(stored, column, width), cut)
    number = View(0, (*contiguous_strides(reader.outer), *(0,) * len(reader.reduced)))
    try:
        rows = mapping.view(number)
    except views.NotAffine:
        return None
    is_row = [size == 1 or stride != 0 for size, stride in zip(cut, rows.strides, strict=True)]
    counted = math.prod(size for size, stride in zip(cut, rows.strides, strict=True) if stride)
    in_row = width == 1 or not is_row[column + 1]
    if not (is_row[column] and in_row) or counted != math.prod(reader.outer):
        return None
    extent = [1 if is_row[axis + (axis > column)] else size for axis, size in enumerate(space)]
    extent[column] = width
    return _Rows(mapping, SpaceMap(shape, order, stored, space), tuple(extent), rows)


class _Join:
    """Builds the kernel with a reduction epilogue, and the map that may be needed after it, from a contraction and
    its row kernel."""

    def __init__(self, state: FusionState, kernel: Contraction, reader: RowKernel, name: str, rows: _Rows) -> None:
        """Finds the store that the row kernel reads, its column axis and the values that the reader emits."""
        self.state, self.kernel, self.reader, self.name, self.rows = state, kernel, reader, name, rows
        self.store = next(store for store in kernel.stores if store.buffer == name)
        self.column = column_axis(kernel)
        self.emits = [stage for stage in reader.stages if isinstance(stage, Emit)]
        self.others = {store.buffer for store in kernel.stores} - {name}

    def build(self, stays: bool) -> tuple[Contraction, MapKernel | None] | None:
        """The kernel with its reduction epilogue and the map after it, or None if it would be illegal or slower.
        `stays`: the result must be stored as well."""
        if not reductions_of(self.reader) or not self._reduces_at_once():
            return None
        is_whole = self._is_whole()
        if self.emits and not is_whole and not self._is_long():
            return None
        value, loaded = split_rounding(self.store.value)
        if not self._is_faster(value, is_whole):
            self.state.open_tails = True
            if not self.state.tails_anywhere:
                return None
        stages: list[Reduction | Let | Emit | EmitRow] = []
        for stage in self.reader.stages:
            if isinstance(stage, Reduction):
                stages.append(replace(stage, value=self._element(stage.value, loaded)))
            elif isinstance(stage, Let):
                stages.append(replace(stage, value=self._once_a_row(stage.value)))
            elif isinstance(stage, EmitRow):
                stages.append(EmitRow(self._row_store(stage.store)))
            elif is_whole:
                view = self.rows.whole.view(stage.store.view)
                element = _with_reciprocals(self._element(stage.store.value, loaded), stages)
                stages.append(Emit(Store(stage.store.buffer, view, element)))
        after = self._map(stages) if self.emits and not is_whole else None
        tail = Tail(value, self.rows.extent, tuple(stages))
        stays = stays or after is not None
        stores = tuple(store for store in self.kernel.stores if stays or store.buffer != self.name)
        ops = self.kernel.ops + self.reader.ops
        return replace(self.kernel, stores=stores, tail=tail, ops=ops), after

    def _reduces_at_once(self) -> bool:
        """True if no reduction needs another's result, except the sum of a softmax, or if a tile holds whole rows."""
        known: set[str] = set()
        for stage in self.reader.stages:
            if isinstance(stage, Reduction):
                names = {node.name for node in views.nodes(stage.value) if isinstance(node, Named)}
                if not names <= known or (names and not _is_softmax_sum(stage, self.reader)):
                    return self._is_whole()
                known |= {stage.name} if stage.op == "max" else set()
        return True

    def _is_whole(self) -> bool:
        """True if a tile has whole rows in its registers: all channels of some pixels."""
        kernel = self.kernel
        if not isinstance(kernel, ConvKernel) or kernel.groups > 1:
            return False
        of_pixel = (1, kernel.out_channels, *(1,) * len(kernel.output_size))
        return self.rows.extent == of_pixel and kernel.out_channels <= WHOLE_CHANNELS

    def _is_faster(self, value: Expr, is_whole: bool) -> bool:
        """True if this was faster on an H200: sums and extremes of a product's rows or a pixel's channels, and any
        reduction of an image of cheap values.

        Few warps end a tile, so exponentials take them longer than they take a row kernel.
        """
        if not isinstance(self.kernel, GemmKernel) and not is_whole:
            return weight_of(value, store_space(self.kernel)).is_cheap
        found = reductions_of(self.reader)
        simple = all(stage.op in _SIMPLE and not _is_softmax_sum(stage, self.reader) for stage in found)
        return simple and not self.emits

    def _is_long(self) -> bool:
        """True if a row is too long for a row kernel to keep on chip, so that it would read the result twice."""
        item = ITEM_BYTES[self.state.buffers[self.name].dtype]
        return math.prod(self.reader.reduced) * item > _LONG_ROW_BYTES

    # ------------------------------------------------ expressions

    def _element(self, expr: Expr, loaded: Expr) -> Expr:
        """A value of each element, over the kernel's store space. Raises NotAffine."""

        def leaf(node: Load | Gather) -> Expr | None:
            """The contraction's element in place of a load of its result. Raises NotAffine for loads that do not
            fit."""
            if node.buffer in self.others:
                raise views.NotAffine
            if node.buffer != self.name:
                return None
            if isinstance(node, Gather) or not same_view(node.view, self.store.view, store_space(self.kernel)):
                raise views.NotAffine
            return loaded

        return limit_weight(replace_loads(self.rows.whole.expr(expr), leaf))

    def _row_view(self, view: View) -> View:
        """A view of the cut space that does not vary along a row, as a view over the rows."""
        axes = range(len(view.strides) - 1)
        return View(view.offset, tuple(view.strides[axis + (axis > self.column)] for axis in axes))

    def _once_a_row(self, expr: Expr) -> Expr:
        """A value that each row has once, over the rows. Raises NotAffine if it reads the result."""
        moved = self.rows.mapping.expr(expr)
        own = {self.name, *self.others}
        if any(isinstance(node, Load | Gather) and node.buffer in own for node in views.nodes(moved)):
            raise views.NotAffine
        return limit_weight(views.map_views(moved, self._row_view))

    def _row_store(self, store: Store) -> Store:
        """The store of a value once per row, over the rows."""
        return Store(store.buffer, self._row_view(self.rows.mapping.view(store.view)), self._once_a_row(store.value))

    # ------------------------------------------------ the map

    def _map(self, stages: list[Reduction | Let | Emit | EmitRow]) -> MapKernel:
        """The map that stores the reader's value for each element. Appends stages to `stages` that store the row
        values it needs."""
        held: dict[str, str] = {}

        def load(node: Named) -> Expr:
            """A load of the value of a row, which the epilogue stores for the map after it; one store a value."""
            if node.name not in held:
                held[node.name] = self._buffer(node)
                stages.append(EmitRow(Store(held[node.name], self._row_view(self.rows.numbering), node)))
            return Load(held[node.name], self.rows.numbering, node.dtype)

        stores = tuple(
            Store(
                emit.store.buffer,
                self.rows.mapping.view(emit.store.view),
                limit_weight(replace_names(self.rows.mapping.expr(emit.store.value), load)),
            )
            for emit in self.emits
        )
        return MapKernel(self.reader.name, self.rows.mapping.new, stores, self.reader.ops)

    def _buffer(self, node: Named) -> str:
        """Adds a temporary buffer with one value per row and returns its name."""
        base = "".join(letter if letter.isalnum() else "_" for letter in f"{self.name}_{node.name}")
        name = base
        while name in self.state.buffers:
            name += "_"
        rows = math.prod(self.reader.outer)
        self.state.buffers[name] = Buffer(name, (rows,), (1,), node.dtype, "temporary")
        return name


def _with_reciprocals(expr: Expr, stages: list[Reduction | Let | Emit | EmitRow]) -> Expr:
    """The expression with each division by a row value replaced by a product with its reciprocal, which is computed
    once per row.

    A division has a branch, and few warps run at the end of a tile to hide it.
    """
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        """The expression with divisions by a row's float32 value as multiplications with its reciprocal, computed once
        a row."""
        if id(node) not in memo:
            memo[id(node)] = node
            if isinstance(node, Apply):
                args = tuple(visit(argument) for argument in node.args)
                by = args[1] if node.op == "div" else None
                if isinstance(by, Named) and by.name != "acc" and by.dtype == "float32":
                    name = f"{by.name}.reciprocal"
                    if not any(isinstance(stage, Let) and stage.name == name for stage in stages):
                        stages.append(Let(name, Apply("reciprocal", (by,), by.dtype)))
                    memo[id(node)] = Apply("mul", (args[0], Named(name, by.dtype)), node.dtype)
                else:
                    memo[id(node)] = replace(node, args=args)
            elif isinstance(node, Gather):
                memo[id(node)] = replace(node, index=visit(node.index))
        return memo[id(node)]

    return visit(expr)


def _is_softmax_sum(stage: Reduction, reader: RowKernel) -> bool:
    """True if the stage sums exp(x - maximum), with an earlier maximum of the same x."""
    value = stage.value
    if stage.op != "sum" or not isinstance(value, Apply) or value.op != "exp":
        return False
    inside = value.args[0]
    if not isinstance(inside, Apply) or inside.op != "sub" or not isinstance(inside.args[1], Named):
        return False
    top = inside.args[1].name
    return any(other.name == top and other.op == "max" for other in reductions_of(reader))
