"""Tile shapes of the CUDA matrix product: which are legal, and which fill the device best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.space import make_tunable
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES

SPLITS = (1, 2, 4, 8, 16, 32, 64)
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_m": (16, 32, 64, 128, 256),
    "tile_n": (32, 64, 128, 256),
    "tile_k": (8, 16, 32),
    "thread_m": (4, 8),
    "thread_n": (4, 8),
    "stages": (1, 2),
    "splits": SPLITS,
}
_MEANING = {
    "tile_m": ("tile", "rows of a block's tile: larger reads b less often, smaller fills more multiprocessors"),
    "tile_n": ("tile", "columns of a block's tile: larger reads a less often"),
    "tile_k": ("memory", "elements of k in a tile: fewer barriers, more shared memory"),
    "thread_m": ("tile", "rows a thread keeps in registers: more arithmetic per load, more registers"),
    "thread_n": ("tile", "columns a thread keeps in registers"),
    "stages": (
        "memory",
        "tiles in shared memory: with 2 the next is stored while one is multiplied, one barrier a step",
    ),
    "splits": ("algorithm", "parts of k computed by different blocks and added by a second launch"),
}


@dataclass(frozen=True)
class Tiling:
    """A block's tile of a product on the ordinary units: its sizes, the part of it that a thread adds up, and parts of
    k."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 16
    thread_m: int = 8
    thread_n: int = 8
    stages: int = 2
    splits: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.thread_m) * (self.tile_n // self.thread_n)

    def shared_bytes(self, item_bytes: int) -> int:
        """Shared memory of a block in bytes."""
        return self.stages * self.tile_k * (self.tile_m + 4 + self.tile_n + 4) * item_bytes

    def resident_blocks(self, item_bytes: int, *, scalar: bool) -> int:
        """Blocks of a multiprocessor that the compiler should leave registers for.

        A thread needs its sums and about 64 more; 128 more if operands are gathered (`scalar`), as every element has an
        address."""
        registers = ((128 if scalar else 64) + self.thread_m * self.thread_n) * item_bytes // 4
        return max(1, 65536 // (self.threads * registers))

    def is_legal(self, item_bytes: int, arch: str) -> bool:
        """True if warps are 4 x 8 threads, a block has at most 1024, and tiles fit shared memory and registers."""
        if (self.tile_m // self.thread_m) % 4 or (self.tile_n // self.thread_n) % 8 or self.threads > 1024:
            return False
        held = self.tile_k * (self.tile_m + self.tile_n) / self.threads + self.thread_m * self.thread_n
        if held * item_bytes / 4 > min(160, 65536 // self.threads - 32):
            return False
        return self.shared_bytes(item_bytes) <= max_shared_bytes(arch)


# Fraction of the arithmetic rate that a tile of this shape reaches by itself: small tiles wait for shared memory.
_CANDIDATES: tuple[tuple[Tiling, float], ...] = (
    (Tiling(128, 128, 16, 8, 8), 1.0),
    (Tiling(128, 64, 16, 8, 8), 0.85),
    (Tiling(64, 128, 16, 8, 8), 0.85),
    (Tiling(64, 64, 16, 4, 4), 0.6),
    (Tiling(32, 64, 16, 4, 4), 0.45),
    (Tiling(16, 64, 32, 4, 4), 0.3),
)


def default_tiling(kernel: GemmKernel, item_bytes: int, device: Device, *, scalar: bool) -> Tiling:
    """The tiling with the least estimated time: waves of tiles, each at its own rate, plus the traffic of a split.

    `scalar`: an operand is read element by element; shallower tiles then keep addresses in registers."""
    batch = math.prod(kernel.batch)
    best: tuple[float, Tiling] | None = None
    for tiling, rate in _CANDIDATES:
        for splits in SPLITS:
            depth = math.ceil(kernel.k / splits)
            if splits > 1 and depth < 128:
                break
            candidate = replace(tiling, splits=splits, tile_k=8 if scalar else tiling.tile_k)
            if not candidate.is_legal(item_bytes, device.arch):
                continue
            tiles = batch * math.ceil(kernel.m / tiling.tile_m) * math.ceil(kernel.n / tiling.tile_n) * splits
            work = math.ceil(tiles / device.cores) * tiling.tile_m * tiling.tile_n * depth / rate
            # A partial sum is written and read: about 60 multiply-adds' time an element spread over the device.
            moved = (60.0 * batch * kernel.m * kernel.n * splits / device.cores + 2e5) if splits > 1 else 0.0
            if best is None or work + moved < best[0]:
                best = (work + moved, candidate)
    return best[1] if best else Tiling(64, 64, 8, 4, 4)


def choose_ordinary(
    kernel: GemmKernel, device: Device, choices: dict[str, Choice], *, scalar: bool
) -> tuple[Tiling, tuple[Tunable, ...]]:
    """(tiling, its tunables) for a product on the ordinary units. Choices that are not legal together give way to the
    default tiling. A tunable offers the values that are legal beside the others' present ones."""
    item_bytes = 8 if kernel.dtype == "float64" else ITEM_BYTES["float32"]
    default = default_tiling(kernel, item_bytes, device, scalar=scalar)
    wanted = {name: value for name, value in choices.items() if value in _VALUES.get(name, ())}
    tiling = replace(default, **{name: int(value) for name, value in wanted.items()})
    if not tiling.is_legal(item_bytes, device.arch) or tiling.splits * tiling.tile_k > max(kernel.k, tiling.tile_k):
        tiling = default
    tunables = []
    for name, values in _VALUES.items():
        legal = [v for v in values if replace(tiling, **{name: v}).is_legal(item_bytes, device.arch)]
        if name == "splits":
            legal = [v for v in legal if v == 1 or kernel.k // v >= 4 * tiling.tile_k]
        aspect, meaning = _MEANING[name]
        if getattr(tiling, name) not in legal:
            legal.append(getattr(tiling, name))
        tunables.append(make_tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)
