"""Rows of a few elements, such as the two sides of a box: a map with all of them in its expression needs no loop
inside, and joins what comes before and after like any other map."""

from __future__ import annotations

import math
from functools import reduce

from foundry.knowledge.library.fusion.state import FusionState
from foundry.knowledge.library.ir import views
from foundry.knowledge.library.ir.access import Step
from foundry.knowledge.library.ir.kernels import (
    Apply,
    EmitRow,
    Expr,
    Let,
    MapKernel,
    ReduceOp,
    Reduction,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.library.ir.substitute import replace_names
from foundry.knowledge.opgraph import contiguous_strides

FEW = 4  # elements of a row
# What joins two elements; sums and products go from the first to the last, as PyTorch's of so few do.
_JOINS: dict[ReduceOp, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def unroll_short_rows(state: FusionState) -> bool:
    """Rows that stayed kernels of their own become maps."""
    changed = False
    for step in list(state.steps):
        unrolled = _unrolled(step)
        if unrolled is not None:
            state.swap(step, unrolled)
            changed = True
    return changed


def _unrolled(step: Step) -> MapKernel | None:
    """The map that does the same; None where rows are long, are no plain reductions or are stored themselves."""
    if not isinstance(step, RowKernel) or not step.outer or not 1 < math.prod(step.reduced) <= FEW:
        return None
    reductions = [stage for stage in step.stages if isinstance(stage, Reduction)]
    if not all(stage.op in _JOINS and stage.value.dtype == stage.dtype for stage in reductions):
        return None
    known: dict[str, Expr] = {}
    stores: list[Store] = []
    try:
        for stage in step.stages:
            if isinstance(stage, Reduction):
                known[stage.name] = _joined(step, stage, known)
            elif isinstance(stage, Let):
                known[stage.name] = _at(step, stage.value, 0, known)
            elif isinstance(stage, EmitRow):
                view = View(stage.store.view.offset, stage.store.view.strides[: len(step.outer)])
                stores.append(Store(stage.store.buffer, view, _at(step, stage.store.value, 0, known)))
            else:
                return None
    except views.NotAffine:
        return None
    return MapKernel(step.name, step.outer, tuple(stores), step.ops)


def _joined(step: RowKernel, stage: Reduction, known: dict[str, Expr]) -> Expr:
    """The elements of a row put together one after the other. Raises NotAffine."""
    terms = [_at(step, stage.value, place, known) for place in range(math.prod(step.reduced))]
    return reduce(lambda one, other: Apply(_JOINS[stage.op], (one, other), stage.dtype), terms)


def _at(step: RowKernel, expr: Expr, place: int, known: dict[str, Expr]) -> Expr:
    """What an expression of the row kernel is at one place of each row, over the outer dimensions. Raises NotAffine."""
    count = math.prod(step.reduced)
    numbering = View(place, tuple(stride * count for stride in contiguous_strides(step.outer)))
    moved = views.remap(expr, step.outer + step.reduced, numbering, step.outer)
    return replace_names(moved, lambda node: known[node.name])
