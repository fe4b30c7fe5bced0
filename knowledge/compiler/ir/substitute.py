"""Substitutes a producer's stored values for a consumer's loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import expressions
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Expr,
    Gather,
    Kernel,
    Load,
    MapKernel,
    Named,
    Store,
    View,
)
from foundry.knowledge.compiler.ir.scalar import Numbering

Shape = tuple[int, ...]
_ROUNDED = ("float16", "bfloat16")


def replace_loads(expr: Expr, leaf: Callable[[Load | Gather], Expr | None]) -> Expr:
    """`expr` with each load for which `leaf` gives an expression replaced by it.

    A value that was rounded to 16 bits only because it was stored to memory keeps its float32 precision then.
    """
    return replace_all_loads((expr,), leaf)[0]


def replace_all_loads(exprs: Sequence[Expr], leaf: Callable[[Load | Gather], Expr | None]) -> tuple[Expr, ...]:
    """`replace_loads` of several expressions; shared nodes stay shared."""
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        """The node rewritten; a shared node only once."""
        known = memo.get(id(node))
        if known is None:
            known = memo[id(node)] = change_node(node)
        return known

    def change_node(node: Expr) -> Expr:
        """The node with its loads replaced; a cast right after a rounding cast of the same type is dropped."""
        if isinstance(node, Apply):
            arguments = tuple(visit(argument) for argument in node.args)
            if node.op == "cast" and arguments[0] is not node.args[0]:
                exact = _before_rounding(node.args[0], arguments[0])
                if exact is not None and exact.dtype == node.dtype:
                    return exact
            same = all(new is old for new, old in zip(arguments, node.args, strict=True))
            return node if same else Apply(node.op, arguments, node.dtype)
        if isinstance(node, Gather):
            index = visit(node.index)
            gather = node if index is node.index else replace(node, index=index)
            return leaf(gather) or gather
        if isinstance(node, Load):
            return leaf(node) or node
        return node

    return tuple(visit(expr) for expr in exprs)


def replace_names(expr: Expr, leaf: Callable[[Named], Expr]) -> Expr:
    """`expr` with each Named value replaced."""
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        """The node with its named values replaced; a shared node only once."""
        if id(node) not in memo:
            if isinstance(node, Named):
                memo[id(node)] = leaf(node)
            elif isinstance(node, Apply):
                memo[id(node)] = replace(node, args=tuple(visit(argument) for argument in node.args))
            elif isinstance(node, Gather):
                memo[id(node)] = replace(node, index=visit(node.index))
            else:
                memo[id(node)] = node
        return memo[id(node)]

    return visit(expr)


def _before_rounding(load: Expr, value: Expr) -> Expr | None:
    """The float32 value behind a load of a 16-bit buffer, before it was rounded to be stored."""
    rounded = isinstance(load, Load | Gather) and load.dtype in _ROUNDED
    return value.args[0] if rounded and isinstance(value, Apply) and value.op == "cast" else None


def sought(kernel: Kernel, name: str) -> View | None:
    """The view through which a kernel loads a buffer; None if it gathers from it or does not load it."""
    for expr, _ in expressions(kernel):
        for node in views.nodes(expr):
            if isinstance(node, Load) and node.buffer == name:
                return node.view
            if isinstance(node, Gather) and node.buffer == name:
                return None
    return None


def with_shared_parts(kernel: MapKernel, numbering: Numbering | None = None) -> MapKernel:
    """The map with equal parts of its stored values as one node each; `numbering` may know them already."""
    numbering = numbering or Numbering()
    made = list[Expr]()
    return replace(kernel, stores=tuple(replace(s, value=numbering.shared(s.value, made)) for s in kernel.stores))


@dataclass(frozen=True)
class SpaceMap:
    """A map from a producer's iteration space to a consumer's.

    It takes the consumer's dimensions in the order of the producer's positions, and then the producer's own
    numbering.
    """

    old: Shape
    order: tuple[int, ...]
    point_map: View
    new: Shape

    def _turn(self) -> tuple[View, Shape]:
        """The permutation of the consumer's dimensions, and the resulting shape."""
        return views.permute_map(self.old, self.order)

    def expr(self, expr: Expr) -> Expr:
        """An expression over the old space as one over the new space."""
        turn, shape = self._turn()
        return views.remap(views.remap(expr, self.old, turn, shape), shape, self.point_map, self.new)

    def view(self, view: View) -> View:
        """A view over the old space as one over the new space."""
        turn, shape = self._turn()
        return views.remap_view(views.remap_view(view, self.old, turn, shape), shape, self.point_map, self.new)


def aligned_map(shape: Shape, view: View | None, stored: View, space: Shape) -> SpaceMap | None:
    """The map from producer to consumer; None unless the consumer reads each stored element exactly once.

    The producer stores through `stored` over `space`, the consumer reads through `view` over `shape`.
    """
    if view is None or math.prod(shape) != math.prod(space):
        return None
    order = views.covering_order(shape, view)
    if order is None or views.covering_order(space, stored) is None:
        return None
    return SpaceMap(shape, order, stored, space)


def same_view(left: View, right: View, space: Shape) -> bool:
    """True if two views map each point of a space to the same position; the buffers are not compared."""
    return left.offset == right.offset and all(
        size == 1 or one == other for size, one, other in zip(space, left.strides, right.strides, strict=True)
    )


def substitute_loads(expr: Expr, produced: Mapping[str, Store], space: Shape) -> Expr:
    """`expr` over the producer's space, with each load of a produced buffer replaced by the produced value.

    Raises NotAffine if a load reads another element than the one computed at the same point.
    """

    def leaf(node: Load | Gather) -> Expr | None:
        """The stored value in place of a load. Raises NotAffine if the load reads other points than the store
        writes."""
        store = produced.get(node.buffer)
        if store is None:
            return None
        if isinstance(node, Gather) or not same_view(node.view, store.view, space):
            raise views.NotAffine
        return store.value

    return replace_loads(expr, leaf)
