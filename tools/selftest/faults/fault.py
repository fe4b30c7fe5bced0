"""Data types of planted faults: a family, a description, and a way to make the faulty file. Free of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Family = Literal[
    "dropped operator",
    "dropped affine parameter",
    "wrong operator",
    "swapped order",
    "wrong axis",
    "wrong constant",
    "wrong reduction",
    "missing stabilisation",
    "lower precision",
    "off by one",
    "missing bounds check",
    "missing last element",
    "wrong place",
    "stale memory",
]

# Families in the order in which they take turns if not all faults can be planted, and their meaning.
FAMILIES: dict[Family, str] = {
    "dropped operator": "an operator of the task is left out",
    "wrong axis": "an operand or a result is walked along another dimension, or transposed",
    "swapped order": "two steps of an epilogue change places",
    "missing bounds check": "work runs past an end, or a border is not tested",
    "lower precision": "values are rounded to 16 bits where the task has more",
    "off by one": "an index, a window or a mask is shifted by one",
    "dropped affine parameter": "a weight or a bias is left out",
    "wrong constant": "a number of the task is slightly wrong, or an epsilon is missing",
    "wrong reduction": "another reduction, another count, or partial sums that get lost",
    "missing stabilisation": "an exponential is taken without subtracting the maximum first",
    "missing last element": "the last element, row, column or block is left out",
    "stale memory": "memory is read before it is written, or never written",
    "wrong place": "a result is written to another place",
    "wrong operator": "another operator stands where the task has its own",
}


@dataclass(frozen=True)
class Fault:
    """A planted fault: `what` describes it, `where` names the kernel and a place in it, or a line of the source."""

    family: Family
    what: str
    where: str


@dataclass(frozen=True)
class PlantableFault:
    """A fault that could be planted. `make` gives the whole faulty file; raises CannotLower if the compiler cannot
    express it."""

    fault: Fault
    make: Callable[[], str]


@dataclass(frozen=True)
class Mutant:
    """A faulty candidate file."""

    fault: Fault
    text: str
