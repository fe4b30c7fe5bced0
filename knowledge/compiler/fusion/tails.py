"""Reductions that leave a product or convolution with its result: a row kernel that reads all of a result becomes the
tail of the kernel that makes it.

Where nothing else needs the result, it is never written. Where the row kernel also stores a value for each element, a
convolution whose channels fit one tile stores it at once; else a map reads the result once more, with what was reduced.
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

WHOLE_CHANNELS = 128  # up to which a tile of a convolution has all channels of its pixels
_SIMPLE = ("sum", "max", "min")
_LONG_ROW_BYTES = 160 << 10  # beyond which a row kernel cannot keep its row on chip, and reads it twice
Contraction = GemmKernel | ConvKernel


def join_tails(state: FusionState) -> bool:
    """Gives products and convolutions a tail where a row kernel reads all of their result."""
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
    """The kernel with its tail, and the map that stores what the reader has for each element, if one is needed."""
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
    """The reader with what its stores need once a row computed once a row."""
    hoisted = hoist_row_constants(reader)
    return hoisted if reductions_of(hoisted) == reductions_of(reader) else reader


@dataclass(frozen=True)
class _Rows:
    """How a row kernel's space lies over a contraction's, whose column axis is cut in two: parts, and in them."""

    mapping: SpaceMap  # to the cut space
    whole: SpaceMap  # to the store space
    extent: tuple[int, ...]  # of a row along each axis of the store space
    numbering: View  # a row's number, over the cut space


def _widths(kernel: Contraction, reader: RowKernel) -> list[int]:
    """Lengths that a row may have along the column axis: all of it, one, or as the reader's dimensions have it."""
    columns = store_space(kernel)[column_axis(kernel)]
    found, length = [columns, 1], 1
    for size in reversed(reader.reduced):
        length *= size
        found += [size, length]
    spatial = math.prod(store_space(kernel)[2:]) if isinstance(kernel, ConvKernel) else 1
    found += [math.prod(reader.reduced) // spatial]
    return [width for width in dict.fromkeys(found) if width and columns % width == 0]


def _cut(view: View, column: int, width: int) -> View:
    before, after = view.strides[:column], view.strides[column + 1 :]
    return View(view.offset, (*before, view.strides[column] * width, view.strides[column], *after))


def _find_rows(kernel: Contraction, reader: RowKernel, name: str, width: int) -> _Rows | None:
    stored = next(store.view for store in kernel.stores if store.buffer == name)
    space, column, shape = store_space(kernel), column_axis(kernel), store_space(reader)
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
    def __init__(self, state: FusionState, kernel: Contraction, reader: RowKernel, name: str, rows: _Rows) -> None:
        self.state, self.kernel, self.reader, self.name, self.rows = state, kernel, reader, name, rows
        self.store = next(store for store in kernel.stores if store.buffer == name)
        self.column = column_axis(kernel)
        self.emits = [stage for stage in reader.stages if isinstance(stage, Emit)]
        self.others = {store.buffer for store in kernel.stores} - {name}

    def build(self, stays: bool) -> tuple[Contraction, MapKernel | None] | None:
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
        """Whether no reduction needs another's result, but for the sum of a softmax."""
        known: set[str] = set()
        for stage in self.reader.stages:
            if isinstance(stage, Reduction):
                names = {node.name for node in views.nodes(stage.value) if isinstance(node, Named)}
                if not names <= known or (names and not _is_softmax_sum(stage, self.reader)):
                    return self._is_whole()
                known |= {stage.name} if stage.op == "max" else set()
        return True

    def _is_whole(self) -> bool:
        """Whether a tile has whole rows in its registers: all channels of some pixels."""
        kernel = self.kernel
        if not isinstance(kernel, ConvKernel) or kernel.groups > 1:
            return False
        of_pixel = (1, kernel.out_channels, *(1,) * len(kernel.output_size))
        return self.rows.extent == of_pixel and kernel.out_channels <= WHOLE_CHANNELS

    def _is_faster(self, value: Expr, is_whole: bool) -> bool:
        """Whether an H200 was faster so: sums and extremes of a product's rows or a pixel's channels, and whatever is
        made of an image of cheap values. Few warps end a tile, and exponentials take them longer than a row kernel."""
        if not isinstance(self.kernel, GemmKernel) and not is_whole:
            return weight_of(value, store_space(self.kernel)).cheap
        found = reductions_of(self.reader)
        simple = all(stage.op in _SIMPLE and not _is_softmax_sum(stage, self.reader) for stage in found)
        return simple and not self.emits

    def _is_long(self) -> bool:
        item = ITEM_BYTES[self.state.buffers[self.name].dtype]
        return math.prod(self.reader.reduced) * item > _LONG_ROW_BYTES

    # ------------------------------------------------ expressions

    def _element(self, expr: Expr, loaded: Expr) -> Expr:
        """A value of each element, over the store space."""

        def leaf(node: Load | Gather) -> Expr | None:
            if node.buffer in self.others:
                raise views.NotAffine
            if node.buffer != self.name:
                return None
            if isinstance(node, Gather) or not same_view(node.view, self.store.view, store_space(self.kernel)):
                raise views.NotAffine
            return loaded

        return limit_weight(replace_loads(self.rows.whole.expr(expr), leaf))

    def _row_view(self, view: View) -> View:
        """A view of the cut space that does not vary along a row, over the rows' space."""
        axes = range(len(view.strides) - 1)
        return View(view.offset, tuple(view.strides[axis + (axis > self.column)] for axis in axes))

    def _once_a_row(self, expr: Expr) -> Expr:
        moved = self.rows.mapping.expr(expr)
        own = {self.name, *self.others}
        if any(isinstance(node, Load | Gather) and node.buffer in own for node in views.nodes(moved)):
            raise views.NotAffine
        return limit_weight(views.map_views(moved, self._row_view))

    def _row_store(self, store: Store) -> Store:
        return Store(store.buffer, self._row_view(self.rows.mapping.view(store.view)), self._once_a_row(store.value))

    # ------------------------------------------------ the map

    def _map(self, stages: list[Reduction | Let | Emit | EmitRow]) -> MapKernel:
        """The stores of each element as a map, and once a row the stores of the values that it needs."""
        held: dict[str, str] = {}

        def load(node: Named) -> Expr:
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
        """A new temporary with a value a row."""
        base = "".join(letter if letter.isalnum() else "_" for letter in f"{self.name}_{node.name}")
        name = base
        while name in self.state.buffers:
            name += "_"
        rows = math.prod(self.reader.outer)
        self.state.buffers[name] = Buffer(name, (rows,), (1,), node.dtype, "temporary")
        return name


def _with_reciprocals(expr: Expr, stages: list[Reduction | Let | Emit | EmitRow]) -> Expr:
    """The expression with divisions by what a row has once as products with its reciprocal, which the row has once too:
    a division has a branch, and a product ends with few warps to hide it."""
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
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
    """Whether it adds up exp(x - maximum) of an earlier maximum of the same x."""
    value = stage.value
    if stage.op != "sum" or not isinstance(value, Apply) or value.op != "exp":
        return False
    inside = value.args[0]
    if not isinstance(inside, Apply) or inside.op != "sub" or not isinstance(inside.args[1], Named):
        return False
    top = inside.args[1].name
    return any(other.name == top and other.op == "max" for other in reductions_of(reader))
