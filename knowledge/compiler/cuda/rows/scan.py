"""Scans in CUDA: teams along rows, or one thread for each row where neighbouring rows are contiguous in memory
(columns)."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.launches import Launch, symbol_of
from foundry.knowledge.compiler.cuda.printed import print_launches
from foundry.knowledge.compiler.cuda.rows.scan_space import ScanSpace
from foundry.knowledge.compiler.cuda.rows.scan_tiles import print_look_back, print_tiles
from foundry.knowledge.compiler.cuda.space import (
    indent,
    make_emitter,
    signature_of,
)
from foundry.knowledge.compiler.file.assemble import fill
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel, ScanKernel
from foundry.knowledge.compiler.schedule.tuning import Tuning
from foundry.knowledge.device import Device

COLUMN_THREADS = (32, 64, 128, 256)
PATHS = ("tiles", "look_back")
_FEW_ROWS = 128  # rows; so few leave multiprocessors without work, or with one block that waits
_LONG_ROW = 16 * 1024  # elements

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
@STEP@
    }
}
"""


class _Columns:
    """Prints a scan of columns: one thread a column."""

    def __init__(self, scan: ScanSpace, device: Device, tuning: Tuning) -> None:
        self.scan, self.kernel, self.tuning = scan, scan.kernel, tuning
        usual = 64 if scan.rows < device.cores * 256 else 128
        self.threads = tuning.number("threads", COLUMN_THREADS, usual, "parallel", "columns of a block")

    def _step(self) -> list[str]:
        """C statements that take one element into the running total, and store it."""
        place = self.scan.at("first")
        body = make_emitter(place, [], {})
        next_value = f"const T next = combine(running, ({self.scan.type})({body.value(self.kernel.value)}));"
        stores = make_emitter(place, [], {"acc": "running" if self.kernel.exclusive else "next"}, "s")
        stores.store_all(self.kernel.stores, place.offset, self.scan.plan.buffers)
        return [*body.lines, next_value, *stores.lines, "running = next;"]

    def print(self) -> PrintedKernel:
        """The printed kernel, with one launch."""
        name = symbol_of(self.kernel)
        signature, arguments = signature_of(self.scan.plan, self.scan.found, self.kernel.stores)
        values = self.scan.holes() | {"NAME": name, "PARAMETERS": signature, "THREADS": self.threads}
        values["STEP"] = indent(self._step(), 2)
        grid = (math.ceil(self.scan.rows / self.threads), 1, 1)
        launch = Launch(name, grid, (self.threads, 1, 1), tuple(arguments))
        return print_launches(fill(_COLUMN, values), [launch], self.tuning, template="scan")


def print_scan(kernel: ScanKernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """CUDA of a ScanKernel: along rows, or one thread a column where rows are across memory.

    `choices` may hold (each path reads only those that concern it):
    - "path": "tiles" (a team walks its row and reads a tile ahead) or "look_back" (each tile has a block)
    - "threads": threads of a block
    - "team": threads that share a row ("tiles")
    - "rounds": vectors that one thread holds of a tile
    A value that is not legal for this kernel gives way to the default.

    Raises CannotLower for more than 2^30 rows or elements in a row."""
    space, tuning = ScanSpace(kernel, plan), Tuning(choices, declares_fixed=True)
    if space.is_column:
        return _Columns(space, device, tuning).print()
    few = space.rows <= _FEW_ROWS and space.length >= _LONG_ROW
    default = "look_back" if few else "tiles"
    meaning = "tiles: a team walks a row and reads a tile ahead; look_back: each tile is a block"
    path = tuning.text("path", PATHS, default, "algorithm", meaning)
    return print_look_back(space, tuning) if path == "look_back" else print_tiles(space, tuning)
