"""Products split over k: the blocks' partial sums in scratch memory, and the launch that adds them up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.tiled import epilogue_lines
from foundry.knowledge.compiler.cuda.launches import Launch
from foundry.knowledge.compiler.cuda.space import (
    Space,
    body_leaves,
    decompose,
    indent,
    loop_over_vector,
    signature_of,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.ir.band import needed_band
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Plan

_THREADS = 256

_SUM = """\
// Adds the partial products of @NAME@ in a fixed order and applies the epilogue.
extern "C" __global__ void __launch_bounds__(256) @NAME@_sum(@PARAMETERS@) {
    const @INDEX@ point = (@INDEX@)blockIdx.x * 256 + threadIdx.x;
    if (point < @POINTS@) {
        Vec<@TYPE@, @VECTOR@> total = load_vec<@VECTOR@>(partial + point * @VECTOR@);
#pragma unroll 4
        for (int split = 1; split < @SPLITS@; ++split) {
            const Vec<@TYPE@, @VECTOR@> next = load_vec<@VECTOR@>(partial + split * @STEP@LL + point * @VECTOR@);
#pragma unroll
            for (int j = 0; j < @VECTOR@; ++j) total.at[j] += next.at[j];
        }
@EPILOGUE@
    }
}
"""


@dataclass(frozen=True)
class Partial:
    """Partial sums of a product that is split over k: a contiguous (split, batch, m, n) tensor, `memory` bytes into the
    workspace."""

    kernel: GemmKernel
    plan: Plan
    name: str
    type: str  # C type of a sum
    out: Space  # batch dimensions, m, n
    splits: int
    memory: int

    @property
    def points(self) -> int:
        """Number of elements of the result."""
        return math.prod(self.kernel.batch) * self.kernel.m * self.kernel.n

    @property
    def bytes(self) -> int:
        """Bytes of all partial sums."""
        return self.splits * self.points * (8 if self.type == "double" else 4)

    @property
    def parameter(self) -> str:
        """The C parameter that points to the partial sums."""
        return f"{self.type}* __restrict__ partial"

    @property
    def argument(self) -> str:
        """The launch argument for the partial sums."""
        return cuda_launch.workspace_argument(self.memory)

    def store(self, acc: str, guard: str, element_guard: str) -> list[str]:
        """C statements that keep the partial sums of four neighbours of a row; `acc`: C text of neighbour j."""
        kernel = self.kernel
        row = f"((long long)(split * {math.prod(kernel.batch)} + batch) * {kernel.m} + m) * {kernel.n} + n"
        body = [f"partial[{row} + j] = {acc};"]
        body = [f"if ({element_guard}) {{", *body, "}"] if element_guard else body
        lines = loop_over_vector(4, body)
        return [f"if ({guard}) {{", *lines, "}"] if guard else lines

    def sum(self) -> tuple[str, Launch]:
        """(CUDA text, launch) that adds the partial sums and stores the result."""
        kernel, out = self.kernel, self.out
        vector = 4 if kernel.n % 4 == 0 and all(out.is_aligned(store.view, 4) for store in kernel.stores) else 1
        signature, arguments = signature_of(self.plan, body_leaves(kernel.stores), kernel.stores)
        sizes = (*out.sizes[:-1], out.sizes[-1] // vector)
        names = (*out.names[:-1], "nv" if vector > 1 else "n")
        place = decompose("point", sizes, names, out.index)
        if vector > 1:
            place.append(f"const {out.index} n = nv * {vector};")
        epilogue = epilogue_lines(
            out, kernel.stores, self.plan, acc="total.at[j]", vector=vector, guard="", element_guard=""
        )
        values: dict[str, object] = {
            "NAME": self.name,
            "PARAMETERS": ", ".join([signature, f"const {self.parameter}"]),
            "TYPE": self.type,
            "INDEX": out.index,
            "POINTS": self.points // vector,
            "VECTOR": vector,
            "SPLITS": self.splits,
            "STEP": self.points,
            "EPILOGUE": indent([*place, *epilogue], 2),
        }
        source = fill(_SUM, values)
        grid = (math.ceil(self.points // vector / _THREADS), 1, 1)
        return source, Launch(f"{self.name}_sum", grid, (_THREADS, 1, 1), (*arguments, self.argument))


def split_steps(steps: int, splits: int, kernel: GemmKernel) -> tuple[str, str]:
    """C texts of (first step of k, the one behind the last) of a block's part; equal if no result of its tile is
    needed."""
    part = math.ceil(steps / splits)
    first = f"split * {part}" if splits > 1 else "0"
    end = f"((split + 1) * {part} < {steps} ? (split + 1) * {part} : {steps})" if splits > 1 else str(steps)
    band = needed_band(kernel)
    if band.low > band.high:
        return first, first
    idle = [f"first_n + BN - 1 - first_m < {band.low}"] if band.low > -math.inf else []
    idle += [f"first_n - first_m - BM + 1 > {band.high}"] if band.high < math.inf else []
    return first, f"{' || '.join(idle)} ? {first} : {end}" if idle else end


def find_block(
    tiles: int, splits: int, batch: Sequence[int], names: Sequence[str], index: str, item: str = "(int)blockIdx.x"
) -> list[str]:
    """C statements that find the part of k and the batch point of a block's `item`; its tile varies fastest."""
    lines = []
    rest = f"{item} / {tiles}"
    if splits > 1:
        lines.append(f"const int split = {rest} % {splits};")
        rest = f"{rest} / {splits}"
    if batch or splits > 1:
        lines.append(f"const int batch = {rest};")
    return [*lines, *(decompose("batch", batch, names, index) if batch else [])]
