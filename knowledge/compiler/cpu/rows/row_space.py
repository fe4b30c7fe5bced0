"""The iteration space of a row kernel: merged outer and reduced dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.space import Space
from foundry.knowledge.compiler.ir.kernels import RowKernel, View
from foundry.knowledge.compiler.ir.views import views_of
from foundry.knowledge.compiler.schedule.passes import stores_in, value_of


@dataclass(frozen=True)
class RowSpace:
    """Merged outer and reduced dimensions; `space` has the outer ones first."""

    space: Space
    outer: int  # number of outer dimensions

    @staticmethod
    def of(kernel: RowKernel) -> RowSpace:
        """The space of a kernel, its outer and its reduced dimensions merged separately; at least one dimension is
        reduced."""
        views = [*views_of(map(value_of, kernel.stages)), *(store.view for store in stores_in(kernel.stages))]
        barrier = len(kernel.outer)
        space = Space.merge([*kernel.outer, *kernel.reduced], views, barriers=[barrier])
        outer = sum(1 for dim in space.last if dim < barrier)
        if outer == len(space.sizes):  # every reduced dimension has size 1
            space = Space((*space.sizes, 1), (*space.last, barrier + len(kernel.reduced) - 1))
        return RowSpace(space, outer)

    @property
    def outer_sizes(self) -> tuple[int, ...]:
        """Sizes of the outer dimensions."""
        return self.space.sizes[: self.outer]

    @property
    def reduced_sizes(self) -> tuple[int, ...]:
        """Sizes of the reduced dimensions."""
        return self.space.sizes[self.outer :]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.outer_sizes)

    @property
    def length(self) -> int:
        """Number of elements in a row."""
        return math.prod(self.reduced_sizes)

    @property
    def indices(self) -> list[str]:
        """C names of the indices: o0.. for rows, r0.. for the reduced dimensions."""
        return [f"o{i}" for i in range(self.outer)] + [f"r{i}" for i in range(len(self.reduced_sizes))]

    def reduced_strides(self, view: View) -> tuple[int, ...]:
        """A view's strides along the reduced dimensions, in elements."""
        return self.space.strides(view)[self.outer :]
