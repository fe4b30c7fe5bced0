"""Pointwise kernels for the CPU: one pass over merged dimensions, vector blocks, optionally streamed past the cache.

There are three forms. Rows walk along the innermost dimension. A transposed operand (contiguous along another dimension
than the output) is read through square tiles, so that every cache line is fetched once. Where the innermost dimension
is too short for vectors, or operands repeat or interleave, blocks (`map_blocks`) put the operands into order first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.loops import Function, loop_head, print_function, share_in_team
from foundry.knowledge.compiler.cpu.map_blocks import Block, BlockBody, find_block
from foundry.knowledge.compiler.cpu.map_point import Points, Vectors, power_of_two_below
from foundry.knowledge.compiler.cpu.map_staged import find_staging
from foundry.knowledge.compiler.cpu.space import (
    Known,
    Space,
    choose_threads,
    indent,
    item_bytes,
    register_type,
    traffic_bytes,
    vector_widths,
)
from foundry.knowledge.compiler.ir.arithmetic import ceil_divide, round_up
from foundry.knowledge.compiler.ir.kernels import Load, MapKernel, Plan, PrintedKernel, View
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT, loader
from foundry.knowledge.compiler.ir.views import loads_of, views_of
from foundry.knowledge.compiler.ir.weight import parts_of
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES

_CHUNKS = (2048, 8192, 32768, 131072)
_SHORT_CHUNKS = (128, 512)  # points of a task of a long body
# Operations, loads and constants of a point. With more, several vectors in flight cost registers and gain nothing.
# Loops of one vector stayed scalar where such a point reads with gaps: 16 steps of a simulation took 3.2 ms, as one
# loop 0.30 ms.
_LONG = 150
_BLOCKS = (512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class _Shape:
    """The form of one map kernel. A point is one element of the iteration space."""

    vectors: Vectors
    chunk: int  # points of the inner dimension that one task computes
    schedule: str  # OpenMP's: "static" or "dynamic"
    threads: str  # OpenMP clause, "" for all threads
    tile: int = 0  # side of a square tile in points, 0: no tiles
    block: Block | None = None  # None: no blocks
    points: int = 0  # points of a block, 0: no blocks


def print_map(kernel: MapKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ of a MapKernel, in one of the forms of the module's docstring.

    `choices` may hold:
    - "vector": bytes of a vector register (16, 32, 64)
    - "unroll": vectors in flight (1, 2, 4, 8)
    - "stream": 1 stores past the caches, 0 through them
    - "chunk": points of one task
    - "tile": side in points of the tiles that transpose operands (16, 32, 64; 0: none)
    - "form": "rows" or "blocks"
    - "block": points of a block
    - "schedule": "static" or "dynamic"
    - "threads": threads of the kernel
    - "pages": "default" or "huge" pages behind large outputs
    A value that is not legal for this kernel gives way to the default.
    """
    values = [store.value for store in kernel.stores]
    space = Space.merge(kernel.shape, [*views_of(values), *[store.view for store in kernel.stores]])
    tuning = Tuning(choices)
    space, shape = _choose_shape(kernel, plan, device, space, tuning)
    body = _Body(kernel, plan, space, shape)
    about = f"{' x '.join(map(str, kernel.shape)) or 'one'} points as {' x '.join(map(str, space.sizes))}"
    return print_function(
        Function(kernel.name, about, body.lines(), values, kernel.stores),
        plan,
        tuning,
        template="map",
    )


def _choose_shape(kernel: MapKernel, plan: Plan, device: Device, space: Space, tuning: Tuning) -> tuple[Space, _Shape]:
    """(space with its dimensions in the order of the loops, form of the kernel), by tunables that this declares in
    `tuning`."""
    values = [store.value for store in kernel.stores]
    width = tuning.number(
        "vector",
        vector_widths(device),
        vector_widths(device)[0],
        "vector",
        "bytes of a register; wider may lower the clock",
    )
    per_vector = width // item_bytes(values, kernel.stores, plan)
    turned = _transposed_loads(kernel, space)
    block = None if turned else _choose_block(kernel, space, per_vector, tuning)
    if block is None:
        space = _longest_inside(kernel, space, per_vector)
    run = math.prod(space.sizes[block.axis :]) if block else space.sizes[-1]
    contiguous = all(space.strides(store.view)[-1] == 1 for store in kernel.stores) and run >= per_vector
    vectors = _choose_vectors(
        kernel,
        plan,
        device,
        tuning=tuning,
        width=(width, per_vector),
        run=run if contiguous else 0,
        inner=space.sizes[-1],
    )
    tile, points = 0, 0
    if turned:
        meaning = "elements along a side of the tiles that turn transposed operands; 0 none"
        tile = tuning.number("tile", (0, 16, 32, 64), 32, "tile", meaning)
        vectors = replace(vectors, lanes=min(vectors.lanes, tile or vectors.lanes))
    if block:
        meaning = "points of a block: small ones stay near, large ones start less often"
        points = tuning.number("block", _BLOCKS, 2048, "tile", meaning)
    work, effort = traffic_bytes(values, kernel.stores, plan), parts_of(kernel)
    chunk = 0 if block else _choose_chunk(space.sizes[-1], math.prod(space.sizes), device, tuning, effort)
    schedule = tuning.text("schedule", ("static", "dynamic"), "static", "parallel", "who takes which task")
    threads = choose_threads(tuning, device, work * max(1, effort // 32))
    return space, _Shape(vectors, chunk, schedule, threads=threads, tile=tile, block=block, points=points)


def _choose_chunk(inner: int, points: int, device: Device, tuning: Tuning, effort: int) -> int:
    """Number of points in one task, by the tunable "chunk". `effort`: parts of a point's expression."""
    sizes = (*_SHORT_CHUNKS, *_CHUNKS) if effort > _LONG else _CHUNKS
    chunks = [size for size in sizes if size < inner]
    chunks.append(next((size for size in sizes if size >= inner), sizes[-1]))
    usual = 8192 if 8192 in chunks else chunks[-1]
    if effort > _LONG:
        usual = next((size for size in chunks if points <= 8 * device.cores * size), usual)
    return int(
        tuning.number("chunk", chunks, usual, "parallel", "points of one task; small balances, large saves overhead")
    )


def _choose_vectors(
    kernel: MapKernel, plan: Plan, device: Device, tuning: Tuning, width: tuple[int, int], run: int, inner: int
) -> Vectors:
    """The vectors of the inner loop, by the tunables "unroll" and "stream".

    `width`: (bytes, points) of a register. `run`: points that every store writes contiguously, 0 if they are fewer than
    a register holds. `inner`: points of the innermost dimension."""
    register_bytes, per_vector = width
    fits = [unroll for unroll in (1, 2, 4, 8) if unroll * per_vector <= max(run or inner, per_vector)]
    meaning = "vectors in flight; more hide latency, cost registers"
    unroll = tuning.number("unroll", fits, min(1 if parts_of(kernel) > _LONG else 4, fits[-1]), "vector", meaning)
    written = sum(plan.buffers[s.buffer].numel * ITEM_BYTES[plan.buffers[s.buffer].dtype] for s in kernel.stores)
    streamed = tuning.number(
        "stream",
        (0, 1) if run else (0,),
        int(run > 0 and written > device.cache_bytes // 2),
        "memory",
        "1 writes past the caches: saves reading the lines first, loses the output for a later kernel",
    )
    widest = register_bytes == vector_widths(device)[0]
    simd = "#pragma omp simd" if widest else f"#pragma omp simd simdlen({per_vector})"
    is_long = parts_of(kernel) > _LONG and not streamed
    return Vectors(per_vector * unroll, simd, bool(streamed), is_one_loop=is_long)


def _choose_block(kernel: MapKernel, space: Space, per_vector: int, tuning: Tuning) -> Block | None:
    """The blocks to cut the kernel into, by the tunable "form"; None for rows, or if blocks gain nothing."""
    block = find_block(kernel, space, per_vector)
    if block is None:
        return None
    meaning = "rows vectorise along the innermost dimension; blocks over several at once, operands put in order first"
    return block if tuning.text("form", ("rows", "blocks"), "blocks", "vector", meaning) == "blocks" else None


def _longest_inside(kernel: MapKernel, space: Space, per_vector: int) -> Space:
    """The space with a dimension of at least `per_vector` points innermost; unchanged if the last is so long, or none
    is.

    It takes the one with the smallest strides over all views."""
    views = [*views_of(store.value for store in kernel.stores), *(store.view for store in kernel.stores)]
    long = [dim for dim, size in enumerate(space.sizes) if size >= per_vector]
    if space.sizes[-1] >= per_vector or not long:
        return space
    inner = min(long, key=lambda dim: sum(abs(space.strides(view)[dim]) for view in views))
    order = [*(dim for dim in range(len(space.sizes)) if dim != inner), inner]
    return Space(tuple(space.sizes[dim] for dim in order), tuple(space.last[dim] for dim in order))


def _transposed_loads(kernel: MapKernel, space: Space) -> list[tuple[Load, int]]:
    """(load, dimension of its unit stride) of the loads that are contiguous along another dimension than the last.

    [] unless outputs are contiguous along the last one; both dimensions need 8 points."""
    if len(space.sizes) < 2 or any(space.strides(store.view)[-1] != 1 for store in kernel.stores):
        return []
    found = []
    for load in loads_of(store.value for store in kernel.stores):
        strides = space.strides(load.view)
        if strides[-1] > 1 and 1 in strides[:-1]:
            dim = strides.index(1)
            if space.sizes[dim] >= 8 and space.sizes[-1] >= 8:
                found.append((load, dim))
    return found


class _Body:
    """Prints the statements of one kernel's function."""

    def __init__(self, kernel: MapKernel, plan: Plan, space: Space, shape: _Shape) -> None:
        self._kernel, self._plan, self._space, self._shape = kernel, plan, space, shape
        self._indices = [f"i{dim}" for dim in range(len(space.sizes))]
        self._turned = _transposed_loads(kernel, space) if shape.tile else []
        staging = None
        if shape.vectors.is_one_loop and not shape.block and not self._turned:
            staging = find_staging(kernel, lambda view: space.strides(view)[-1])
        self._points = Points(kernel, plan, self._at, lambda view: space.strides(view)[-1] != 0, staging)

    def lines(self) -> list[str]:
        """C++ statements of the kernel's function, in the form that its shape has."""
        if self._shape.block:
            return self._blocks(self._shape.block)
        return self._tiled() if self._turned else self._rows()

    def _at(self, view: View, inner: str) -> str:
        """C text of a view's offset at the point whose innermost index is `inner`."""
        return self._space.offset([*self._indices[:-1], inner])(view)

    def _blocks(self, block: Block) -> list[str]:
        """C++ statements of the form "blocks"."""
        body = BlockBody(
            self._kernel, self._plan, self._space, block=block, vectors=self._shape.vectors, wanted=self._shape.points
        )
        work = body.work()
        return self._parallel(body.heads(), work, body.setup)

    def _rows(self) -> list[str]:
        """C++ statements with outer dimensions as nested loops, the inner one in chunks."""
        sizes, vectors = self._space.sizes, self._shape.vectors
        inner = sizes[-1]
        chunks = ceil_divide(inner, self._shape.chunk)
        chunk = inner if chunks == 1 else round_up(ceil_divide(inner, chunks), vectors.lanes)
        shortest = inner % chunk or chunk
        begin, end = ("0", str(inner)) if chunks == 1 else ("chunk", "end")
        hoisted, point = self._points.define([], self._indices[-1])
        work = [*hoisted, *point, *self._points.sweep(begin, end, vectors, shortest, inner % vectors.lanes == 0)]
        if chunks > 1:
            last = f"chunk + {chunk}"
            end = last if shortest == chunk else f"({last} < {inner} ? {last} : {inner})"
            work.insert(0, f"const int64_t end = {end};")
        loops = list(zip(self._indices[:-1], sizes[:-1], strict=True))
        tail = [] if chunks == 1 else [f"for (int64_t chunk = 0; chunk < {inner}; chunk += {chunk})"]
        return self._parallel([loop_head(name, size) for name, size in loops] + tail, work)

    def _parallel(self, heads: Sequence[str], work: Sequence[str], setup: Sequence[str] = ()) -> list[str]:
        """C++ statements: threads share the loops `heads` around `work`; each runs `setup` first."""
        shape = self._shape
        loops, fence = heads or [loop_head("once", 1)], shape.vectors.streamed
        return share_in_team(loops, work, shape.schedule, shape.threads, setup=setup, fence=fence)

    def _tiled(self) -> list[str]:
        """C++ statements with square tiles over the inner dimension and the one along which operands are contiguous."""
        sizes, side = self._space.sizes, self._shape.tile
        dim = self._turned[0][1]
        rows, columns = sizes[dim], sizes[-1]
        row, column = self._indices[dim], self._indices[-1]
        known: Known = []
        setup, copies = [], []
        for number, (load, at) in enumerate(self._turned):
            if at != dim:
                continue
            name, kind = f"tile{number}", register_type(load.dtype)
            setup.append(
                f"{kind} {name}[{side} * {side + 1}];  // {load.buffer}, turned; the odd pitch spreads L1 banks"
            )
            value = loader(CPU_DIALECT, self._space.offset(self._indices))(load)
            copies += [
                f"for (int64_t {column} = column0; {column} < column1; {column} += 1)",
                "  #pragma omp simd",
                f"  for (int64_t {row} = row0; {row} < row1; {row} += 1)",
                f"    {name}[({column} - column0) * {side + 1} + {row} - row0] = {value};",
            ]
            known.append((load, f"{name}[({column} - column0) * {side + 1} + {row} - row0]"))
        hoisted, point = self._points.define(known, column)
        # tiles of nearly equal size, so that none is narrower than a vector where the row is not
        across = ceil_divide(columns, side)
        vectors = self._shape.vectors
        vectors = replace(vectors, lanes=min(vectors.lanes, power_of_two_below(columns // across)))
        exact = columns % across == 0 and columns // across % vectors.lanes == 0
        sweep = self._points.sweep("column0", "column1", vectors, columns // across, exact)
        work = [
            f"const int64_t row1 = row0 + {side} < {rows} ? row0 + {side} : {rows};",
            f"const int64_t column0 = across * {columns} / {across}, column1 = (across + 1) * {columns} / {across};",
            *copies,
            f"for (int64_t {row} = row0; {row} < row1; {row} += 1) {{",
            indent([*hoisted, *point, *sweep], 1),
            "}",
        ]
        heads = [
            f"for (int64_t {self._indices[d]} = 0; {self._indices[d]} < {sizes[d]}; ++{self._indices[d]})"
            for d in range(len(sizes) - 1)
            if d != dim
        ]
        heads += [
            f"for (int64_t row0 = 0; row0 < {rows}; row0 += {side})",
            f"for (int64_t across = 0; across < {across}; ++across)",
        ]
        return self._parallel(heads, work, setup)
