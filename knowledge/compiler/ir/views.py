"""Affine index arithmetic: re-indexes the leaves of an expression when its iteration space changes.

A map takes a point of a new space to the row-major position in the old space: position = offset + sum(strides *
point). Slices, permutations, expansions, flips, reshapes and the inlining of a producer are all such maps.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from foundry.knowledge.compiler.ir.kernels import Apply, Const, Expr, Gather, Iota, Load, Store, View
from foundry.knowledge.opgraph import contiguous_strides

Shape = tuple[int, ...]
Leaf = Load | Gather | Iota


def identity(shape: Shape, offset: int = 0) -> View:
    """The view with row-major strides (elements) of a contiguous buffer of `shape`."""
    return View(offset, contiguous_strides(shape))


def is_identity(view: View, shape: Shape) -> bool:
    """True if a view has offset 0 and the row-major strides of `shape`."""
    wanted = contiguous_strides(shape)
    return view.offset == 0 and all(
        size == 1 or have == want for size, have, want in zip(shape, view.strides, wanted, strict=True)
    )


def merge_dimensions(shape: Shape, strides: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride in elements) of the fewest dimensions that visit the same positions in the same order."""
    groups: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == stride * size:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    return groups


def _digits(value: int, radices: Sequence[int]) -> list[int]:
    """`value` in the mixed radix of strides `radices` (descending, last 1); negative values give negative digits."""
    sign, rest = (-1, -value) if value < 0 else (1, value)
    digits = []
    for radix in radices:
        digits.append(sign * (rest // radix))
        rest %= radix
    return digits


def _decompose(sizes: Sequence[int], point_map: View, shape: Shape) -> tuple[list[int], list[list[int]]] | None:
    """`point_map` split by the dimensions of `sizes`: (offset in each, step in each for every new dimension).

    None if a dimension of the new space would carry from one old dimension into the next.
    """
    radices = contiguous_strides(tuple(sizes))
    offsets = _digits(point_map.offset, radices)
    steps = [
        _digits(stride, radices) if size > 1 else [0] * len(radices)
        for size, stride in zip(shape, point_map.strides, strict=True)
    ]
    for axis, size in enumerate(sizes):
        reach = [step[axis] * (count - 1) for step, count in zip(steps, shape, strict=True)]
        low = offsets[axis] + sum(min(0, move) for move in reach)
        high = offsets[axis] + sum(max(0, move) for move in reach)
        if low < 0 or high >= size:
            return None
    return offsets, steps


@functools.lru_cache(maxsize=1 << 15)  # a search makes a hundred plans of a graph, nearly the same
def through(view: View, old: Shape, point_map: View, new: Shape) -> View | None:
    """`view` of the space `old` as a view of `new`, whose points `point_map` sends to `old`; None if that is not
    affine."""
    groups = merge_dimensions(old, view.strides)
    if not groups or all(stride == 0 for _, stride in groups):
        return View(view.offset, (0,) * len(new))
    found = _decompose([size for size, _ in groups], point_map, new)
    if found is None:
        return None
    offsets, steps = found
    strides = [stride for _, stride in groups]
    offset = view.offset + sum(o * s for o, s in zip(offsets, strides, strict=True))
    return View(offset, tuple(sum(c * s for c, s in zip(step, strides, strict=True)) for step in steps))


class NotAffine(Exception):
    """A leaf cannot be re-indexed by a map, so its value must be written to memory first."""


def nodes(*exprs: Expr) -> Iterator[Expr]:
    """Every distinct node, each once; `walk` would visit a shared one at each of its uses."""
    seen: set[int] = set()
    stack = [*reversed(exprs)]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack.extend(reversed(children_of(node)))


def leaves(exprs: Iterable[Expr]) -> list[Leaf]:
    """The distinct loads, gathers and iotas below `exprs`, in order of appearance."""
    return list(dict.fromkeys(node for node in nodes(*exprs) if isinstance(node, Leaf)))


def distinct(exprs: Iterable[Expr]) -> list[Expr]:
    """Every node below `exprs` once, children before parents."""
    seen: set[int] = set()
    order: list[Expr] = []
    stack: list[tuple[Expr, bool]] = [(expr, False) for expr in reversed(list(exprs))]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(children_of(node)))
    return order


def children_of(node: Expr) -> tuple[Expr, ...]:
    """The operands of a node."""
    return node.args if isinstance(node, Apply) else (node.index,) if isinstance(node, Gather) else ()


def views_of(exprs: Iterable[Expr]) -> list[View]:
    """The views of all leaves below `exprs`, those of an index before that of what it chooses."""
    return [node.view for node in distinct(exprs) if isinstance(node, Leaf)]


def loads_of(exprs: Iterable[Expr]) -> list[Load]:
    """The distinct loads below `exprs`."""
    return list(dict.fromkeys(node for node in distinct(exprs) if isinstance(node, Load)))


def rebuild(expr: Expr, leaf: Callable[[Leaf], Expr]) -> Expr:
    """`expr` with every Load, Gather and Iota replaced; shared nodes stay shared."""
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        """The node with its leaves replaced; a shared node only once."""
        known = memo.get(id(node))
        if known is None:
            if isinstance(node, Apply):
                arguments = tuple(visit(argument) for argument in node.args)
                same = all(new is old for new, old in zip(arguments, node.args, strict=True))
                known = node if same else Apply(node.op, arguments, node.dtype)  # three times as fast as `replace`
            elif isinstance(node, Gather):
                index = visit(node.index)
                known = leaf(node if index is node.index else replace(node, index=index))
            elif isinstance(node, Load | Iota):
                known = leaf(node)
            else:
                known = node
            memo[id(node)] = known
        return known

    return visit(expr)


def map_views(expr: Expr, change: Callable[[View], View]) -> Expr:
    """The expression with every leaf's view changed."""
    return rebuild(expr, lambda leaf: replace(leaf, view=change(leaf.view)))


def map_store(store: Store, change: Callable[[View], View]) -> Store:
    """The store with every view changed."""
    return replace(store, view=change(store.view), value=map_views(store.value, change))


def remap_store(store: Store, old: Shape, numbering: View, new: Shape) -> Store:
    """The store over other dimensions of the same points (see `remap`). Raises NotAffine."""
    return replace(
        store, view=remap_view(store.view, old, numbering, new), value=remap(store.value, old, numbering, new)
    )


def swap_last(view: View) -> View:
    """The view of the transposed matrices."""
    *outer, row, column = view.strides
    return View(view.offset, (*outer, column, row))


def stored_views(stores: Iterable[Store]) -> list[View]:
    """All views of the stores: their targets and what their values read."""
    leaves = [node for store in stores for node in nodes(store.value) if isinstance(node, Leaf)]
    return [*(store.view for store in stores), *(leaf.view for leaf in leaves)]


def remap(expr: Expr, old: Shape, point_map: View, new: Shape) -> Expr:
    """`expr` over `old` as an expression over `new`; raises NotAffine."""
    if old == new and is_identity(point_map, new):
        return expr

    def leaf(node: Load | Gather | Iota) -> Expr:
        """The leaf with its view over the new space. Raises NotAffine if there is none."""
        view = through(node.view, old, point_map, new)
        if view is None:
            raise NotAffine
        return replace(node, view=view)

    return rebuild(expr, leaf)


def remap_view(view: View, old: Shape, point_map: View, new: Shape) -> View:
    """Like `remap`, for the view of a store. Raises NotAffine if it is not affine in the new points."""
    found = through(view, old, point_map, new)
    if found is None:
        raise NotAffine
    return found


def at_gather(expr: Expr, old: Shape, gather: Gather, new: Shape) -> Expr:
    """`expr` (over `old`) at the element that `gather` (over `new`) selects. Loads of `expr` become gathers.

    Raises NotAffine if a leaf would need more than one step or more than one index.
    """
    if gather.fill is not None:
        raise NotAffine
    index_map = View(0, (gather.step,))

    def leaf(node: Load | Gather | Iota) -> Expr:
        """The leaf read at the gathered position. Raises NotAffine if its view is not affine in that."""
        view = through(node.view, old, gather.view, new)
        along = through(replace(node.view, offset=0), old, index_map, (gather.bound,))
        if view is None or along is None:
            raise NotAffine
        step = along.strides[0]
        if step == 0 or gather.bound == 1:
            return replace(node, view=view)
        if isinstance(node, Load):
            return Gather(node.buffer, view, index=gather.index, step=step, bound=gather.bound, dtype=node.dtype)
        if isinstance(node, Gather):
            raise NotAffine
        wide = _as_int64(_wrap_index(gather.index, gather.bound))
        moved = Apply("add", (Iota(view, "int64"), Apply("mul", (wide, Const(step, "int64")), "int64")), "int64")
        return moved if node.dtype == "int64" else Apply("cast", (moved,), node.dtype)

    return rebuild(expr, leaf)


def _as_int64(expr: Expr) -> Expr:
    """The expression, cast to int64 unless it is that."""
    return expr if expr.dtype == "int64" else Apply("cast", (expr,), "int64")


def _wrap_index(index: Expr, bound: int) -> Expr:
    """The index as int64, with negative values counted from the end."""
    wide = _as_int64(index)
    negative = Apply("lt", (wide, Const(0, "int64")), "bool")
    return Apply("where", (negative, Apply("add", (wide, Const(bound, "int64")), "int64"), wide), "int64")


def permute_map(shape: Shape, order: Sequence[int]) -> tuple[View, Shape]:
    """(map, new shape) of `permute(order)`."""
    strides = contiguous_strides(shape)
    return View(0, tuple(strides[axis] for axis in order)), tuple(shape[axis] for axis in order)


def covering_order(shape: Shape, view: View) -> tuple[int, ...] | None:
    """The order of dimensions in which a view visits a whole contiguous buffer front to back; None if it does not."""
    if view.offset:
        return None
    long = [axis for axis, size in enumerate(shape) if size > 1]
    long.sort(key=lambda axis: -view.strides[axis])
    expected = math.prod(shape)
    for axis in long:
        expected //= shape[axis]
        if view.strides[axis] != expected:
            return None
    return (*long, *(axis for axis, size in enumerate(shape) if size == 1))


def common_refinement(left: Shape, right: Shape) -> Shape | None:
    """The coarsest shape from which both can be made by merging neighbouring dimensions; None for 4x6 and 6x4."""
    if math.prod(left) != math.prod(right):
        return None
    cuts = {1}
    for shape in (left, right):
        step = 1
        for size in reversed(shape):
            step *= size
            cuts.add(step)
    ordered = sorted(cuts)
    sizes = []
    for low, high in itertools.pairwise(ordered):
        if high % low:
            return None
        sizes.append(high // low)
    return tuple(reversed(sizes))


def joint_groups(
    shape: Sequence[int], strides: Iterable[Sequence[int]], barriers: Collection[int] = ()
) -> list[list[int]]:
    """Groups of neighbouring dimensions that are walked as one by every view, given by its strides.

    Dimensions of size 1 are left out. No group reaches across a barrier, the index of the first dimension behind it.
    """
    groups: list[list[int]] = []
    every, blocked = list(strides), True
    for axis, size in enumerate(shape):
        blocked |= axis in barriers
        if size == 1:
            continue
        if not blocked and all(steps[groups[-1][-1]] == steps[axis] * size for steps in every):
            groups[-1].append(axis)
        else:
            groups.append([axis])
        blocked = False
    return groups
