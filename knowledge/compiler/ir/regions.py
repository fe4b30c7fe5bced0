"""Concatenations inside others: a chain of them has one memory, into which every part is written once.

A concatenation whose parts are neighbours, in the same order, in a longer one is a region of the longer one's
memory. Each part is written there once, and readers of a concatenation read its region through strides. Parts of
nested concatenations count as parts of the outer one. A concatenation keeps its own memory if forward returns it or
state is written back from it. So it does if its dtype differs, if only one of both is made of parameters alone, or
if a reader of the region would lose its widest loads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from foundry.knowledge.opgraph import ITEM_BYTES, Op, OpGraph, Ref, Value

_KINDS = ("cat", "concat", "concatenate")
_VECTOR_BYTES = 16


@dataclass(frozen=True)
class Region:
    """The place of a concatenation in the memory of `whole`: from `start` on along `axis`.

    `parts`: (value, its start along the axis) of each part.
    """

    whole: Value
    axis: int
    start: int
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Concatenation:
    """A concatenation with its parts, nested ones flattened."""

    value: Value
    axis: int
    parts: tuple[str, ...]  # parts of nested concatenations included
    starts: tuple[int, ...]  # start of each part along the axis
    is_fixed: bool  # made of parameters alone

    @property
    def run(self) -> int:
        """Elements of one contiguous run."""
        return math.prod(self.value.spec.shape[self.axis :])


def find_regions(graph: OpGraph) -> dict[str, Region]:
    """The region of each concatenation that shares its memory with another one, by its name."""
    returned = {*graph.output_names, *graph.mutations.values()}
    # For each memory: (member, its first part).
    members: list[tuple[_Concatenation, list[tuple[_Concatenation, int]]]] = []
    for found in sorted(_concatenations(graph), key=lambda item: -len(item.parts)):
        for whole, inside in members:
            place = None if found.value.name in returned else _place(found, whole)
            if place is not None:
                inside.append((found, place))
                break
        else:
            members.append((found, [(found, 0)]))
    shared = [(whole, inside) for whole, inside in members if len(inside) > 1]
    return {item.value.name: _region(item, at, whole) for whole, inside in shared for item, at in inside}


def _concatenations(graph: OpGraph) -> list[_Concatenation]:
    """The concatenations of a graph in order, with the parts of nested ones in place of these."""
    found: dict[str, _Concatenation] = {}
    for op in graph.ops:
        if op.kind in _KINDS and op.target.startswith("aten."):
            value = op.outputs[0]
            axis = _axis(op)
            parts = tuple(_parts(graph, op, axis, found))
            lengths = [graph.values[name].spec.shape[axis] for name in parts]
            starts = (0, *itertools.accumulate(lengths[:-1]))
            if len(parts) > 1:
                found[value.name] = _Concatenation(value, axis, parts, starts, value.name in graph.derived)
    return list(found.values())


def _axis(op: Op) -> int:
    """The axis of a concatenation, from 0."""
    given = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    assert isinstance(given, int)
    return given % len(op.outputs[0].spec.shape)


def _parts(graph: OpGraph, op: Op, axis: int, known: dict[str, _Concatenation]) -> Iterator[str]:
    """Yields the values that a concatenation joins, empty ones left out; those of a nested one along the same axis in
    its place."""
    items = op.args[0]
    assert isinstance(items, list)
    for name in [item.ref for item in items if isinstance(item, Ref)]:
        inner = known.get(name)
        if inner is not None and inner.axis == axis and inner.value.spec.dtype == op.outputs[0].spec.dtype:
            yield from inner.parts
        elif graph.values[name].spec.numel:
            yield name


def _place(found: _Concatenation, whole: _Concatenation) -> int | None:
    """The number of `whole`'s part with which `found` begins; None if it cannot be a region of it."""
    if found.value.spec.dtype != whole.value.spec.dtype or found.axis != whole.axis or found.is_fixed != whole.is_fixed:
        return None
    count = len(found.parts)
    for first, name in enumerate(whole.parts[: len(whole.parts) - count + 1]):
        if name == found.parts[0] and whole.parts[first : first + count] == found.parts:
            return first if _keeps_wide_loads(found, whole, first) else None
    return None


def _keeps_wide_loads(found: _Concatenation, whole: _Concatenation, first: int) -> bool:
    """True if a part of a concatenation begins and ends at a multiple of a vector, so that wide loads stay possible."""
    shape, axis = found.value.spec.shape, found.axis
    vector = _VECTOR_BYTES // ITEM_BYTES[found.value.spec.dtype]
    begin = whole.starts[first] * math.prod(shape[axis + 1 :])
    rows = [found.run, whole.run] if math.prod(shape[:axis]) > 1 else []
    return all(size % vector == 0 for size in [begin, *rows])


def _region(found: _Concatenation, first: int, whole: _Concatenation) -> Region:
    """The region of a concatenation that begins at part `first` of `whole`."""
    starts = whole.starts[first : first + len(found.parts)]
    return Region(whole.value, whole.axis, starts[0], tuple(zip(found.parts, starts, strict=True)))
