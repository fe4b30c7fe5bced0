"""Joins maps (elementwise kernels) over the same points: a value that one computes and another reads at the same
point stays in a register, even if it has several readers and is expensive to compute. Unrolled loops over time
are chains of such maps."""

from __future__ import annotations

import math
from dataclasses import replace

from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step
from foundry.knowledge.compiler.ir.kernels import Apply, Expr, Gather, Load, MapKernel, View
from foundry.knowledge.compiler.ir.scalar import EXPENSIVE, Numbering
from foundry.knowledge.compiler.ir.substitute import replace_all_loads, same_view, sought, with_shared_parts

Shape = tuple[int, ...]
# Limits of one kernel, so that GCC and nvcc compile it in a few seconds. One of 2400 parts (Jacobians of robot arms and
# a
# step by them) took GCC 1.1 s and nvcc 0.7 s, and spilled 156 bytes of registers.
MOST_PARTS = 4000  # distinct sub-expressions
OF_EXPENSIVE = 16  # an exponential or a power counts as this many additional parts
MOST_LOADS = 192
MOST_STORES = 32
MOST_DEEP = 240  # levels of an expression: code that visits expressions is recursive


def join_chains(state: FusionState) -> bool:
    """Joins a map with the first map that reads its results at the same points. True if a pair was joined."""

    def merge(kernel: MapKernel, name: str, reader: Step) -> MapKernel | None:
        """The two maps as one, if the reader is a map over the same points; else None."""
        if not isinstance(reader, MapKernel) or not _are_same_points(kernel, reader, name):
            return None
        try:
            return merge_maps(state, kernel, _over(reader, kernel.shape), reader, MOST_STORES)
        except views.NotAffine:
            return None

    return state.join_readers("chain", merge)


def _are_same_points(kernel: MapKernel, consumer: MapKernel, name: str) -> bool:
    """True if both maps go over the elements of buffer `name` in the same order, one writing and one reading them."""
    view = sought(consumer, name)
    store = next(store for store in kernel.stores if store.buffer == name)
    if view is None:
        return False
    if kernel.shape == consumer.shape:
        return same_view(store.view, view, kernel.shape)
    is_same_number = math.prod(kernel.shape) == math.prod(consumer.shape)
    return is_same_number and views.is_identity(store.view, kernel.shape) and views.is_identity(view, consumer.shape)


def _over(kernel: MapKernel, shape: Shape) -> MapKernel:
    """The map over other dimensions with as many points in the same order. Raises NotAffine."""
    if kernel.shape == shape:
        return kernel
    numbering = views.identity(shape)
    stores = tuple(views.remap_store(store, kernel.shape, numbering, shape) for store in kernel.stores)
    return replace(kernel, shape=shape, stores=stores)


def merge_maps(
    state: FusionState, kernel: MapKernel, consumer: MapKernel, known: MapKernel, most_stores: int
) -> MapKernel | None:
    """Merges two maps of one shape into one, in which the consumer's loads of the kernel's stored values become these
    values. `known` is the consumer as the state has it, over its own dimensions.

    None if the consumer reads another point's value, if one of the two may not move, or if the merged kernel would
    grow too large.
    """
    if state.reads(kernel) & state.writes(known):
        return None
    shared = state.writes(kernel) & state.reads(known)
    if shared & state.pinned:
        return None
    produced = {(store.buffer, plain_view(store.view, kernel.shape)): store.value for store in kernel.stores}

    def leaf(node: Load | Gather) -> Expr | None:
        """The value that the first map makes in place of a load of it. Raises NotAffine if it reads other points."""
        if node.buffer not in shared:
            return None
        made = produced.get((node.buffer, plain_view(node.view, kernel.shape))) if isinstance(node, Load) else None
        if made is None:
            raise views.NotAffine
        return made

    try:
        values = replace_all_loads([store.value for store in consumer.stores], leaf)
    except views.NotAffine:
        return None
    stores = [store for store in kernel.stores if state.must_stay(store.buffer, known)]
    stores += [replace(store, value=value) for store, value in zip(consumer.stores, values, strict=True)]
    if len(stores) > most_stores:
        return None
    numbering = Numbering()
    for store in stores:
        numbering.number(store.value)
    if not _fits(numbering):
        return None
    ops = tuple(dict.fromkeys(kernel.ops + consumer.ops))
    return with_shared_parts(replace(consumer, stores=tuple(stores), ops=ops), numbering)


def _fits(numbering: Numbering) -> bool:
    """True if the number of distinct sub-expressions, loads and levels is small enough for one kernel."""
    loads = sum(isinstance(node, Load | Gather) and any(node.view.strides) for node in numbering.nodes)
    expensive = sum(isinstance(node, Apply) and node.op in EXPENSIVE for node in numbering.nodes)
    work = len(numbering.nodes) + OF_EXPENSIVE * expensive
    return work <= MOST_PARTS and loads <= MOST_LOADS and numbering.depth() <= MOST_DEEP


def plain_view(view: View, shape: Shape) -> View:
    """The view with stride 0 for every dimension of size 1."""
    return View(view.offset, tuple(stride if size > 1 else 0 for size, stride in zip(shape, view.strides, strict=True)))
