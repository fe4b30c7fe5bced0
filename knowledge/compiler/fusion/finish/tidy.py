"""Simplifies a fused kernel: merges dimensions, and computes row constants once for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from foundry.knowledge.compiler.fusion.finish.row_constants import hoist_row_constants
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import (
    Step,
    expressions,
    rewritten,
    store_space,
    stores_of,
    transposed,
)
from foundry.knowledge.compiler.ir.kernels import (
    AttentionKernel,
    Emit,
    EmitRow,
    Expr,
    GemmKernel,
    Kernel,
    MapKernel,
    PoolKernel,
    RowKernel,
    ScanKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.ir.substitute import with_shared_parts

Shape = tuple[int, ...]


def tidy(step: Step) -> Step:
    """The step with adjacent dimensions merged where all its views allow that; other kinds of steps as they are."""
    if isinstance(step, RowKernel):
        return _coalesce_row(hoist_row_constants(step))
    if isinstance(step, MapKernel):
        merged = _regroup(step, [(0, len(step.shape))])
        return with_shared_parts(merged) if isinstance(merged, MapKernel) else merged
    if isinstance(step, ScanKernel):
        return _regroup(step, [(0, len(step.shape) - 1)])
    if isinstance(step, GemmKernel) and step.tail is None:  # a product with a reduction epilogue was tidied before
        return _stored_along_rows(_merge_split(_regroup(step, [(0, len(step.batch))])))
    if isinstance(step, PoolKernel):
        return _regroup(step, [(0, len(step.outer))])
    if isinstance(step, AttentionKernel):
        return _regroup(step, [(0, len(step.batch))])
    return step


def _all_views(kernel: Kernel) -> list[View]:
    """Every view by which the kernel loads or stores."""
    found = [store.view for store in stores_of(kernel)]
    for expr, _ in expressions(kernel):
        found += [node.view for node in views.nodes(expr) if isinstance(node, views.Leaf)]
    if isinstance(kernel, AttentionKernel):
        found += [kernel.q.view, kernel.k.view, kernel.v.view]
    return found


def _leading_shape(kernel: Kernel) -> Shape:
    """The dimensions of the kernel that may be merged: outer and reduced ones, batch, or the whole shape."""
    if isinstance(kernel, RowKernel):
        return kernel.outer + kernel.reduced
    if isinstance(kernel, GemmKernel | AttentionKernel):
        return kernel.batch
    if isinstance(kernel, PoolKernel):
        return kernel.outer
    assert isinstance(kernel, MapKernel | ScanKernel)
    return kernel.shape


def _groups(kernel: Kernel, spans: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
    """For each span [start, stop) of dimensions, the groups of neighbouring dimensions that all views can treat as
    one."""
    shape = _leading_shape(kernel)
    found = _all_views(kernel)
    result = []
    for start, stop in spans:
        part = [view.strides[start:stop] for view in found]
        groups = views.joint_groups(shape[start:stop], part)
        result.append([[axis + start for axis in group] for group in groups])
    return result


def _with_axes(kernel: Kernel, axes: list[int], fixed_from: int) -> Kernel:
    """The kernel with each view reduced to the strides of `axes` and of the dimensions from `fixed_from` on."""

    def reindex(view: View) -> View:
        """The view with strides of these axes only; those from `fixed_from` on stay."""
        return View(view.offset, (*(view.strides[axis] for axis in axes), *view.strides[fixed_from:]))

    def visit(expr: Expr, _: Shape) -> Expr:
        """The expression with all its views re-indexed."""
        return views.rebuild(expr, lambda node: replace(node, view=reindex(node.view)))

    changed = rewritten(kernel, visit)
    if isinstance(changed, RowKernel):
        stages = tuple(
            replace(stage, store=replace(stage.store, view=reindex(stage.store.view)))
            if isinstance(stage, Emit | EmitRow)
            else stage
            for stage in changed.stages
        )
        return replace(changed, stages=stages)
    stores = tuple(replace(store, view=reindex(store.view)) for store in changed.stores)
    changed = replace(changed, stores=stores)
    if isinstance(changed, AttentionKernel):
        q, k, v = (replace(load, view=reindex(load.view)) for load in (changed.q, changed.k, changed.v))
        return replace(changed, q=q, k=k, v=v)
    return changed


def _sizes(shape: Shape, groups: list[list[int]]) -> Shape:
    """The size of each group of dimensions."""
    sizes = []
    for group in groups:
        size = 1
        for axis in group:
            size *= shape[axis]
        sizes.append(size)
    return tuple(sizes)


def _regroup(kernel: Kernel, spans: Sequence[tuple[int, int]]) -> Kernel:
    """The kernel with the dimensions of one span merged as far as its views allow."""
    shape = _leading_shape(kernel)
    (groups,) = _groups(kernel, spans)
    if isinstance(kernel, MapKernel) and not groups:
        groups = [[]] if not shape else [[0]]
    if isinstance(kernel, MapKernel) and not shape:
        return _scalar_map(kernel)
    axes = [group[-1] for group in groups]
    changed = _with_axes(kernel, axes, spans[0][1])
    sizes = _sizes(shape, groups)
    if isinstance(changed, GemmKernel | AttentionKernel):
        return replace(changed, batch=sizes)
    if isinstance(changed, PoolKernel):
        return replace(changed, outer=sizes)
    assert isinstance(changed, MapKernel | ScanKernel)
    return replace(changed, shape=sizes + shape[spans[0][1] :])


def _merge_split(kernel: Kernel) -> Kernel:
    """The product with m and n split into as few dimensions as the views of its stores allow."""
    if not isinstance(kernel, GemmKernel) or not kernel.is_split:
        return kernel
    space = store_space(kernel)
    rank = len(kernel.batch)
    found = views.stored_views(kernel.stores)
    middle = rank + len(kernel.m_shape)
    merged: list[list[list[int]]] = []
    for start, stop in ((rank, middle), (middle, len(space))):
        groups = views.joint_groups(space[start:stop], [view.strides[start:stop] for view in found])
        merged.append([[start + axis for axis in group] for group in groups] or [[start]])
    axes = [*range(rank), *(group[-1] for groups in merged for group in groups)]

    def reindex(view: View) -> View:
        """The view with the strides of these axes only."""
        return View(view.offset, tuple(view.strides[axis] for axis in axes))

    stores = tuple(views.map_store(store, reindex) for store in kernel.stores)
    m_sizes, n_sizes = (_sizes(space, groups) if len(groups) > 1 else () for groups in merged)
    return replace(kernel, stores=stores, m_sizes=m_sizes, n_sizes=n_sizes)


def _stored_along_rows(kernel: Kernel) -> Kernel:
    """The transposed product if its results are contiguous along columns, so that it stores along rows; else the
    kernel itself."""
    if not isinstance(kernel, GemmKernel) or min(kernel.m, kernel.n) == 1:
        return kernel
    down = len(kernel.batch) + len(kernel.m_shape) - 1
    lies_along_m = all(store.view.strides[down] == 1 != store.view.strides[-1] for store in kernel.stores)
    return transposed(kernel) if lies_along_m else kernel


def _scalar_map(kernel: MapKernel) -> MapKernel:
    """The map over a single point as a map over one dimension of size 1."""

    def reindex(view: View) -> View:
        """The view with one axis of stride 0."""
        return View(view.offset, (0,))

    stores = tuple(
        Store(
            store.buffer,
            reindex(store.view),
            views.rebuild(store.value, lambda node: replace(node, view=reindex(node.view))),
        )
        for store in kernel.stores
    )
    return replace(kernel, shape=(1,), stores=stores)


def _coalesce_row(kernel: RowKernel) -> RowKernel:
    """The kernel with outer and reduced dimensions merged separately; at least one reduced dimension stays."""
    rank = len(kernel.outer)
    shape = kernel.outer + kernel.reduced
    outer, reduced = _groups(kernel, [(0, rank), (rank, len(shape))])
    if not reduced:  # one element per row: the dimension stays, with stride 0
        return _with_extra_axis(_without_reduced(kernel, outer))
    axes = [group[-1] for group in [*outer, *reduced]]
    changed = _with_axes(kernel, axes, len(shape))
    assert isinstance(changed, RowKernel)
    return replace(changed, outer=_sizes(shape, outer), reduced=_sizes(shape, reduced))


def _without_reduced(kernel: RowKernel, outer: list[list[int]]) -> RowKernel:
    """The kernel with its outer dimensions merged into the groups `outer`, and no reduced dimension."""
    shape = kernel.outer + kernel.reduced
    changed = _with_axes(kernel, [group[-1] for group in outer], len(shape))
    assert isinstance(changed, RowKernel)
    return replace(changed, outer=_sizes(shape, outer), reduced=())


def _with_extra_axis(kernel: RowKernel) -> RowKernel:
    """The kernel with one reduced dimension of size 1."""

    def reindex(view: View) -> View:
        """The view with one more axis at the end, of stride 0."""
        return View(view.offset, (*view.strides, 0))

    def visit(expr: Expr, _: Shape) -> Expr:
        """The expression with all its views re-indexed."""
        return views.rebuild(expr, lambda node: replace(node, view=reindex(node.view)))

    changed = rewritten(kernel, visit)
    assert isinstance(changed, RowKernel)
    stages = tuple(
        replace(stage, store=replace(stage.store, view=reindex(stage.store.view)))
        if isinstance(stage, Emit | EmitRow)
        else stage
        for stage in changed.stages
    )
    return replace(changed, stages=stages, reduced=(1,))
