"""Matrix products whose stores address m and n as several dimensions: heads split off, results reordered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import store_space
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Kernel, MapKernel, Store
from foundry.knowledge.compiler.ir.substitute import sought

Shape = tuple[int, ...]


def finer_product(kernel: Kernel, consumer: MapKernel, name: str) -> GemmKernel | None:
    """The product with its dimensions split at the boundaries of the dimensions of `consumer`, a map that reads all
    of `name`. None if there is nothing to split, or the boundaries do not match."""
    if not isinstance(kernel, GemmKernel):
        return None
    view = sought(consumer, name)
    space = store_space(kernel)
    stored = next(store.view for store in kernel.stores if store.buffer == name)
    order = None if view is None else views.covering_order(consumer.shape, view)
    own = views.covering_order(space, stored)
    if order is None or own is None:
        return None
    finer = views.common_refinement(tuple(space[axis] for axis in own), tuple(consumer.shape[axis] for axis in order))
    if finer is None or len(finer) == sum(size > 1 for size in space):
        return None
    parts = dict(zip(own, _share_out(finer, [space[axis] for axis in own]), strict=True))
    return _split(kernel, [parts[axis] for axis in range(len(space))])


def _share_out(finer: Shape, sizes: Sequence[int]) -> list[Shape]:
    """Splits `finer` into consecutive runs of dimensions, one for each of `sizes`, whose product is that size."""
    found = []
    at = 0
    for size in sizes:
        first = at
        while math.prod(finer[first:at]) < size:
            at += 1
        found.append(finer[first:at] or (1,))
    return found


def _split(kernel: GemmKernel, parts: Sequence[Shape]) -> GemmKernel:
    """The same product with each dimension of the store space split into the given parts."""
    rank = len(kernel.batch)
    middle = rank + len(kernel.m_shape)
    batch, m, n = (
        tuple(size for part in group for size in part) for group in (parts[:rank], parts[rank:middle], parts[middle:])
    )
    old, new = store_space(kernel), batch + m + n
    numbering = views.identity(new)
    stores = tuple(views.remap_store(store, old, numbering, new) for store in kernel.stores)
    operands = []
    for expr, sizes in ((kernel.a, (kernel.m, kernel.k)), (kernel.b, (kernel.k, kernel.n))):
        whole = batch + sizes
        operands.append(views.remap(expr, kernel.batch + sizes, views.identity(whole), whole))
    m_sizes, n_sizes = (sizes if len(sizes) > 1 else () for sizes in (m, n))
    a, b = operands
    return replace(kernel, batch=batch, a=a, b=b, stores=stores, m_sizes=m_sizes, n_sizes=n_sizes)


def has_runs(kernel: Kernel, stores: Sequence[Store], runs: tuple[float, float]) -> bool:
    """True if each store of a split product writes long enough contiguous runs of elements.

    `runs` holds the fewest elements along n and along m; one of the two is enough, and so is all of n. A kernel that is
    not a split product always passes.
    """
    if not isinstance(kernel, GemmKernel) or not kernel.is_split:
        return True
    rank = len(kernel.batch)
    middle = rank + len(kernel.m_shape)
    of_n, of_m = runs
    return all(
        _run(kernel.n_shape, store.view.strides[middle:]) >= min(of_n, kernel.n)
        or _run(kernel.m_shape, store.view.strides[rank:middle]) >= of_m
        for store in stores
    )


def _run(shape: Shape, strides: Shape) -> int:
    """The number of contiguous elements along the last dimensions."""
    length = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != length:
            break
        length *= size
    return length
