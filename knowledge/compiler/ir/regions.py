"""Concatenations that lie inside others: a chain of them has one memory, into which every part is written once.

A concatenation whose parts are neighbours, in the same order, among those of a longer one is a region of the longer
one's memory: what makes a part writes it there once, and whatever reads a concatenation reads its region through
strides. Parts of a concatenation of concatenations count as its own. It has memory of its own where forward returns it
or state is written back from it, where its type is another one, where it is made of parameters alone and the longer one
is not, and where a reader of the region would lose its widest loads.
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
    """Where a concatenation lies in the memory of `whole`: from `start` on along `axis`. `parts`: each value that it
    is made of, and where along the axis that begins."""

    whole: Value
    axis: int
    start: int
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Concatenation:
    value: Value
    axis: int
    parts: tuple[str, ...]  # with those of other concatenations in their places
    starts: tuple[int, ...]  # of each part along the axis
    is_fixed: bool  # made of parameters alone

    @property
    def run(self) -> int:
        """Elements that lie side by side."""
        return math.prod(self.value.spec.shape[self.axis :])


def find_regions(graph: OpGraph) -> dict[str, Region]:
    """The region of each concatenation that shares its memory with another one, by its name."""
    returned = {*graph.output_names, *graph.mutations.values()}
    members: list[tuple[_Concatenation, list[tuple[_Concatenation, int]]]] = []  # of each memory: (member, first part)
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
    given = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", 0)
    assert isinstance(given, int)
    return given % len(op.outputs[0].spec.shape)


def _parts(graph: OpGraph, op: Op, axis: int, known: dict[str, _Concatenation]) -> Iterator[str]:
    """The values that a concatenation is made of, those without elements left out."""
    items = op.args[0]
    assert isinstance(items, list)
    for name in [item.ref for item in items if isinstance(item, Ref)]:
        inner = known.get(name)
        if inner is not None and inner.axis == axis and inner.value.spec.dtype == op.outputs[0].spec.dtype:
            yield from inner.parts
        elif graph.values[name].spec.numel:
            yield name


def _place(found: _Concatenation, whole: _Concatenation) -> int | None:
    """Which of `whole`'s parts `found` begins with; None if it cannot lie there."""
    if found.value.spec.dtype != whole.value.spec.dtype or found.axis != whole.axis or found.is_fixed != whole.is_fixed:
        return None
    count = len(found.parts)
    for first, name in enumerate(whole.parts[: len(whole.parts) - count + 1]):
        if name == found.parts[0] and whole.parts[first : first + count] == found.parts:
            return first if _keeps_wide_loads(found, whole, first) else None
    return None


def _keeps_wide_loads(found: _Concatenation, whole: _Concatenation, first: int) -> bool:
    """Whether all that lies side by side still begins and ends with whole vectors."""
    shape, axis = found.value.spec.shape, found.axis
    vector = _VECTOR_BYTES // ITEM_BYTES[found.value.spec.dtype]
    begin = whole.starts[first] * math.prod(shape[axis + 1 :])
    rows = [found.run, whole.run] if math.prod(shape[:axis]) > 1 else []
    return all(size % vector == 0 for size in [begin, *rows])


def _region(found: _Concatenation, first: int, whole: _Concatenation) -> Region:
    starts = whole.starts[first : first + len(found.parts)]
    return Region(whole.value, whole.axis, starts[0], tuple(zip(found.parts, starts, strict=True)))
