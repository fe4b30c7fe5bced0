"""Scans in CUDA: one block a row with a carry from tile to tile, or one thread a row where rows lie side by side.

The text of the row form is `scan.cu`; `_COLUMN` is the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda import launches
from foundry.knowledge.library.cuda.dialect import CUDA_DIALECT
from foundry.knowledge.library.cuda.launches import Launch
from foundry.knowledge.library.cuda.rows.scan_space import ScanSpace
from foundry.knowledge.library.cuda.rows.scan_tiles import print_look_back, print_tiles
from foundry.knowledge.library.cuda.space import (
    Known,
    buffers_of,
    element_load,
    emitter,
    identifier,
    indent,
    leaves,
    load_plan,
    number,
    parameters,
    pick,
    tunable,
    vector_type,
)
from foundry.knowledge.library.file.assemble import fill
from foundry.knowledge.library.file.texts import read_library_text
from foundry.knowledge.library.ir.kernels import Load, Plan, PrintedKernel, ScanKernel, Tunable
from foundry.knowledge.opgraph import ITEM_BYTES

THREADS = (32, 64, 128, 256, 512, 1024)
COLUMN_THREADS = (32, 64, 128, 256)
PATHS = ("walk", "tiles", "look_back")
ITEMS = (1, 2, 4, 8)

_COLUMN = """\
// Running @OP@ down columns that lie side by side: one thread a column, neighbours read together.
extern "C" __global__ void __launch_bounds__(@THREADS@) @NAME@(@PARAMETERS@) {
    typedef @TYPE@ T;
    const auto combine = [](T x, T y) { return @COMBINE@; };
    const int row = (int)(blockIdx.x * @THREADS@ + threadIdx.x);
    if (row >= @ROWS@) return;
@ROW@
    T running = @IDENTITY@;
#pragma unroll 8
    for (@INDEX@ first = 0; first < @LENGTH@; ++first) {
        constexpr int j = 0;
@STEP@
    }
}
"""


class _Scan:
    def __init__(self, scan: ScanSpace, device: Device, choices: dict[str, Choice], first: tuple[Tunable, ...]) -> None:
        self.scan, self.kernel, self.plan = scan, scan.kernel, scan.plan
        self.type, self.length, self.rows = scan.type, scan.length, scan.rows
        self.found, self.space = scan.found, scan.space
        self.column = scan.is_column
        self.tunables = first
        self._choose(device, choices)

    def _choose(self, device: Device, choices: dict[str, Choice]) -> None:
        if self.column:
            self.items, self.vector = 1, 1
            default = 64 if self.rows < device.cores * 256 else 128
            self.threads = number(choices, "threads", COLUMN_THREADS, default)
            self.tunables += (tunable("threads", COLUMN_THREADS, default, "parallel", "columns of a block"),)
            return
        self.items = number(choices, "items", ITEMS, 4)
        widest = 16 // min(ITEM_BYTES[leaf.dtype] for leaf in self.found if isinstance(leaf, Load))
        stores = [store.view for store in self.kernel.stores]
        fits = not self.kernel.reverse and self.items <= max(widest, 4)
        self.vector = self.items if fits and all(self.space.aligned(view, self.items) for view in stores) else 1
        wanted = math.ceil(self.length / self.items)
        default = min([size for size in THREADS if size >= min(wanted, 256)], default=256)
        self.threads = number(choices, "threads", THREADS, default)
        self.tunables += (
            tunable("threads", THREADS, default, "parallel", "threads of a block, which walks one row"),
            tunable("items", ITEMS, 4, "vector", "neighbours one thread scans by itself"),
        )

    def _element(self) -> str:
        return "first" if self.items == 1 else "first + j"

    def _guard(self, body: Sequence[str]) -> list[str]:
        if self.length % self.items == 0:
            inside = list(body)
        else:
            inside = [f"if (first + j < {self.length}) {{", *body, "}"]
        return ["#pragma unroll", f"for (int j = 0; j < {self.items}; ++j) {{", *inside, "}"]

    def _load(self) -> list[str]:
        known: Known = []
        lines: list[str] = []
        if self.vector > 1:
            start = self.space.with_inner("first")
            for i, leaf in enumerate(load_plan(self.space, leaves([self.kernel.value]), self.vector).vectors):
                source = f"load_vec<{self.vector}>(b_{leaf.buffer} + {start.offset(leaf.view)})"
                lines.append(f"const {vector_type(leaf.dtype, self.vector)} v{i} = {source};")
                known.append((leaf, element_load(f"v{i}.at[j]", leaf.dtype)))
        body = emitter(self.scan.at(self._element()), known, {})
        body.lines.append(f"x[j] = ({self.type})({body.value(self.kernel.value)});")
        return [*lines, *self._guard(body.lines)]

    def _stores(self, accumulated: str) -> list[str]:
        body = emitter(self.scan.at(self._element()), [], {"acc": "acc"}, "s")
        body.lines.append(f"const {self.type} acc = {accumulated};")
        body.reserve(store.value for store in self.kernel.stores)
        before: list[str] = []
        after: list[str] = []
        start = self.space.with_inner("first")
        for i, store in enumerate(self.kernel.stores):
            dtype = self.plan.buffers[store.buffer].dtype
            if self.vector > 1:
                before.append(f"{vector_type(dtype, self.vector)} out{i};")
                body.lines.append(f"out{i}.at[j] = {CUDA_DIALECT.store(body.value(store.value), dtype)};")
                after.append(f"store_vec<{self.vector}>(b_{store.buffer} + {start.offset(store.view)}, out{i});")
            else:
                body.store(store, self.scan.at(self._element()).offset, dtype)
        if self.column:
            return body.lines
        return [*before, *self._guard(body.lines), *after]

    def _column_step(self) -> list[str]:
        body = emitter(self.scan.at("first"), [], {})
        next_value = f"const T next = combine(running, ({self.type})({body.value(self.kernel.value)}));"
        accumulated = "running" if self.kernel.exclusive else "next"
        return [*body.lines, next_value, *self._stores(accumulated), "running = next;"]

    def print(self) -> PrintedKernel:
        kernel = self.kernel
        name = launches.KERNEL_PREFIX + identifier(kernel.name)
        reads, writes = buffers_of(self.found, kernel.stores)
        signature, arguments = parameters(self.plan, reads, writes)
        values = self.scan.holes() | {"NAME": name, "PARAMETERS": signature, "THREADS": self.threads}
        if self.column:
            values |= {"STEP": indent(self._column_step(), 2)}
            blocks = math.ceil(self.rows / self.threads)
            template = _COLUMN
        else:
            accumulated = "combine(before, x[j])"
            if kernel.exclusive:
                accumulated = "j == 0 ? before : combine(before, x[j == 0 ? 0 : j - 1])"
            values["ITEMS"] = self.items
            values |= {"LOAD": indent(self._load(), 3), "STORE": indent(self._stores(accumulated), 3)}
            blocks = self.rows
            template = read_library_text("cuda/rows/scan.cu")
        source = fill(template, {key: str(value) for key, value in values.items()})
        launch = Launch(name, (blocks, 1, 1), (self.threads, 1, 1), tuple(arguments))
        chosen: dict[str, Choice] = (
            {"threads": self.threads} if self.column else {"path": "walk", "threads": self.threads, "items": self.items}
        )
        return PrintedKernel(
            functions=source,
            call=launches.encode([launch]),
            template="scan",
            choices=chosen,
            tunables=self.tunables,
            d_mem=1 if self.column or self.vector > 1 else 0,
            d_algo=1,
            d_sync=0 if self.column else 2,
        )


def print_scan(kernel: ScanKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a ScanKernel: along rows, or each thread a column where rows lie across memory.

    `choices` may hold, of which each way knows its own:
    - "path": "walk" (a block walks its row), "tiles" (so does a team that reads a tile ahead), "look_back" (each tile
      has a block)
    - "threads": of a block
    - "items": neighbours that one thread scans by itself ("walk")
    - "team": threads that share a row ("tiles")
    - "rounds": vectors that one thread holds of a tile
    A value that is not legal for this kernel gives way to the default.

    Raises CannotLower for more than 2^30 rows or elements in a row.
    """
    space = ScanSpace(kernel, plan)
    if space.is_column:
        return _Scan(space, device, choices, ()).print()
    path = str(pick(choices, "path", PATHS, "walk"))
    meaning = "walk: a block walks its row; tiles: it reads a tile ahead; look_back: each tile is a block"
    first = tunable("path", PATHS, "walk", "algorithm", meaning)
    if path == "tiles":
        return print_tiles(space, choices, first)
    if path == "look_back":
        return print_look_back(space, choices, first)
    return _Scan(space, device, choices, (first,)).print()
