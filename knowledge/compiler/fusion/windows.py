"""Pools of a convolution's result: windows without overlap are reduced in the convolution's epilogue."""

from __future__ import annotations

import math
from dataclasses import replace

from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import store_space
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    ConvKernel,
    EmitRow,
    Expr,
    Gather,
    Let,
    Load,
    Named,
    PoolKernel,
    Reduction,
    Store,
    Tail,
)
from foundry.knowledge.compiler.ir.substitute import (
    SpaceMap,
    replace_loads,
    replace_names,
    same_view,
    sought,
)

_WINDOWS = (2, 4, 8, 16)  # window sizes in outputs that the lanes of a warp can share


def join_windows(state: FusionState) -> bool:
    """Joins convolutions with the pool that alone reads their result, where it is faster; True if any was joined.

    The pool becomes the convolution's tail. Pairs that cannot be joined are remembered as refused.
    """
    if not state.forms.has_tails:
        return False
    changed = False
    for kernel, name in state.producers():
        if not isinstance(kernel, ConvKernel) or kernel.tail is not None or not state.apart.isdisjoint(kernel.ops):
            continue
        readers = state.readers(name)
        pool = readers[0] if len(readers) == 1 else None
        if not isinstance(pool, PoolKernel) or state.must_stay(name, pool) or not state.once("windows", kernel, pool):
            continue
        if not _is_faster(kernel, pool):
            state.open_tails = state.open_tails or _tiles(kernel, pool)
            if not state.tails_anywhere:
                continue
        late = state.joinable(kernel, pool)
        try:
            merged = None if late is None else _join(kernel, pool, name)
        except views.NotAffine:
            merged = None
        if late is None or merged is None:
            state.refuse("windows", kernel, pool)
            continue
        state.join(kernel, pool, late, merged, worth_cutting=True)
        state.tailed.append(name)
        changed = True
    return changed


def _join(kernel: ConvKernel, pool: PoolKernel, name: str) -> ConvKernel | None:
    """The convolution with the pool's stores as the reduction epilogue over a box of its outputs, or None if they do
    not fit."""
    if not _tiles(kernel, pool) or len(kernel.stores) != 1:
        return None
    (store,) = kernel.stores
    space = store_space(kernel)
    shape = pool.outer + pool.input_size
    view = sought(pool, name)
    order = None if view is None else views.covering_order(shape, view)
    if order is None or views.covering_order(space, store.view) is None:
        return None
    mapping = SpaceMap(shape, order, store.view, space)
    if mapping.view(views.identity(shape)) != views.identity(space):
        return None
    value, loaded = split_rounding(store.value)

    def leaf(node: Load | Gather) -> Expr | None:
        """The convolution's element in place of a load of its result. Raises NotAffine for another view."""
        if node.buffer != name:
            return None
        if isinstance(node, Gather) or not same_view(node.view, store.view, space):
            raise views.NotAffine
        return loaded

    element = replace_loads(mapping.expr(pool.value), leaf)
    stages: list[Reduction | Let | EmitRow] = [
        Reduction("window", "max" if pool.op == "max" else "sum", element, pool.dtype)
    ]
    result = Named("window", pool.dtype)
    if pool.op == "avg":
        size = Const(float(math.prod(pool.kernel)), pool.dtype)
        stages.append(Let("window.mean", Apply("div", (result, size), pool.dtype)))
        result = Named("window.mean", pool.dtype)
    old = pool.outer + pool.output_size
    new = (kernel.batch, kernel.out_channels, *pool.output_size)
    for other in pool.stores:
        moved = views.remap(replace_names(other.value, lambda _: result), old, views.identity(new), new)
        stages.append(EmitRow(Store(other.buffer, views.remap_view(other.view, old, views.identity(new), new), moved)))
    tail = Tail(value, (1, 1, *pool.kernel), tuple(stages))
    return replace(kernel, stores=(), tail=tail, ops=kernel.ops + pool.ops)


def _is_faster(kernel: ConvKernel, pool: PoolKernel) -> bool:
    """True if this was faster on an H200: if windows are large, or hold an output of every phase of a transposed
    convolution."""
    return kernel.transposed or math.prod(pool.kernel) >= _WINDOWS[-1]


def _tiles(kernel: ConvKernel, pool: PoolKernel) -> bool:
    """True if windows do not overlap, their size is one that the lanes of a warp can share, and they cover outputs
    only."""
    if len(pool.kernel) != len(kernel.output_size) or pool.kernel != pool.stride or pool.divisor is not None:
        return False
    if any(pool.padding) or any(step != 1 for step in pool.dilation) or not _in_one_tile(kernel, pool):
        return False
    names = {node.name for store in pool.stores for node in views.nodes(store.value) if isinstance(node, Named)}
    whole = tuple(size // width for size, width in zip(pool.input_size, pool.kernel, strict=True))
    size = math.prod(pool.kernel)
    return names == {"acc"} and whole == pool.output_size and size in _WINDOWS


def _in_one_tile(kernel: ConvKernel, pool: PoolKernel) -> bool:
    """True if the outputs of a window are neighbours of one phase, or one of each phase (phases: residues of the
    stride in a transposed convolution)."""
    return not kernel.transposed or all(step == 1 for step in kernel.stride) or kernel.stride == pool.kernel


def split_rounding(value: Expr) -> tuple[Expr, Expr]:
    """(result, load): the value before a rounding to 16 bits that only the store needed, and what a load of the
    stored element gives."""
    if isinstance(value, Apply) and value.op == "cast" and value.dtype in ("float16", "bfloat16"):
        inside = value.args[0]
        return inside, Apply("cast", (Named("acc", inside.dtype),), value.dtype)
    return value, Named("acc", value.dtype)
