"""Pointwise kernels for the CPU: one pass over merged dimensions, vector blocks, optionally streamed past the cache.

A transposed operand (contiguous along another dimension than the output) is read through square tiles, so that every
cache line is fetched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cpu_space import (
    Knobs,
    Known,
    Space,
    choose_threads,
    element,
    hoist,
    indent,
    invariants,
    item_bytes,
    loads_of,
    page_advice,
    parameters,
    register,
    traffic,
    vector_widths,
    views_of,
)
from foundry.knowledge.library.ir import Load, MapKernel, Plan, PrintedKernel, View
from foundry.knowledge.library.scalar import CPU_DIALECT, Emitter, loader
from foundry.knowledge.opgraph import ITEM_BYTES

_CHUNKS = (2048, 8192, 32768, 131072)


@dataclass(frozen=True)
class _Shape:
    """The decisions of one printing."""

    lanes: int  # points of one vector block
    simd: str  # the pragma of its loop
    streamed: bool
    chunk: int  # points of the inner dimension a task covers
    schedule: str
    threads: str
    tile: int  # 0: no tiles


def print_map(kernel: MapKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ for a MapKernel; see the module's docstring for the forms."""
    values = [store.value for store in kernel.stores]
    space = Space.merged(kernel.shape, [*views_of(values), *[store.view for store in kernel.stores]])
    knobs = Knobs(choices)
    shape = _decide(kernel, plan, device, space, knobs)
    advice, labels = page_advice(knobs, kernel.stores, plan)
    declared, passed = parameters(values, kernel.stores, plan)
    body = _Body(kernel, plan, space, shape)
    head = (
        f"// {kernel.name}: {' x '.join(map(str, kernel.shape)) or 'one'} points as {' x '.join(map(str, space.sizes))}"
    )
    text = f"{head}\nstatic void {kernel.name}({declared}) {{\n{body.text()}\n}}\n"
    vectorised = max(space.strides(store.view)[-1] for store in kernel.stores) <= 1
    return PrintedKernel(
        functions=text,
        call="\n".join([*advice, f"{kernel.name}({passed});"]),
        template="map",
        choices=knobs.values,
        tunables=tuple(knobs.tunables),
        d_mem=2 if shape.tile else 1 if vectorised else 0,
        d_algo=1 if len(kernel.ops) > 1 else 0,
        d_sync=0,
        labels=labels,
    )


def _decide(kernel: MapKernel, plan: Plan, device: Device, space: Space, knobs: Knobs) -> _Shape:
    values = [store.value for store in kernel.stores]
    inner = space.sizes[-1]
    width = knobs.number(
        "vector",
        vector_widths(device),
        vector_widths(device)[0],
        "vector",
        "bytes of a register; wider may lower the clock",
    )
    per_vector = width // item_bytes(values, kernel.stores, plan)
    fits = [unroll for unroll in (1, 2, 4, 8) if unroll * per_vector <= max(inner, per_vector)]
    unroll = knobs.number(
        "unroll", fits, min(4, fits[-1]), "vector", "vectors in flight; more hide latency, cost registers"
    )
    written = sum(plan.buffers[s.buffer].numel * ITEM_BYTES[plan.buffers[s.buffer].dtype] for s in kernel.stores)
    contiguous = all(space.strides(store.view)[-1] == 1 for store in kernel.stores)
    streamed = knobs.number(
        "stream",
        (0, 1) if contiguous and inner >= per_vector else (0,),
        int(contiguous and inner >= per_vector and written > device.cache_bytes // 2),
        "memory",
        "1 writes past the caches: saves reading the lines first, loses the output for a later kernel",
    )
    tile = 0
    if _transposed(kernel, space):
        tile = knobs.number(
            "tile", (0, 16, 32, 64), 32, "tile", "side of the tiles that turn transposed operands; 0 none"
        )
    # beyond the inner dimension all chunks are the same
    chunks = [size for size in _CHUNKS if size < inner]
    chunks.append(next((size for size in _CHUNKS if size >= inner), _CHUNKS[-1]))
    meaning = "points of one task; small balances, large saves overhead"
    chunk = knobs.number("chunk", chunks, 8192 if 8192 in chunks else chunks[-1], "parallel", meaning)
    schedule = knobs.text("schedule", ("static", "dynamic"), "static", "parallel", "who takes which task")
    threads = choose_threads(knobs, device, traffic(values, kernel.stores, plan))
    lanes = min(per_vector * unroll, tile) if tile else per_vector * unroll
    simd = "#pragma omp simd" if width == vector_widths(device)[0] else f"#pragma omp simd simdlen({per_vector})"
    return _Shape(lanes, simd, bool(streamed), chunk, schedule, threads, tile)


def _transposed(kernel: MapKernel, space: Space) -> list[tuple[Load, int]]:
    """Loads whose unit stride is along another dimension than the last, where the output's is the last."""
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
    """The statements of one kernel."""

    def __init__(self, kernel: MapKernel, plan: Plan, space: Space, shape: _Shape) -> None:
        self._kernel, self._plan, self._space, self._shape = kernel, plan, space, shape
        self._indices = [f"i{dim}" for dim in range(len(space.sizes))]
        self._types = [element(plan, store.buffer) for store in kernel.stores]
        self._turned = _transposed(kernel, space) if shape.tile else []

    def text(self) -> str:
        return self._tiled() if self._turned else self._rows()

    def _point(self, known: Known) -> tuple[list[str], list[str]]:
        """(hoisted statements, the lambda that computes one point into references)."""
        kernel, space = self._kernel, self._space
        values = [store.value for store in kernel.stores]
        offset = space.offset(self._indices)

        def moving(view: View) -> bool:
            return space.strides(view)[-1] != 0

        hoisted, known = hoist(invariants(values, moving), offset, {}, known, "h")
        emitter = Emitter(CPU_DIALECT, loader(CPU_DIALECT, offset), {}, known=known)
        emitter.reserve(values)
        for slot, store in enumerate(kernel.stores):
            dtype = self._plan.buffers[store.buffer].dtype
            emitter.lines.append(f"y{slot} = {CPU_DIALECT.store(emitter.value(store.value), dtype)};")
        outs = ", ".join(f"{kind}& y{slot}" for slot, kind in enumerate(self._types))
        point = [
            f"const auto point = [&](int64_t {self._indices[-1]}, {outs}) __attribute__((always_inline)) {{",
            indent(emitter.lines, 1),
            "};",
        ]
        return hoisted, point

    def _blocks(self, begin: str, end: str, exact: bool) -> list[str]:
        """Vector blocks from `begin` to `end`; `exact` when the length is a multiple of the block."""
        lanes, offset = self._shape.lanes, self._space.offset([*self._indices[:-1], "i"])
        plain = [f"b_{s.buffer}[{self._at(s.view, 'i + l')}]" for s in self._kernel.stores]
        lines = [f"int64_t i = {begin};", f"for (; i + {lanes} <= {end}; i += {lanes}) {{"]
        if self._shape.streamed:
            lines += [f"  alignas(64) {kind} y{slot}[{lanes}];" for slot, kind in enumerate(self._types)]
            lines += [self._simd(lanes, ", ".join(f"y{slot}[l]" for slot in range(len(self._types))))]
            lines += [
                f"  stream(b_{s.buffer} + {_term(offset(s.view))}, y{slot});"
                for slot, s in enumerate(self._kernel.stores)
            ]
        else:
            lines += [self._simd(lanes, ", ".join(plain))]
        lines.append("}")
        if not exact:
            lines += [f"for (int64_t l = 0; l < {end} - i; ++l) point(i + l, {', '.join(plain)});"]
        return lines

    def _simd(self, lanes: int, outs: str) -> str:
        return f"  {self._shape.simd}\n  for (int l = 0; l < {lanes}; ++l) point(i + l, {outs});"

    def _at(self, view: View, inner: str) -> str:
        return self._space.offset([*self._indices[:-1], f"({inner})"])(view)

    def _rows(self) -> str:
        """Outer dimensions as nested loops, the inner one in chunks."""
        sizes, shape = self._space.sizes, self._shape
        inner = sizes[-1]
        chunks = _ceil(inner, shape.chunk)
        chunk = inner if chunks == 1 else _ceil(_ceil(inner, chunks), shape.lanes) * shape.lanes
        exact = inner % shape.lanes == 0
        hoisted, point = self._point([])
        if chunks == 1:
            work = [*hoisted, *point, *self._blocks("0", str(inner), exact)]
        else:
            whole = inner % chunk == 0
            end = f"chunk + {chunk}" if whole else f"(chunk + {chunk} < {inner} ? chunk + {chunk} : {inner})"
            work = [*hoisted, *point, f"const int64_t end = {end};", *self._blocks("chunk", "end", exact)]
        loops = list(zip(self._indices[:-1], sizes[:-1], strict=True))
        tail = [] if chunks == 1 else [f"for (int64_t chunk = 0; chunk < {inner}; chunk += {chunk})"]
        heads = [f"for (int64_t {name} = 0; {name} < {size}; {name} += 1)" for name, size in loops] + tail
        return self._parallel(heads or ["for (int64_t once = 0; once < 1; ++once)"], work)

    def _parallel(self, heads: Sequence[str], work: Sequence[str], setup: Sequence[str] = ()) -> str:
        shape = self._shape
        collapse = f" collapse({len(heads)})" if len(heads) > 1 else ""
        lines = [
            f"#pragma omp parallel{shape.threads}",
            "{",
            *[f"  {line}" for line in setup],
            f"  #pragma omp for{collapse} schedule({shape.schedule}) nowait",
            *[f"  {head}" for head in heads[:-1]],
            f"  {heads[-1]} {{",
            indent(work, 2),
            "  }",
            *(["  stream_fence();"] if shape.streamed else []),
            "}",
        ]
        return indent(lines, 1)

    def _tiled(self) -> str:
        """Square tiles over the inner dimension and the one along which the operands are contiguous."""
        sizes, side = self._space.sizes, self._shape.tile
        dim = self._turned[0][1]
        rows, columns = sizes[dim], sizes[-1]
        row, column = self._indices[dim], self._indices[-1]
        known: Known = []
        setup, copies = [], []
        for number, (load, at) in enumerate(self._turned):
            if at != dim:
                continue
            name, kind = f"tile{number}", register(load.dtype)
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
        hoisted, point = self._point(known)
        lanes = self._shape.lanes
        work = [
            f"const int64_t row1 = row0 + {side} < {rows} ? row0 + {side} : {rows};",
            f"const int64_t column1 = column0 + {side} < {columns} ? column0 + {side} : {columns};",
            *copies,
            f"for (int64_t {row} = row0; {row} < row1; {row} += 1) {{",
            indent(
                [*hoisted, *point, *self._blocks("column0", "column1", columns % side == 0 and side % lanes == 0)], 1
            ),
            "}",
        ]
        heads = [
            f"for (int64_t {self._indices[d]} = 0; {self._indices[d]} < {sizes[d]}; ++{self._indices[d]})"
            for d in range(len(sizes) - 1)
            if d != dim
        ]
        heads += [
            f"for (int64_t row0 = 0; row0 < {rows}; row0 += {side})",
            f"for (int64_t column0 = 0; column0 < {columns}; column0 += {side})",
        ]
        return self._parallel(heads, work, setup)


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def _term(offset: str) -> str:
    return f"({offset})" if "-" in offset else offset
