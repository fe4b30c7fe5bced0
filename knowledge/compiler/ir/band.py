"""Finds the part of a product that its stores need: triu, tril and causal masks leave a band of diagonals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.ir.kernels import Apply, Const, Expr, GemmKernel, Iota, Named, walk

_OPPOSITE = {"ge": "lt", "gt": "le", "le": "gt", "lt": "ge"}


@dataclass(frozen=True)
class Band:
    """The elements low <= n - m <= high of a product's (m, n)."""

    low: float = -math.inf
    high: float = math.inf

    def meets(self, other: Band) -> Band:
        """The intersection with another band."""
        return Band(max(self.low, other.low), min(self.high, other.high))

    def joins(self, other: Band) -> Band:
        """The smallest band that holds both."""
        return Band(min(self.low, other.low), max(self.high, other.high))


NONE = Band(math.inf, -math.inf)


def needed_band(kernel: GemmKernel) -> Band:
    """The diagonals on which some store, or the epilogue, needs the accumulator; elsewhere its value changes
    nothing."""
    band = NONE if kernel.tail is None else _needed(kernel.tail.value, len(kernel.batch))
    for store in kernel.stores:
        band = band.joins(_needed(store.value, len(kernel.batch)))
    return band


def _needed(expr: Expr, rank: int) -> Band:
    """The diagonals on which an expression uses the accumulator."""
    if isinstance(expr, Named):
        return Band()
    if not isinstance(expr, Apply) or not any(isinstance(node, Named) for node in walk(expr)):
        return NONE
    if expr.op != "where" or (kept := _compared(expr.args[0], rank)) is None:
        band = NONE
        for item in expr.args:
            band = band.joins(_needed(item, rank))
        return band
    chosen, other = (_needed(item, rank) for item in expr.args[1:])
    return chosen.meets(kept[0]).joins(other.meets(kept[1]))


def _compared(condition: Expr, rank: int) -> tuple[Band, Band] | None:
    """(diagonals on which a comparison of n - m with a number holds, diagonals on which it does not); None for
    others."""
    if not isinstance(condition, Apply) or condition.op not in _OPPOSITE:
        return None
    distance, number = condition.args
    if not isinstance(distance, Iota) or not isinstance(number, Const) or isinstance(number.value, bool):
        return None
    *batch, by_m, by_n = distance.view.strides
    if any(batch) or by_n != 1 or by_m != -1 or len(batch) != rank:
        return None
    edge = number.value - distance.view.offset
    return _side(condition.op, edge), _side(_OPPOSITE[condition.op], edge)


def _side(op: str, edge: float) -> Band:
    """The diagonals on one side of an edge."""
    if op in ("ge", "gt"):
        return Band(low=edge if op == "ge" else edge + 1)
    return Band(high=edge if op == "le" else edge - 1)
