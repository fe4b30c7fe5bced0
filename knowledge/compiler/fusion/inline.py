"""Fuses a map into the kernels that read it: its expression replaces their loads, or its store joins the first
reader."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from foundry.knowledge.compiler.fusion.rows import finer_consumer
from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step, expressions, fixed_reads, rewritten, store_space
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    AttentionKernel,
    ConvKernel,
    Emit,
    Expr,
    Gather,
    GemmKernel,
    GroupedKernel,
    Kernel,
    Load,
    MapKernel,
    PoolKernel,
    RowKernel,
    SelectKernel,
    Store,
    TorchCall,
    View,
)
from foundry.knowledge.compiler.ir.scalar import EXPENSIVE
from foundry.knowledge.compiler.ir.substitute import replace_loads, sought
from foundry.knowledge.compiler.ir.weight import Work, limit_weight, weight_of

Shape = tuple[int, ...]


def inline_maps(state: FusionState) -> bool:
    """Inlines maps whose readers are all maps. True if one was inlined."""
    return _inline(state, lambda step: isinstance(step, MapKernel))


def inline_anywhere(state: FusionState) -> bool:
    """Inlines maps whatever their readers are. True if one was inlined."""
    return _inline(state, lambda step: True)


def _inline(state: FusionState, suits: Callable[[Step], bool]) -> bool:
    """Replaces a map by its expression in all of its readers, if `suits` accepts each. True if one was inlined."""
    changed = False
    for kernel, name in state.producers():
        if not isinstance(kernel, MapKernel) or name in state.kept:
            continue
        consumers = state.readers(name)
        rule = f"inline {len(consumers)}"
        if not consumers or not all(suits(step) and state.once(rule, kernel, step) for step in consumers):
            continue
        store = next(store for store in kernel.stores if store.buffer == name)
        replaced = _inline_into_readers(kernel, store, consumers)
        if replaced is None:
            for step in consumers:
                state.refuse(rule, kernel, step)
            continue
        for old, new in zip(consumers, replaced, strict=True):
            state.swap(old, new)
        rest = tuple(other for other in kernel.stores if other.buffer != name)
        if rest:
            state.swap(kernel, replace(kernel, stores=rest))
        else:
            state.remove(kernel)
        state.gone[name] = _worth_cutting(store.value, consumers)
        changed = True
    return changed


def _worth_cutting(value: Expr, consumers: list[Step]) -> bool:
    """True if writing the value to memory instead may pay: after expensive work, or before anything but a cheap
    pointwise chain."""
    if any(not isinstance(step, MapKernel) for step in consumers) or len(consumers) > 1:
        return any(isinstance(node, Apply) and node.op != "cast" for node in views.nodes(value))
    outer = value
    while isinstance(outer, Apply) and outer.op == "cast":
        outer = outer.args[0]
    return isinstance(outer, Apply) and outer.op in EXPENSIVE


def _inline_into_readers(kernel: MapKernel, store: Store, consumers: list[Step]) -> list[Step] | None:
    """The consumers with the map's expression in place of their loads, or None if one cannot take it or should not."""
    if not views.is_identity(store.view, kernel.shape):
        return None
    weight = weight_of(store.value, kernel.shape)
    result: list[Step] = []
    for step in consumers:
        if isinstance(step, TorchCall) or not _worth_inlining(kernel, weight, store, step, len(consumers)):
            return None
        operands = _with_operand(step, store, kernel.shape) if store.buffer in fixed_reads(step) else step
        changed = None if operands is None else _with_inlined(operands, store, kernel.shape)
        if changed is None:
            return None
        result.append(replace(changed, ops=kernel.ops + step.ops))
    return result


def _with_inlined(step: Kernel, store: Store, shape: Shape) -> Kernel | None:
    """The consumer with the stored expression inlined, over finer dimensions if its own are too coarse. None if
    neither works."""

    def visit(expr: Expr, space: Shape) -> Expr:
        """The expression with loads of the store's buffer replaced by its value. Raises NotAffine if it becomes too
        large."""
        return limit_weight(inline_store(expr, space, store, shape))

    for candidate in (step, finer_consumer(step, store.buffer, shape)):
        if candidate is not None:
            try:
                return rewritten(candidate, visit)
            except views.NotAffine:
                continue
    return None


def _with_operand(step: Kernel, store: Store, shape: Shape) -> Kernel | None:
    """A convolution or attention that reads a copied operand, changed to read the original. None if the operand is
    computed: only a plain load is possible there."""
    source = store.value
    if not isinstance(source, Load) or not isinstance(step, ConvKernel | AttentionKernel):
        return None
    try:
        if isinstance(step, ConvKernel):
            if step.x != store.buffer or step.weight == store.buffer:
                return None
            space = (step.batch, step.in_channels, *step.input_size)
            view = views.remap_view(source.view, shape, View(step.x_offset, step.x_strides), space)
            return replace(step, x=source.buffer, x_offset=view.offset, x_strides=view.strides)
        sizes = ((step.rows, step.head), (step.columns, step.head), (step.columns, step.value_head))
        loads = []
        for load, size in zip((step.q, step.k, step.v), sizes, strict=True):
            if load.buffer == store.buffer:
                view = views.remap_view(source.view, shape, load.view, (*step.batch, *size))
                load = Load(source.buffer, view, source.dtype)
            loads.append(load)
        return replace(step, q=loads[0], k=loads[1], v=loads[2])
    except views.NotAffine:
        return None


def inline_store(expr: Expr, space: Shape, store: Store, shape: Shape) -> Expr:
    """`expr` (over `space`) with each load of the stored buffer replaced by the expression stored at that point."""

    def leaf(node: Load | Gather) -> Expr | None:
        """The store's value in place of a load of its buffer; None for other loads."""
        if node.buffer != store.buffer:
            return None
        if isinstance(node, Gather):
            return views.at_gather(store.value, shape, node, space)
        return views.remap(store.value, shape, node.view, space)

    return replace_loads(expr, leaf)


def _worth_inlining(kernel: MapKernel, weight: Work, store: Store, step: Kernel, readers: int) -> bool:
    """True if computing the value in its consumer costs no more than writing and reading it."""
    if weight.nothing:
        return True
    if readers > 1:
        return weight.is_cheap and weight.large_loads <= 1
    repeats = _repeats(kernel, store, step)
    if repeats > 1:
        return weight.is_cheap and weight.large_loads <= 2 and (repeats < 4 or weight.roots == 0)
    return True


def _repeats(kernel: MapKernel, store: Store, step: Kernel) -> float:
    """The most times that `step` would compute an element of the kernel's result, over all places that read it."""
    own = math.prod(kernel.shape)
    most = 0.0
    if isinstance(step, RowKernel):
        rank = len(step.outer)
        for expr, space in expressions(step):
            for node in views.nodes(expr):
                if isinstance(node, Load | Gather) and node.buffer == store.buffer:
                    once_a_row = isinstance(node, Load) and not any(node.view.strides[rank:])
                    points = math.prod(step.outer) if once_a_row else math.prod(space)
                    most = max(most, points / own)
        return most
    for expr, space in expressions(step):
        if any(isinstance(node, Load | Gather) and node.buffer == store.buffer for node in views.nodes(expr)):
            factor = math.prod(space) / own
            operand = isinstance(step, GemmKernel | GroupedKernel) and (expr is step.a or expr is step.b)
            window = isinstance(step, PoolKernel) and expr is step.value and _overlaps(step)
            again = isinstance(step, SelectKernel) and expr is step.value  # selection reads rows in several passes
            most = max(most, factor + (1 if operand or window or again else 0))
    return most


def _overlaps(kernel: PoolKernel) -> bool:
    """True if the pool's windows overlap, so that elements are read several times."""
    return not kernel.kernel or any(width > step for width, step in zip(kernel.kernel, kernel.stride, strict=True))


# ---------------------------------------------------------------- carry


def carry(state: FusionState) -> bool:
    """Moves the store of a map whose result must stay in memory into the map's first reader, which then needs no
    load of it. True if one was moved."""
    return state.join_readers("carry", _carry_into)


def _carry_into(kernel: MapKernel, name: str, consumer: Step) -> Kernel | None:
    """The consumer with the kernel's store added and its load replaced, or None if the two do not cover the same
    elements."""
    if len(kernel.stores) != 1 or not isinstance(consumer, MapKernel | RowKernel):
        return None
    (store,) = kernel.stores
    view = sought(consumer, store.buffer)
    space = store_space(consumer)
    if view is None or not views.is_identity(store.view, kernel.shape):
        return None
    if math.prod(space) != math.prod(kernel.shape) or views.covering_order(space, view) is None:
        return None
    if isinstance(consumer, RowKernel) and not weight_of(store.value, kernel.shape).is_cheap:
        return None
    try:
        value = limit_weight(views.remap(store.value, kernel.shape, view, space))
        changed = rewritten(consumer, lambda expr, shape: limit_weight(inline_store(expr, shape, store, kernel.shape)))
    except views.NotAffine:
        return None
    carried = Store(store.buffer, view, value)
    ops = kernel.ops + consumer.ops
    if isinstance(changed, RowKernel):
        return replace(changed, stages=(Emit(carried), *changed.stages), ops=ops)
    assert isinstance(changed, MapKernel)
    return replace(changed, stores=(carried, *changed.stores), ops=ops)
