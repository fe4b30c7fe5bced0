"""Affine operators between a product or convolution and the reduction of its results.

Sums, means and averages over windows are linear. So they may be taken before a multiplication by a factor that does
not vary along their axes, and they apply to each term of a sum alone:
 mean(c * y) = c * mean(y),   mean(y + b) = mean(y) + mean(b).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from foundry.knowledge.compiler.algebra.editor import FLOATS, Editor, Shape
from foundry.knowledge.opgraph import Argument, Op, Ref

_FACTORS = frozenset({"mul", "multiply", "div", "divide", "true_divide"})
_TERMS = frozenset({"add", "sub", "subtract"})
_EITHER_SIDE = _TERMS | {"mul", "multiply"}
_ALONE = frozenset({"neg", "clone", "contiguous", "detach", "alias"})


@dataclass(frozen=True)
class Link:
    """One affine operator; the value to be reduced enters it as operand `at`."""

    op: Op
    at: int

    @property
    def other(self) -> Argument:
        """The operator's other operand, or None."""
        return self.op.args[1 - self.at] if len(self.op.args) > 1 else None


@dataclass(frozen=True)
class Chain:
    """`anchor` makes the value `start`, which only the first of `links` reads, and so on to the last one's result."""

    anchor: Op
    start: Ref
    links: tuple[Link, ...]


def chains_above(editor: Editor, item: Argument, axes: Collection[int], *, tensors: bool = True) -> Iterator[Chain]:
    """The chains of affine operators that lead to `item`, up to the first other operator, along each operand of a sum.

    Factors do not vary along `axes`; with `tensors` a term may be a tensor that does.
    """
    if not isinstance(item, Ref) or not editor.only_reader(item.ref) or item.ref not in editor.graph.producers:
        return
    op = editor.graph.producers[item.ref]
    yield Chain(op, item, ())
    for at, operand in enumerate(op.args):
        if _is_link(editor, Link(op, at), axes, tensors):
            for chain in chains_above(editor, operand, axes, tensors=tensors):
                yield Chain(chain.anchor, chain.start, (*chain.links, Link(op, at)))


def _is_link(editor: Editor, link: Link, axes: Collection[int], tensors: bool) -> bool:
    """True if the operator is an affine map of one operand that has the result's own shape."""
    op, spec = link.op, link.op.outputs[0].spec
    item = op.args[link.at]
    if op.kwargs or spec.dtype not in FLOATS or not isinstance(item, Ref):
        return False
    if (editor.spec(item).shape, editor.spec(item).dtype) != (spec.shape, spec.dtype):
        return False
    if link.at and op.kind not in _EITHER_SIDE:
        return False
    return _is_affine(editor, link, spec.shape, axes, tensors)


def _is_affine(editor: Editor, link: Link, shape: Shape, axes: Collection[int], tensors: bool) -> bool:
    """True if the operator adds or multiplies by an operand that may vary as allowed."""
    kind, other = link.op.kind, link.other
    if kind in _ALONE:
        return len(link.op.args) == 1
    if isinstance(other, bool) or not isinstance(other, int | float | Ref) or len(link.op.args) != 2:
        return False
    varies = isinstance(other, Ref) and any(_size(editor.shape(other), shape, axis) != 1 for axis in axes)
    if isinstance(other, Ref) and editor.spec(other).dtype != link.op.outputs[0].spec.dtype and editor.shape(other):
        return False
    return (kind in _FACTORS and not varies) or (kind in _TERMS and (tensors or not varies))


def _size(shape: Shape, full: Shape, axis: int) -> int:
    """The size that a tensor which broadcasts to `full` has along one of its axes."""
    own = axis - (len(full) - len(shape))
    return shape[own] if own >= 0 else 1


def follow(editor: Editor, chain: Chain, value: Ref, term: Callable[[Argument, Shape], Argument]) -> Ref:
    """The chain's operators applied to `value`, which was reduced before them.

    `term(other, shape)` gives the reduced form of a term.
    """
    for link in chain.links:
        op, other = link.op, link.other
        spec = op.outputs[0].spec
        if other is not None and op.kind in _TERMS:
            other = term(other, spec.shape)
        operands = [value] if other is None else [value, other] if link.at == 0 else [other, value]
        value = editor.emit(op.target, operands, editor.shape(value), spec.dtype)
    return value


def reduced_term(editor: Editor, kind: str, axes: Collection[int]) -> Callable[[Argument, Shape], Argument]:
    """A function that reduces a term by a sum or mean along `axes`.

    A term that is constant along the axes stays in a mean, and is multiplied by the number of elements in a sum.
    """

    def term(other: Argument, full: Shape) -> Argument:
        """The other operand reduced alike: summed or averaged over the axes along which it varies, times the size of
        the rest."""
        missing = math.prod(full[axis] for axis in axes if not _varies(other, full, axis))
        times = missing if kind == "sum" else 1
        if not isinstance(other, Ref):
            assert isinstance(other, int | float)
            return other * times
        own = [axis - (len(full) - len(editor.shape(other))) for axis in axes if _varies(other, full, axis)]
        return editor.times(editor.reduce(other, kind, sorted(own)), times)

    def _varies(other: Argument, full: Shape, axis: int) -> bool:
        """True for a tensor that has more than one element along the axis; False for numbers."""
        return isinstance(other, Ref) and _size(editor.shape(other), full, axis) != 1

    return term
