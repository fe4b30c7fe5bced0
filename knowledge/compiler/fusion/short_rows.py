"""Rows of a few elements, such as the two sides of a box: a map with all of them in its expression needs no loop
inside, and joins what comes before and after like any other map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    Emit,
    Expr,
    Let,
    MapKernel,
    ReduceOp,
    Reduction,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.ir.substitute import replace_names
from foundry.knowledge.opgraph import DType, contiguous_strides

FEW = 4  # elements of a row
# What joins two elements; sums and products go from the first to the last, as PyTorch's of so few do.
_JOINS: dict[ReduceOp, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def unroll_short_rows(state: FusionState) -> bool:
    """Rows that stayed kernels of their own and only reduce become maps."""
    changed = False
    for step in list(state.steps):
        if isinstance(step, RowKernel) and not any(isinstance(stage, Emit) for stage in step.stages):
            unrolled = unrolled_rows(step, FEW)
            if unrolled is not None:
                state.swap(step, unrolled)
                changed = True
    return changed


def unrolled_rows(step: Step, most: int) -> MapKernel | None:
    """The map over rows that does the same; None where they are long or have no such form."""
    if not isinstance(step, RowKernel) or not step.outer or not 1 < math.prod(step.reduced) <= most:
        return None
    known: dict[str, Expr] = {}
    stores: list[Store] = []
    try:
        for stage in step.stages:
            if isinstance(stage, Reduction):
                if not _reduce(step, stage, known):
                    return None
            elif isinstance(stage, Let):
                known[stage.name] = _at(step, stage.value, 0, known)
            else:
                places = range(math.prod(step.reduced)) if isinstance(stage, Emit) else (0,)
                stores += [_stored(step, stage.store, place, known) for place in places]
    except views.NotAffine:
        return None
    return MapKernel(step.name, step.outer, tuple(stores), step.ops)


def _reduce(step: RowKernel, stage: Reduction, known: dict[str, Expr]) -> bool:
    """Whether a reduction could be written out; `known` has its results then. Raises NotAffine."""
    if stage.value.dtype != stage.dtype:
        return False
    terms = [_at(step, stage.value, place, known) for place in range(math.prod(step.reduced))]
    if stage.op in _JOINS:
        known[stage.name] = _joined(_JOINS[stage.op], terms, stage.dtype)
    elif stage.op == "moments":
        count = Const(float(len(terms)), stage.dtype)
        mean = Apply("div", (_joined("add", terms, stage.dtype), count), stage.dtype)
        squares = [Apply("square", (Apply("sub", (term, mean), stage.dtype),), stage.dtype) for term in terms]
        known |= {f"{stage.name}.mean": mean, f"{stage.name}.m2": _joined("add", squares, stage.dtype)}
    else:
        return False
    return True


def _joined(op: str, terms: Sequence[Expr], dtype: DType) -> Expr:
    """Elements put together one after the other."""
    return reduce(lambda one, other: Apply(op, (one, other), dtype), terms)


def _stored(step: RowKernel, store: Store, place: int, known: dict[str, Expr]) -> Store:
    """What a row kernel stores at one place of each row, over the outer dimensions. Raises NotAffine."""
    view = views.remap_view(store.view, step.outer + step.reduced, _numbering(step, place), step.outer)
    return Store(store.buffer, view, _at(step, store.value, place, known))


def _at(step: RowKernel, expr: Expr, place: int, known: dict[str, Expr]) -> Expr:
    """What an expression of the row kernel is at one place of each row, over the outer dimensions. Raises NotAffine."""
    moved = views.remap(expr, step.outer + step.reduced, _numbering(step, place), step.outer)
    return replace_names(moved, lambda node: known[node.name])


def _numbering(step: RowKernel, place: int) -> View:
    count = math.prod(step.reduced)
    return View(place, tuple(stride * count for stride in contiguous_strides(step.outer)))
