"""The iteration space of a row kernel: merged outer and reduced dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.space import Space, distinct
from foundry.knowledge.compiler.ir.kernels import (
    Expr,
    Gather,
    Iota,
    Let,
    Load,
    Reduction,
    RowKernel,
    Store,
    View,
)


@dataclass(frozen=True)
class RowSpace:
    """Merged outer and reduced dimensions; `space` has the outer ones first."""

    space: Space
    outer: int  # how many merged dimensions are outer

    @staticmethod
    def of(kernel: RowKernel) -> RowSpace:
        views = [leaf.view for leaf in distinct(stage_values(kernel)) if isinstance(leaf, Load | Gather | Iota)]
        views += [store.view for store in stage_stores(kernel)]
        barrier = len(kernel.outer)
        space = Space.merge([*kernel.outer, *kernel.reduced], views, barriers=[barrier])
        outer = sum(1 for dim in space.last if dim < barrier)
        if outer == len(space.sizes):  # every reduced dimension has size 1
            space = Space((*space.sizes, 1), (*space.last, barrier + len(kernel.reduced) - 1))
        return RowSpace(space, outer)

    @property
    def outer_sizes(self) -> tuple[int, ...]:
        return self.space.sizes[: self.outer]

    @property
    def reduced_sizes(self) -> tuple[int, ...]:
        return self.space.sizes[self.outer :]

    @property
    def rows(self) -> int:
        return math.prod(self.outer_sizes)

    @property
    def length(self) -> int:
        return math.prod(self.reduced_sizes)

    @property
    def indices(self) -> list[str]:
        """C names: o0.. for rows, r0.. for the reduced dimensions."""
        return [f"o{i}" for i in range(self.outer)] + [f"r{i}" for i in range(len(self.reduced_sizes))]

    def reduced_strides(self, view: View) -> tuple[int, ...]:
        return self.space.strides(view)[self.outer :]


def stage_stores(kernel: RowKernel) -> list[Store]:
    return [stage.store for stage in kernel.stages if not isinstance(stage, Reduction | Let)]


def stage_values(kernel: RowKernel) -> list[Expr]:
    return [stage.value if isinstance(stage, Reduction | Let) else stage.store.value for stage in kernel.stages]
