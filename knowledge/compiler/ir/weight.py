"""Measures the work of an expression, to decide if it may be recomputed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import Apply, Const, Expr, Gather, Load, MapKernel
from foundry.knowledge.compiler.ir.scalar import EXPENSIVE

_CHEAP_OPERATIONS = 12
# Distinct nodes; a larger expression is written to memory rather than inlined once more.
_LARGEST_EXPRESSION = 300


def parts_of(kernel: MapKernel) -> int:
    """Number of different operations, loads and constants at a point of a map."""
    return sum(1 for _ in views.nodes(*(store.value for store in kernel.stores)))


def limit_weight(expr: Expr) -> Expr:
    """Returns `expr`, or raises NotAffine if it has grown too large for a compiler."""
    if sum(1 for _ in views.nodes(expr)) > _LARGEST_EXPRESSION:
        raise views.NotAffine
    return expr


@dataclass(frozen=True)
class Work:
    """The work of an expression at one point."""

    operations: int
    expensive: int
    roots: int  # square roots and divisions: may be repeated once, but not for each element of a broadcast
    large_loads: int  # loads of at least half as many distinct elements as the space has

    @property
    def is_cheap(self) -> bool:
        """True if the expression has no expensive operator and at most _CHEAP_OPERATIONS in all; loads do not count."""
        return self.expensive == 0 and self.operations <= _CHEAP_OPERATIONS

    @property
    def nothing(self) -> bool:
        """True for a copy or a constant."""
        return self.operations == 0 and self.large_loads <= 1


def weight_of(expr: Expr, shape: tuple[int, ...]) -> Work:
    """The work of an expression at one point of a space: operations, expensive ones, roots, and large loads."""
    operations = expensive = roots = 0
    large: set[Load | tuple[str, int]] = set()
    for node in views.nodes(expr):
        if isinstance(node, Apply):
            simple_power = node.op == "pow" and isinstance(node.args[1], Const)
            operations += 1
            roots += node.op in ("sqrt", "rsqrt", "div", "reciprocal")
            expensive += node.op in EXPENSIVE and not simple_power
        elif isinstance(node, Load):
            distinct = math.prod(size for size, stride in zip(shape, node.view.strides, strict=True) if stride)
            if 2 * distinct >= math.prod(shape):
                large.add(node)
        elif isinstance(node, Gather):
            large.add((node.buffer, id(node)))
    return Work(operations, expensive, roots, len(large))
