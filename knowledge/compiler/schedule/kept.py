"""The choice of values of a row that are kept between its passes; others are computed or read again.

Two policies for two costs. `values_of_later_sweeps` keeps what costs more than a load, for caches that hold a row
anyway. `values_of_all_passes` keeps everything that several passes need, for registers and shared memory in front of a
memory that is far away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.scalar import Numbering
from foundry.knowledge.compiler.ir.views import nodes
from foundry.knowledge.opgraph import ITEM_BYTES

# Operators of one instruction: a few of them take no longer than a load from the first cache.
_CHEAP = frozenset(
    ("add", "sub", "mul", "neg", "abs", "square", "relu", "maximum", "minimum", "cast", "where", "clamp")
)
# Of these a few take no longer than reading more of shared memory.
_CHEAPEST = _CHEAP - {"square", "where", "clamp"}


def values_of_later_sweeps(sweeps: Sequence[Iterable[ir.Expr]], contiguous: frozenset[int]) -> list[ir.Expr]:
    """Values that one sweep over the row computes, a later sweep needs again, and that cost more than a load.

    `contiguous` holds the identities of leaves that are read in order: reading those again is as cheap as a copy.
    """
    numbering = Numbering()
    computed: set[int] = set()
    staged: dict[int, ir.Expr] = {}
    for sweep in sweeps:
        exprs = list(sweep)
        stack, seen = list(exprs), set[int]()
        while stack:
            node = stack.pop()
            number = numbering.number(node)
            if number in seen:
                continue
            seen.add(number)
            if number in computed and _worth_keeping(node, contiguous):
                staged.setdefault(number, node)
            elif isinstance(node, ir.Apply):
                stack.extend(node.args)
            elif isinstance(node, ir.Gather):
                stack.append(node.index)
        computed |= {numbering.number(node) for node in nodes(*exprs)}
    return list(staged.values())


def _worth_keeping(node: ir.Expr, contiguous: frozenset[int]) -> bool:
    """True for a value whose recomputation costs more than keeping it: scattered loads, several loads, costly
    operators."""
    if isinstance(node, ir.Gather):
        return True
    if isinstance(node, ir.Load):
        return id(node) not in contiguous
    if not isinstance(node, ir.Apply):
        return False
    below = list(nodes(node))
    moving = {(leaf.buffer, leaf.view) for leaf in below if isinstance(leaf, ir.Load) and any(leaf.view.strides)}
    scattered = any(isinstance(leaf, ir.Gather) for leaf in below)
    return scattered or len(moving) > 1 or any(isinstance(n, ir.Apply) and n.op not in _CHEAP for n in below)


def values_of_all_passes(passes: Iterable[Sequence[ir.Expr]], outer: int) -> list[ir.Expr]:
    """The values worth keeping on chip: those that several passes need and that no reduction's result enters.

    `passes` are the values of each pass, `outer` the number of outer dimensions. The largest such sub-expressions are
    kept, so that x + residual takes one register an element instead of two; a widened load is kept narrow.
    """
    numbering = Numbering()
    roots = [[numbering.number(value) for value in values] for values in passes]
    keepable = _keepable(numbering, outer)
    uses = [0] * len(numbering.nodes)
    for loop in roots:
        for number in _reachable(numbering, loop):
            uses[number] += 1
    taken: dict[int, None] = {}
    seen: set[int] = set()

    def visit(number: int) -> None:
        """Adds the value to those kept if several passes use it, else looks at its operands."""
        if number in seen:
            return
        seen.add(number)
        if keepable[number] and uses[number] > 1:
            node, children = numbering.nodes[number], numbering.children[number]
            narrow = isinstance(node, ir.Apply) and node.op == "cast" and isinstance(node.args[0], ir.Load)
            taken.setdefault(children[0] if narrow else number)
            return
        for child in numbering.children[number]:
            visit(child)

    for loop in roots:
        for number in loop:
            visit(number)
    return _narrowest([numbering.nodes[number] for number in taken], outer)


def _distinct(exprs: Iterable[ir.Expr]) -> list[ir.Expr]:
    """Every node below `exprs`, equal ones once, children before parents."""
    numbering = Numbering()
    for expr in exprs:
        numbering.number(expr)
    return numbering.nodes


def _narrowest(kept: list[ir.Expr], outer: int) -> list[ir.Expr]:
    """The kept values, or their operands where these are smaller and cheap to combine again."""
    reads: list[ir.Expr] = []
    for node in _distinct(kept):
        if isinstance(node, ir.Apply) and not _is_cheap(node):
            return kept
        if isinstance(node, ir.Gather | ir.Iota | ir.Named):
            return kept
        if isinstance(node, ir.Load) and any(node.view.strides[outer:]):
            reads.append(node)
    steps = sum(isinstance(node, ir.Apply) and node.op != "cast" for node in _distinct(kept))
    return reads if steps <= len(kept) and kept_bytes(reads) < kept_bytes(kept) else kept


def _is_cheap(node: ir.Apply) -> bool:
    """True for the cheapest operators and for a division by a constant."""
    return node.op in _CHEAPEST or (node.op == "div" and isinstance(node.args[1], ir.Const))


def kept_bytes(kept: Iterable[ir.Expr]) -> int:
    """Bytes on chip of one element of what is kept: loads as they are in memory, the rest as it is computed."""
    return sum(_bytes_of(expr) for expr in kept)


def _bytes_of(expr: ir.Expr) -> int:
    """Bytes of an element: as stored for a load, else 8 for float64 and 4 for all others."""
    return ITEM_BYTES[expr.dtype] if isinstance(expr, ir.Load) else 8 if expr.dtype == "float64" else 4


def _keepable(numbering: Numbering, outer: int) -> list[bool]:
    """Says for each numbered node if it moves along the reduced dimensions and no computed name enters it.

    Children have lower numbers than their parents."""
    moves: list[bool] = []
    free: list[bool] = []
    for node, children in zip(numbering.nodes, numbering.children, strict=True):
        own = isinstance(node, ir.Load | ir.Gather | ir.Iota) and any(node.view.strides[outer:])
        moves.append(own or any(moves[child] for child in children))
        free.append(not isinstance(node, ir.Named) and all(free[child] for child in children))
    kinds = [isinstance(node, ir.Apply | ir.Load | ir.Gather) for node in numbering.nodes]
    return [a and b and c for a, b, c in zip(moves, free, kinds, strict=True)]


def _reachable(numbering: Numbering, roots: Iterable[int]) -> set[int]:
    """The numbers of all values below `roots`, these included."""
    found: set[int] = set()
    stack = list(roots)
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(numbering.children[number])
    return found
