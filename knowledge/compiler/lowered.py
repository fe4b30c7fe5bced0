"""The results of lowering: a whole candidate file, and the changes that the search can make to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import KernelSummary

_PREFIX = re.compile(r"^(?:shape\d+_)?foundry_")


def plan_name(symbol: str) -> str:
    """The name of a kernel in plans and moves, from its symbol in the built library."""
    return _PREFIX.sub("", symbol)


@dataclass(frozen=True)
class LeftWork:
    """An operator that a candidate leaves to PyTorch in every call, and what it computes and moves there."""

    kind: str
    flops: int
    moved_bytes: int
    line: int = 0  # the task's line that calls it; 0 if unknown


@dataclass(frozen=True)
class Lowered:
    """`recipe` is complete (defaults filled in), `source` the self-contained ModelNew file."""

    recipe: Recipe
    source: str
    kernels: tuple[KernelSummary, ...]
    fused: tuple[str, ...]  # values that "split" may materialise
    materialised: tuple[str, ...]  # values that "fuse" may put back
    rewrites_applied: tuple[str, ...]
    rewrites_open: tuple[str, ...]
    labels: tuple[str, ...]
    flops: int  # operations of the graph as rewritten
    traffic_bytes: int  # compulsory traffic of the graph as rewritten
    left: tuple[LeftWork, ...] = ()  # operators that PyTorch runs

    @property
    def structure(self) -> str:
        """Digest of everything about the file but its tunables: fusion, rewrites, authored code, precisions."""
        return structure_of(self.recipe, self.kernels)


@dataclass(frozen=True)
class Outline:
    """A candidate without its file: the complete recipe and its kernels."""

    recipe: Recipe
    kernels: tuple[KernelSummary, ...]

    @property
    def structure(self) -> str:
        """Digest of everything about the file but its tunables: fusion, rewrites, authored code, precisions."""
        return structure_of(self.recipe, self.kernels)


def structure_of(recipe: Recipe, kernels: Sequence[KernelSummary]) -> str:
    """Names what the tuner leaves as it is: which kernels there are, and in which precision each computes."""
    precisions = [
        (kernel.name, item.name, kernel.choices.get(item.name, item.default))
        for kernel in kernels
        for item in kernel.tunables
        if item.aspect == "precision"
    ]
    written = recipe.authored.digest if recipe.authored else ""
    parts = (recipe.target, recipe.materialise, recipe.rewrites, recipe.ieee_only, precisions, written)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
