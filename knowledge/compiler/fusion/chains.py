"""Maps over the same points become one kernel: what one makes and another reads at the same point stays in a register,
also where it has several readers and is dear to work out. Unrolled loops over time are chains of such maps."""

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
# Of a kernel: what a compiler takes a few seconds for, an exponential or a power as much as so many additions. One of
# 2400 parts, the Jacobians of arms and a step by them, took GCC 1.1 s and nvcc 0.7 s, and spills 156 bytes. Whoever
# walks an expression does so by recursion.
MOST_PARTS, OF_EXPENSIVE = 4000, 16
MOST_LOADS, MOST_STORES, MOST_DEEP = 192, 32, 240


def join_chains(state: FusionState) -> bool:
    """A map joins the first map that reads its results at the same points."""

    def merge(kernel: MapKernel, name: str, reader: Step) -> MapKernel | None:
        if not isinstance(reader, MapKernel) or not _are_same_points(kernel, reader, name):
            return None
        try:
            return merge_maps(state, kernel, _over(reader, kernel.shape), reader, MOST_STORES)
        except views.NotAffine:
            return None

    return state.join_readers("chain", merge)


def _are_same_points(kernel: MapKernel, consumer: MapKernel, name: str) -> bool:
    """Whether both go over the elements of the buffer in the same order."""
    view, store = sought(consumer, name), next(store for store in kernel.stores if store.buffer == name)
    if view is None:
        return False
    if kernel.shape == consumer.shape:
        return same_view(store.view, view, kernel.shape)
    is_same_number = math.prod(kernel.shape) == math.prod(consumer.shape)
    return is_same_number and views.is_identity(store.view, kernel.shape) and views.is_identity(view, consumer.shape)


def _over(kernel: MapKernel, shape: Shape) -> MapKernel:
    """The map over other dimensions of as many points in the same order. Raises NotAffine."""
    if kernel.shape == shape:
        return kernel
    numbering = views.identity(shape)
    stores = tuple(views.remap_store(store, kernel.shape, numbering, shape) for store in kernel.stores)
    return replace(kernel, shape=shape, stores=stores)


def merge_maps(
    state: FusionState, kernel: MapKernel, consumer: MapKernel, known: MapKernel, most_stores: int
) -> MapKernel | None:
    """Two maps of one shape as one, in which the consumer reads nothing that the kernel stores; None where it reads
    another point's, where one of them may not move, or where the kernel would grow too large. `known` is the consumer
    as the state has it, over its own dimensions."""
    if state.reads(kernel) & state.writes(known):
        return None
    shared = state.writes(kernel) & state.reads(known)
    if shared & state.pinned:
        return None
    produced = {(store.buffer, plain_view(store.view, kernel.shape)): store.value for store in kernel.stores}

    def leaf(node: Load | Gather) -> Expr | None:
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
    """Whether so many different parts are not too much for one kernel."""
    loads = sum(isinstance(node, Load | Gather) and any(node.view.strides) for node in numbering.nodes)
    expensive = sum(isinstance(node, Apply) and node.op in EXPENSIVE for node in numbering.nodes)
    work = len(numbering.nodes) + OF_EXPENSIVE * expensive
    return work <= MOST_PARTS and loads <= MOST_LOADS and numbering.depth() <= MOST_DEEP


def plain_view(view: View, shape: Shape) -> View:
    """The view without strides of dimensions that have one element."""
    return View(view.offset, tuple(stride if size > 1 else 0 for size, stride in zip(shape, view.strides, strict=True)))
