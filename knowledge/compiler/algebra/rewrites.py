"""The exact rewrites by name, and the graph after the chosen ones.

Each gives the same function in real arithmetic with less work; its rounding is measured like any other candidate's
error. A candidate that uses one carries the label "algebra:NAME", so that a reader of its receipt knows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.algebra.pools import average_of_columns, average_of_convolution, pool_of_pool
from foundry.knowledge.compiler.algebra.positions import total_of_channels, total_of_positions
from foundry.knowledge.compiler.algebra.products import product_with_diagonal, total_of_product
from foundry.knowledge.compiler.algebra.units import fold_constants, single_element
from foundry.knowledge.opgraph import Op, OpGraph

Step = Callable[[OpGraph, Op], OpGraph | None]
_MOST_STEPS = 256  # rewrites of one graph; each removes work, so this is only a guard


@dataclass(frozen=True)
class Rewrite:
    """A named rewrite. `steps` each try one operator and return the changed graph, or None if their precondition
    fails."""

    name: str
    steps: tuple[Step, ...]
    reason: str


@dataclass(frozen=True)
class Rewritten:
    """`applied` changed the graph; `possible` would with all of them on, because one may enable another."""

    graph: OpGraph
    applied: tuple[str, ...]
    possible: tuple[str, ...]


REWRITES = (
    Rewrite(
        "sum-before-product",
        (total_of_product, total_of_channels),
        "only a sum over the product's outputs is read: its operand is added up first, a weight once for all calls",
    ),
    Rewrite(
        "sum-before-convolution",
        (total_of_positions,),
        "only a sum over the convolution's positions is read: its input is added up first",
    ),
    Rewrite(
        "average-into-weights",
        (average_of_convolution, average_of_columns),
        "only averages over windows are read: the weights are averaged instead, and the windows alone worked out",
    ),
    Rewrite("pool-of-pool", (pool_of_pool,), "two pools in a row are one over larger windows"),
    Rewrite("diagonal-product", (product_with_diagonal,), "a product with a diagonal matrix scales rows or columns"),
    Rewrite("single-element", (single_element,), "a reduction over one element is that element or a constant"),
    Rewrite("fold-constants", (fold_constants,), "numbers of neighbouring operators join into one"),
)
LABEL = "algebra:"
REASONS = {rewrite.name: rewrite.reason for rewrite in REWRITES}


def rewrite_graph(graph: OpGraph, names: Collection[str]) -> Rewritten:
    """The graph after the named rewrites, wherever they apply, until none does."""
    changed, applied = _exhaust(graph, [rewrite for rewrite in REWRITES if rewrite.name in names])
    _, possible = _exhaust(graph, REWRITES)
    return Rewritten(changed, applied, possible)


def as_labelled(graph: OpGraph, labels: Collection[str]) -> OpGraph:
    """The graph after the rewrites that a candidate's labels declare, against which its time is measured."""
    return rewrite_graph(graph, [label.removeprefix(LABEL) for label in labels if label.startswith(LABEL)]).graph


def _exhaust(graph: OpGraph, rewrites: Collection[Rewrite]) -> tuple[OpGraph, tuple[str, ...]]:
    """(graph after repeated passes over its operators until nothing changes, rewrites that changed it)."""
    steps = [(rewrite.name, step) for rewrite in rewrites for step in rewrite.steps]
    applied: dict[str, None] = {}
    made, at, unchanged = 0, 0, 0
    while unchanged < len(graph.ops) and made < _MOST_STEPS:
        found = _change(graph, graph.ops[at % len(graph.ops)], steps)
        if found is None:
            at, unchanged = at + 1, unchanged + 1
            continue
        name, graph = found
        applied[name] = None
        made += 1
        unchanged = 0
    return graph, tuple(applied)


def _change(graph: OpGraph, op: Op, steps: Sequence[tuple[str, Step]]) -> tuple[str, OpGraph] | None:
    """(name of the first step that changes an operator, the changed graph), or None."""
    for name, step in steps:
        changed = step(graph, op)
        if changed is not None:
            return name, changed
    return None
