"""Tensor-core products: which precisions a kernel may take, and which tiles are legal and fill the device best."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda.contractions.gemm_tiles import SPLITS
from foundry.knowledge.library.cuda.launches import max_shared_bytes
from foundry.knowledge.library.cuda.space import tunable
from foundry.knowledge.library.ir.kernels import GemmKernel, Tunable
from foundry.knowledge.opgraph import DType

IEEE = "ieee"
PRECISION = "precision"
_TYPES = {"tf32": "Tf32", "tf32x3": "Tf32x3", "float16": "Float16", "bfloat16": "Bfloat16"}  # those of mma.cuh
_PER_WORD = {"tf32": 1, "tf32x3": 1, "float16": 2, "bfloat16": 2}
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_m": (32, 64, 128, 256),
    "tile_n": (32, 64, 128, 256),
    "tile_k": (16, 32, 64),
    "warp_m": (16, 32, 64),
    "warp_n": (32, 64),
    "stages": (1, 2),
    "splits": SPLITS,
}
_MEANING = {
    "tile_m": ("tile", "rows of a block's tile: larger reads b less often, smaller fills more multiprocessors"),
    "tile_n": ("tile", "columns of a block's tile: larger reads a less often"),
    "tile_k": ("memory", "depth of a tile: fewer barriers, more registers and shared memory"),
    "warp_m": ("tile", "rows a warp adds up: more products per read of shared memory, more registers"),
    "warp_n": ("tile", "columns a warp adds up"),
    "stages": ("memory", "2: the next tile is stored while the present one is multiplied, one barrier a step"),
    "splits": ("algorithm", "parts of k computed by different blocks and added by a second launch"),
}
_PRECISION_MEANING = (
    "arithmetic of the product: ieee on the ordinary units; tf32 on tensor cores with 11 significant bits; tf32x3 on "
    "tensor cores with three products, as accurate as float32"
)


def precisions(dtype: DType, arch: str, *, ieee_only: bool) -> tuple[str, ...]:
    """What a product of this dtype may be computed in, the default first. Tensor cores with TF32 and bfloat16 begin
    with compute capability 8.0."""
    has_mma = arch.startswith("sm_") and int(arch.removeprefix("sm_").rstrip("af")) >= 80
    if not has_mma or dtype == "float64":
        return (IEEE,)
    if dtype in ("float16", "bfloat16"):
        return (dtype, IEEE)
    return (IEEE,) if ieee_only else ("tf32", "tf32x3", IEEE)


@dataclass(frozen=True)
class MmaTiling:
    """A block's tile and the part of it that each of its warps adds up, in elements."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 16
    warp_m: int = 64
    warp_n: int = 64
    stages: int = 2
    splits: int = 1
    precision: str = "tf32"

    @property
    def type_name(self) -> str:
        """The precision's name in mma.cuh."""
        return _TYPES[self.precision]

    @property
    def is_tf32(self) -> bool:
        return self.precision.startswith("tf32")

    @property
    def threads(self) -> int:
        return (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n) * 32

    def operand_bytes(self, out: int, *, along_k: bool) -> int:
        """Shared memory of one operand's tile, as `mma::Operand` pads it."""
        words = self.tile_k // _PER_WORD[self.precision]
        return 4 * (out * (words + 4) if along_k else words * (out + 8))

    def shared_bytes(self, a_along_k: bool, b_along_k: bool) -> int:
        tile = self.operand_bytes(self.tile_m, along_k=a_along_k) + self.operand_bytes(self.tile_n, along_k=b_along_k)
        return self.stages * tile

    def registers(self, *, scalar: bool) -> int:
        """Registers of a thread, as estimated: sums (twice where they are drained), fragments, the next tiles on
        their way with an address each where they are gathered, and what addresses and loops need."""
        sums = self.warp_m * self.warp_n // 32
        fragments = (self.warp_m // 16) * 4 + (self.warp_n // 8) * 2
        held = self.tile_k * (self.tile_m + self.tile_n) // self.threads
        if self.precision == "tf32x3":
            sums, fragments = 2 * sums, 2 * fragments
        return sums + fragments + held * (2 if scalar else 1) + 40

    def resident_blocks(self, *, scalar: bool) -> int:
        """Blocks of a multiprocessor that the compiler should leave registers for."""
        return max(1, min(4, 65536 // (self.threads * min(255, self.registers(scalar=scalar)))))

    def legal(self, arch: str, *, scalar: bool) -> bool:
        """Whole warps, at least one and at most 16 a block; registers and shared memory that a block may have."""
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n or not 32 <= self.threads <= 512:
            return False
        if self.registers(scalar=scalar) > min(255, 65536 // self.threads):
            return False
        return self.shared_bytes(True, True) <= max_shared_bytes(arch)


# (tile_m, tile_n, warp_m, warp_n) and the share of the arithmetic rate that such a tile reaches by itself.
_SHAPES: tuple[tuple[int, int, int, int, float], ...] = (
    (128, 128, 64, 64, 1.0),
    (128, 128, 64, 32, 0.9),
    (128, 64, 64, 32, 0.8),
    (64, 128, 32, 64, 0.8),
    (64, 64, 32, 32, 0.6),
    (32, 128, 32, 32, 0.5),
    (32, 64, 16, 32, 0.4),
    (32, 32, 16, 32, 0.3),
)


def _default(kernel: GemmKernel, precision: str, device: Device, *, scalar: bool) -> MmaTiling:
    """The tiling with the least estimated time: waves of tiles, each at its own rate, plus the traffic of a split."""
    batch = math.prod(kernel.batch)
    best: tuple[float, MmaTiling] | None = None
    deep = 32 if _PER_WORD[precision] == 2 else 16
    for tile_m, tile_n, warp_m, warp_n, rate in _SHAPES:
        for splits in SPLITS:
            depth = math.ceil(kernel.k / splits)
            if splits > 1 and depth < 256:
                break
            tiling = MmaTiling(tile_m, tile_n, deep, warp_m, warp_n, 2, splits, precision)
            if not tiling.legal(device.arch, scalar=scalar):
                continue
            tiles = batch * math.ceil(kernel.m / tile_m) * math.ceil(kernel.n / tile_n) * splits
            work = math.ceil(tiles / device.cores) * tile_m * tile_n * depth / rate
            # A partial sum is written and read; the products of a tile are about ten times faster than on FP32 units.
            moved = (600.0 * batch * kernel.m * kernel.n * splits / device.cores + 2e6) if splits > 1 else 0.0
            if best is None or work + moved < best[0]:
                best = (work + moved, tiling)
    return best[1] if best else MmaTiling(64, 64, deep, 32, 32, 2, 1, precision)


def choose_mma(
    kernel: GemmKernel, precision: str, device: Device, choices: dict[str, Choice], *, scalar: bool
) -> tuple[MmaTiling, tuple[Tunable, ...]]:
    """The chosen tiling, kept legal, and its tunables: for each, the values legal beside the others' present ones.

    `scalar`: an operand is gathered element by element."""
    default = _default(kernel, precision, device, scalar=scalar)
    wanted = {name: int(value) for name, value in choices.items() if value in _VALUES.get(name, ())}
    tiling = replace(default, **wanted)  # type: ignore[arg-type]
    if not tiling.legal(device.arch, scalar=scalar) or tiling.splits * tiling.tile_k > max(kernel.k, tiling.tile_k):
        tiling = default
    tunables = []
    for name, values in _VALUES.items():
        legal = [v for v in values if replace(tiling, **{name: v}).legal(device.arch, scalar=scalar)]  # type: ignore[arg-type]
        if name == "splits":
            legal = [v for v in legal if v == 1 or kernel.k // v >= 4 * tiling.tile_k]
        if getattr(tiling, name) not in legal:
            legal.append(getattr(tiling, name))
        aspect, meaning = _MEANING[name]
        tunables.append(tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)


def precision_tunable(values: tuple[str, ...]) -> tuple[Tunable, ...]:
    """The choice among precisions, where there is one."""
    return (tunable(PRECISION, values, values[0], PRECISION, _PRECISION_MEANING),) if len(values) > 1 else ()
