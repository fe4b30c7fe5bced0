"""Joins a map or a row kernel to a row kernel over the same rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import rewritten, store_space, stores_of
from foundry.knowledge.compiler.ir.kernels import (
    Emit,
    EmitRow,
    Expr,
    Kernel,
    Let,
    Load,
    MapKernel,
    PoolKernel,
    Reduction,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.ir.substitute import SpaceMap, sought, substitute_loads
from foundry.knowledge.compiler.ir.weight import limit_weight
from foundry.knowledge.targets import JoinLimits

Shape = tuple[int, ...]
Stage = Reduction | Let | Emit | EmitRow


@dataclass(frozen=True)
class _Join:
    """A possible join: the row kernel (perhaps over finer dimensions) and the mapping from the consumer's space to
    its space."""

    kernel: RowKernel
    mapping: SpaceMap
    per_row: bool  # the consumer's points are rows
    spreads: bool = False  # the consumer computes many elements from a value that each row has once


def join_rows(kernel: RowKernel, consumer: MapKernel | RowKernel, name: str, *, limits: JoinLimits) -> RowKernel | None:
    """The row kernel with the consumer's work as further stages. None if their rows differ or it would not pay."""
    found = _find_join(kernel, consumer, name)
    if found is None:
        return None
    if not found.per_row and _too_few_rows(kernel, limits):
        return None
    produced = {stage.buffer: stage for stage in stores_of(found.kernel)}
    space = store_space(found.kernel)
    try:
        stages = _stages(consumer, found, produced, space)
    except views.NotAffine:
        return None
    if isinstance(consumer, RowKernel) or (found.spreads and math.prod(space) >= limits.scattered):
        writes = isinstance(consumer, MapKernel)
        own, added = _walks(found.kernel, found.kernel.stages), _walks(found.kernel, stages, writes=writes)
        if len(own) == len(added) == 1 and own != added:
            return None
    return replace(found.kernel, stages=found.kernel.stages + stages, ops=kernel.ops + consumer.ops)


def _walks(kernel: RowKernel, stages: tuple[Stage, ...], *, writes: bool = False) -> set[str]:
    """Directions in which matrices that the stages read are contiguous: "rows", "columns", or both. With `writes`, the
    matrices that they write count too.

    One kernel cannot walk both ways without touching one cache line per element of one matrix.
    """
    found = set()
    rank = len(kernel.outer)
    stores = [stage.store for stage in stages if isinstance(stage, Emit | EmitRow)]
    values = [stage.value for stage in stages if not isinstance(stage, Emit | EmitRow)]
    values += [store.value for store in stores]
    seen = [node.view for value in values for node in views.nodes(value) if isinstance(node, Load)]
    for view in (*seen, *(store.view for store in stores if writes)):
        steps = [(step, axis) for axis, step in enumerate(view.strides) if step and store_space(kernel)[axis] > 1]
        if {axis < rank for _, axis in steps} == {True, False}:
            step, axis = min(steps)
            found |= {"columns" if axis < rank else "rows"} if step == 1 else set()
    return found


def _too_few_rows(kernel: RowKernel, limits: JoinLimits) -> bool:
    """True if the kernel has few and long rows, so that one kernel would leave cores or SMs idle."""
    return math.prod(kernel.outer) < limits.rows and math.prod(kernel.reduced) >= limits.elements


def _stages(
    consumer: MapKernel | RowKernel, found: _Join, produced: dict[str, Store], space: Shape
) -> tuple[Stage, ...]:
    """The consumer's work as stages of the row kernel, with loads of `produced` buffers replaced by the values
    stored there."""
    mapping = found.mapping

    def moved(expr: Expr) -> Expr:
        """The expression in the joined kernel's space, with loads of produced buffers replaced by their values. Raises
        NotAffine if that cannot be."""
        return limit_weight(substitute_loads(mapping.expr(expr), produced, space))

    def stored(store: Store) -> Store:
        """The store in the joined kernel's space."""
        return Store(store.buffer, mapping.view(store.view), moved(store.value))

    if isinstance(consumer, MapKernel):
        kind = EmitRow if found.per_row else Emit
        return tuple(kind(stored(store)) for store in consumer.stores)
    stages: list[Stage] = []
    for stage in consumer.stages:
        if isinstance(stage, Emit | EmitRow):
            stages.append(replace(stage, store=stored(stage.store)))
        else:
            stages.append(replace(stage, value=moved(stage.value)))
    return tuple(stages)


def _find_join(kernel: RowKernel, consumer: MapKernel | RowKernel, name: str) -> _Join | None:
    """The mapping from the consumer's space to the row kernel's, over finer dimensions if the given ones do not fit.
    None if there is none."""
    view = sought(consumer, name)
    if view is None:
        return None
    full = any(isinstance(stage, Emit) and stage.store.buffer == name for stage in kernel.stages)
    return _over_elements(kernel, consumer, name, view) if full else _over_rows(kernel, consumer, view)


def _over_elements(kernel: RowKernel, consumer: MapKernel | RowKernel, name: str, view: View) -> _Join | None:
    """The join for a consumer that reads a value stored for every element of the rows, or None."""
    stored = next(store for store in stores_of(kernel) if store.buffer == name)
    shape, space = store_space(consumer), store_space(kernel)
    order = views.covering_order(shape, view)
    if order is None or views.covering_order(space, stored.view) is None:
        return None
    if isinstance(consumer, RowKernel):
        own = views.merge_dimensions(kernel.reduced, stored.view.strides[len(kernel.outer) :])
        other = views.merge_dimensions(consumer.reduced, view.strides[len(consumer.outer) :])
        if own != other:
            return None
    for candidate in (kernel, _finer(kernel, consumer, order, stored.view)):
        if candidate is None:
            continue
        numbered = next(store for store in stores_of(candidate) if store.buffer == name)
        join = _Join(candidate, SpaceMap(shape, order, numbered.view, store_space(candidate)), False)
        if _fits(join, consumer):
            return join
    return None


def _finer(
    kernel: RowKernel, consumer: MapKernel | RowKernel, order: tuple[int, ...], stored: View
) -> RowKernel | None:
    """The kernel with its dimensions split at the boundaries of the consumer's dimensions, if rows come first in
    memory; else None."""
    if views.covering_order(store_space(kernel), stored) != tuple(range(len(store_space(kernel)))):
        return None
    shape = tuple(store_space(consumer)[axis] for axis in order)
    return _split_along(kernel, shape)


def _split_along(kernel: RowKernel, shape: Shape) -> RowKernel | None:
    """The kernel with its dimensions split so that they end where those of `shape` (the same elements) end. None if
    that is impossible."""
    finer = views.common_refinement(store_space(kernel), shape)
    if finer is None:
        return None
    rows = math.prod(kernel.outer)
    rank = 0
    covered = 1
    while covered < rows and rank < len(finer):
        covered *= finer[rank]
        rank += 1
    return _split(kernel, finer[:rank], finer[rank:]) if covered == rows else None


def finer_consumer(step: Kernel, name: str, shape: Shape) -> Kernel | None:
    """A map, row or pool kernel that reads all of a buffer in order, over dimensions as fine as the producer's
    `shape`. None if it is no such kernel."""
    view = sought(step, name)
    if view is not None and isinstance(step, PoolKernel):
        return _finer_pool(step, view, shape)
    if view is None or not isinstance(step, MapKernel | RowKernel):
        return None
    space = store_space(step)
    if math.prod(space) != math.prod(shape) or not views.is_identity(view, space):
        return None
    if isinstance(step, RowKernel):
        return _split_along(step, shape)
    finer = views.common_refinement(space, shape)
    if finer is None:
        return None
    numbering = views.identity(finer)
    stores = tuple(views.remap_store(store, space, numbering, finer) for store in step.stores)
    return replace(step, shape=finer, stores=stores)


def _finer_pool(pool: PoolKernel, view: View, shape: Shape) -> PoolKernel | None:
    """The pool with its outer dimensions split at the boundaries of the leading dimensions of `shape`."""
    images = math.prod(pool.outer)
    leading = 0
    while leading < len(shape) and math.prod(shape[:leading]) < images:
        leading += 1
    finer = views.common_refinement(pool.outer, shape[:leading])
    if finer is None or not views.is_identity(view, pool.outer + pool.input_size):
        return None
    old, new = pool.outer + pool.output_size, finer + pool.output_size
    numbering = views.identity(new)
    stores = tuple(views.remap_store(store, old, numbering, new) for store in pool.stores)
    inside = finer + pool.input_size
    value = views.remap(pool.value, pool.outer + pool.input_size, views.identity(inside), inside)
    return replace(pool, outer=finer, value=value, stores=stores)


def _over_rows(kernel: RowKernel, consumer: MapKernel | RowKernel, view: View) -> _Join | None:
    """The join for a consumer that reads a value stored once per row, or None."""
    shape = store_space(consumer)
    long = [axis for axis, size in enumerate(shape) if size > 1]
    across = [axis for axis in long if view.strides[axis] == 0]
    down = sorted((axis for axis in long if view.strides[axis]), key=lambda axis: -view.strides[axis])
    outer = tuple(shape[axis] for axis in down)
    if view.offset or math.prod(outer) != math.prod(kernel.outer):
        return None
    if views.covering_order(outer, View(0, tuple(view.strides[axis] for axis in down))) is None:
        return None
    if isinstance(consumer, RowKernel):
        rank = len(consumer.outer)
        if any(axis < rank for axis in across) or any(axis >= rank for axis in down):
            return None
    per_row = not across and isinstance(consumer, MapKernel)
    reduced = tuple(shape[axis] for axis in across)
    short = tuple(axis for axis, size in enumerate(shape) if size == 1)
    if not per_row and math.prod(reduced) != math.prod(kernel.reduced):
        return None
    order = (*down, *across, *short)
    finer_outer = views.common_refinement(kernel.outer, outer)
    finer_reduced = kernel.reduced if per_row else views.common_refinement(kernel.reduced, reduced)
    if finer_outer is None or finer_reduced is None:
        return None
    for candidate in (kernel, _split(kernel, finer_outer, finer_reduced)):
        space = store_space(candidate)
        numbering = views.identity(candidate.outer) if per_row else views.identity(space)
        if per_row:
            numbering = View(0, numbering.strides + (0,) * len(candidate.reduced))
        join = _Join(candidate, SpaceMap(shape, order, numbering, space), per_row, spreads=not per_row)
        if _fits(join, consumer):
            return join
    return None


def _fits(join: _Join, consumer: MapKernel | RowKernel) -> bool:
    """True if all views of the consumer remain affine under the join's mapping."""
    try:
        rewritten(consumer, lambda expr, _: join.mapping.expr(expr))
        for store in stores_of(consumer):
            join.mapping.view(store.view)
    except views.NotAffine:
        return False
    return True


def _split(kernel: RowKernel, outer: Shape, reduced: Shape) -> RowKernel:
    """The same kernel over the finer dimensions `outer` and `reduced`; splitting never fails."""
    old = store_space(kernel)
    new = outer + reduced
    numbering = views.identity(new)
    changed = rewritten(kernel, lambda expr, _: views.remap(expr, old, numbering, new))
    assert isinstance(changed, RowKernel)
    stages = tuple(
        replace(stage, store=replace(stage.store, view=views.remap_view(stage.store.view, old, numbering, new)))
        if isinstance(stage, Emit | EmitRow)
        else stage
        for stage in changed.stages
    )
    return replace(changed, outer=outer, reduced=reduced, stages=stages)
