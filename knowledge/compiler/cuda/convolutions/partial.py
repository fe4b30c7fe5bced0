"""Convolutions whose steps are shared by several blocks: their partial sums in scratch memory, and the launch that adds
them up and stores the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.convolutions.space import POSITION, ConvSpace
from foundry.knowledge.compiler.cuda.launches import Launch
from foundry.knowledge.compiler.cuda.space import body_leaves, decompose, indent, loop_over_vector, signature_of
from foundry.knowledge.compiler.file.assemble import fill

_THREADS = 256

_SUM = """\
// Adds the partial sums of @NAME@ in a fixed order and applies the epilogue.
extern "C" __global__ void __launch_bounds__(256) @NAME@_sum(@PARAMETERS@) {
    const @INDEX@ point = (@INDEX@)blockIdx.x * 256 + threadIdx.x;
    const int all_splits = @SPLITS@;
    if (point < @POINTS@) {
        @TYPE@ total = partial[point];
#pragma unroll 4
        for (int split = 1; split < all_splits; ++split) total += partial[(long long)split * @POINTS@ + point];
@EPILOGUE@
    }
}
"""


@dataclass(frozen=True)
class PartialSums:
    """Partial sums: a contiguous (split, group, channel of the group, image, position) tensor at the begin of the
    workspace. `counts` are an image's positions along its axes."""

    space: ConvSpace
    counts: tuple[int, ...]
    index: str  # C type of a pixel's number
    splits: int

    @property
    def _pixels(self) -> int:
        """Number of positions in all images."""
        return self.space.kernel.batch * math.prod(self.counts)

    @property
    def _points(self) -> int:
        """Number of elements of the result."""
        return self.space.kernel.out_channels * self._pixels

    @property
    def bytes(self) -> int:
        """Bytes of all partial sums."""
        return self.splits * self._points * self.space.item_bytes

    @property
    def parameter(self) -> str:
        """The C parameter that points to the partial sums."""
        return f"{self.space.type}* __restrict__ partial"

    @property
    def argument(self) -> str:
        """The launch argument for the partial sums."""
        return cuda_launch.workspace_argument(0)

    def store(self, tests: Sequence[str]) -> list[str]:
        """C statements that keep `acc[i][h * 4 + j]` of (m, n + j) for four neighbours, if `tests` hold."""
        kernel = self.space.kernel
        group = f"group_index * {self.space.found.out_per_group} + " if kernel.groups > 1 else ""
        row = f"((long long)split * {kernel.out_channels} + {group}(int)m) * {self._pixels} + n"
        body = [f"partial[{row} + j] = acc[i][h * 4 + j];"]
        body = [f"if (n + j < {self._pixels}) {{", *body, "}"] if self._pixels % 4 else body
        return [f"if ({' && '.join(tests)}) {{" if tests else "{", *loop_over_vector(4, body), "}"]

    def sum(self) -> tuple[str, Launch]:
        """(CUDA text, launch) that adds the partial sums and stores the result."""
        kernel, plan = self.space.kernel, self.space.plan
        signature, arguments = signature_of(plan, body_leaves(kernel.stores), kernel.stores)
        index = "long long" if self._points + _THREADS >= 2**31 else "int"
        sizes, names = (kernel.out_channels, kernel.batch, *self.counts), ("plane", "photo", "j0", "j1", "j2")
        place = decompose("point", sizes, names, index)
        place += [f"const int channel = (int)plane; const {self.space.image} image = photo;"]
        place += [f"const int {name} = (int)j{axis};" for axis, name in enumerate(POSITION)]
        epilogue = epilogue_lines(
            self.space.outputs(), kernel.stores, plan, acc="total", vector=1, guard="", element_guard=""
        )
        values: dict[str, object] = {
            "NAME": self.space.name,
            "PARAMETERS": ", ".join([signature, f"const {self.parameter}"]),
            "INDEX": index,
            "TYPE": self.space.type,
            "POINTS": self._points,
            "SPLITS": self.splits,
            "EPILOGUE": indent([*place, *epilogue], 2),
        }
        grid = (math.ceil(self._points / _THREADS), 1, 1)
        launch = Launch(f"{self.space.name}_sum", grid, (_THREADS, 1, 1), (*arguments, self.argument))
        return fill(_SUM, values), launch
