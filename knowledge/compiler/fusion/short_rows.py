"""Unrolls row kernels whose rows have a few elements, such as the two sides of a box, into maps. A map has no inner
loop, and fuses with its neighbours like any other map."""

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

FEW = 4  # most elements of a row that is unrolled
# The operator that combines two elements. Sums and products go from first to last, as PyTorch's do for so few.
_JOINS: dict[ReduceOp, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def unroll_short_rows(state: FusionState) -> bool:
    """Replaces row kernels that stayed unfused and only reduce by maps. True if one was replaced."""
    changed = False
    for step in list(state.steps):
        if isinstance(step, RowKernel) and not any(isinstance(stage, Emit) for stage in step.stages):
            unrolled = unrolled_rows(step, FEW)
            if unrolled is not None:
                state.swap(step, unrolled)
                changed = True
    return changed


def unrolled_rows(step: Step, most: int) -> MapKernel | None:
    """The map over rows that does the same as a row kernel with at most `most` elements per row. None if rows are
    longer or a stage cannot be unrolled."""
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
    """Unrolls one reduction into `known`, by name. False if there is no such form. Raises NotAffine."""
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
    """The terms combined by `op` from first to last."""
    return reduce(lambda one, other: Apply(op, (one, other), dtype), terms)


def _stored(step: RowKernel, store: Store, place: int, known: dict[str, Expr]) -> Store:
    """The store of a row kernel at element `place` of each row, over the outer dimensions. Raises NotAffine."""
    view = views.remap_view(store.view, step.outer + step.reduced, _numbering(step, place), step.outer)
    return Store(store.buffer, view, _at(step, store.value, place, known))


def _at(step: RowKernel, expr: Expr, place: int, known: dict[str, Expr]) -> Expr:
    """The expression of the row kernel at element `place` of each row, over the outer dimensions. Raises NotAffine."""
    moved = views.remap(expr, step.outer + step.reduced, _numbering(step, place), step.outer)
    return replace_names(moved, lambda node: known[node.name])


def _numbering(step: RowKernel, place: int) -> View:
    """The element numbers of element `place` of each row, as a view over the outer dimensions."""
    count = math.prod(step.reduced)
    return View(place, tuple(stride * count for stride in contiguous_strides(step.outer)))
