"""Pointwise CUDA kernels with transposed operands. Operands that are contiguous along another dimension than the
results are turned in shared memory, so that loads and stores are both coalesced."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda import launches
from foundry.knowledge.compiler.cuda.dialect import element_type
from foundry.knowledge.compiler.cuda.launches import symbol_of
from foundry.knowledge.compiler.cuda.space import (
    Known,
    Space,
    body_leaves,
    decompose,
    element_load,
    indent,
    make_emitter,
    signature_of,
)
from foundry.knowledge.compiler.ir.kernels import Load, MapKernel, Plan
from foundry.knowledge.opgraph import ITEM_BYTES

_SIDES = (32, 64)
_STATIC_BYTES = 48 << 10  # shared memory of a block that needs no attribute
_SHORTEST = 16  # dimensions shorter than half a warp's access waste more in tiles than they save
_THREADS = 256

# A warp reads 32 neighbours along the operands' dimension and writes 32 along the results'. The odd pitch puts a
# column's elements into different banks.
_KERNEL = """\
extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const {index} block = blockIdx.x;
{declared}
{position}
    const {index} row0 = row_tile * {side}, column0 = column_tile * {side};
#pragma unroll
    for (int c = warp; c < {side}; c += {warps}) {{
#pragma unroll
        for (int r = lane; r < {side}; r += 32) {{
            const {index} {row} = row0 + r, {column} = column0 + c;
            if ({row} < {rows} && {column} < {columns}) {{
{copies}
            }}
        }}
    }}
    __syncthreads();
#pragma unroll
    for (int r = warp; r < {side}; r += {warps}) {{
#pragma unroll
        for (int c = lane; c < {side}; c += 32) {{
            const {index} {row} = row0 + r, {column} = column0 + c;
            if ({row} < {rows} && {column} < {columns}) {{
{compute}
            }}
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Turned:
    """Operands that are contiguous along dimension `dim`, while the results are contiguous along the last one."""

    dim: int
    loads: tuple[Load, ...]

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides in elements of square tiles that fit the shared memory of a block; 0 (no tiles) first."""
        return (0, *(side for side in _SIDES if _tile_bytes(self.loads, side) <= _STATIC_BYTES))


def _tile_bytes(loads: Iterable[Load], side: int) -> int:
    """Bytes of shared memory for one padded tile of each load."""
    return sum(ITEM_BYTES[load.dtype] for load in loads) * side * (side + 1)


def find_turned(kernel: MapKernel, space: Space) -> Turned | None:
    """The transposed operands of a kernel, all contiguous along the same dimension; None if there are none or if a
    result is not contiguous.

    If operands lie along several dimensions, the one with the most operands counts. Operands that do not fit shared
    memory are left out, and then read in place."""
    if len(space.sizes) < 2 or any(space.stride_of(store.view) != 1 for store in kernel.stores):
        return None
    found: dict[int, list[Load]] = {}
    for leaf in body_leaves(kernel.stores):
        strides = space.where[leaf.view].strides
        if isinstance(leaf, Load) and abs(strides[-1]) >= _SHORTEST and 1 in strides[:-1]:
            dim = strides.index(1)
            if min(space.sizes[dim], space.sizes[-1]) >= _SHORTEST:
                found.setdefault(dim, []).append(leaf)
    if not found:
        return None
    dim = max(found, key=lambda dim: len(found[dim]))
    loads: list[Load] = []
    for load in found[dim]:  # further ones are read in place
        if _tile_bytes([*loads, load], _SIDES[0]) <= _STATIC_BYTES:
            loads.append(load)
    return Turned(dim, tuple(loads))


def print_turned(kernel: MapKernel, plan: Plan, space: Space, turned: Turned, side: int) -> tuple[str, launches.Launch]:
    """(CUDA text, launch) of the kernel with tiles of `side` by `side` elements."""
    rows, columns = space.sizes[turned.dim], space.sizes[-1]
    row, column = space.names[turned.dim], space.names[-1]
    declared, copies = [], []
    known: Known = []
    for number, load in enumerate(turned.loads):
        declared.append(f"__shared__ {element_type(load.dtype)} tile{number}[{side}][{side + 1}];")
        copies.append(f"tile{number}[c][r] = b_{load.buffer}[{space.offset(load.view)}];")
        known.append((load, element_load(f"tile{number}[c][r]", load.dtype)))
    body = make_emitter(space, known, {})
    body.store_all(kernel.stores, space.offset, plan.buffers)
    outer = [dim for dim in range(len(space.sizes) - 1) if dim != turned.dim]
    tiles = [*(space.sizes[dim] for dim in outer), math.ceil(rows / side), math.ceil(columns / side)]
    names = [*(space.names[dim] for dim in outer), "row_tile", "column_tile"]
    text, arguments = signature_of(plan, body_leaves(kernel.stores), kernel.stores)
    name = symbol_of(kernel)
    source = _KERNEL.format(
        threads=_THREADS, warps=_THREADS // 32, name=name, parameters=text, index=space.index, side=side,
        declared=indent(declared), position=indent(decompose("block", tiles, names, space.index)),
        row=row, column=column, rows=rows, columns=columns,
        copies=indent(copies, 4), compute=indent(body.lines, 4),
    )  # fmt: skip
    return source, launches.Launch(name, (math.prod(tiles), 1, 1), (_THREADS, 1, 1), tuple(arguments))
