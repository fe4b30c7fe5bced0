"""Tensor-core products: the precisions and instructions that a kernel may take, and the tiles that are legal and fill
the device best.

There are two ways to multiply. `mma`: by warps, on every tensor core since compute capability 8.0, fragments read from
shared memory into registers. `wgmma`: by four warps on compute capability 9.0a, from shared memory and about twice as
fast."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.contractions.gemm_tiles import SPLITS
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.space import make_tunable
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import DType

IEEE = "ieee"
PRECISION = "precision"
PATH = "path"
HALF = "half"
HALF3 = "half3"
DRAINED = 4  # steps of three products between two moves of the sums out of the tensor cores
LABELS = {HALF: ("tf32:half",), HALF3: ("tf32:half3",), "tf32": ("tf32",), "tf32x3": ("tf32:x3",)}
GUESS = 6  # exponent of the scale that brings most rows and images into the range of 16 bits
PACKED = "packed"
# Name of each precision in *.cuh, and bytes of an element.
TYPES = {
    **{"tf32": "Tf32", "tf32x3": "Tf32x3", HALF: "Float16", HALF3: "Float16"},
    **{"float16": "Float16", "bfloat16": "Bfloat16"},
}
SIZES = {"tf32": 4, "tf32x3": 4, HALF: 2, HALF3: 2, "float16": 2, "bfloat16": 2}
_COMMON: dict[str, tuple[str, str]] = {
    "tile_m": ("tile", "rows of a block's tile: larger reads b less often, smaller fills more multiprocessors"),
    "tile_n": ("tile", "columns of a block's tile: larger reads a less often"),
    "tile_k": ("memory", "elements of k in a tile: fewer barriers, more registers and shared memory"),
    "splits": ("algorithm", "parts of k computed by different blocks and added by a second launch"),
}
_PRECISION_MEANING = (
    "arithmetic of the product: ieee on the ordinary units; tf32 on tensor cores with 11 significant bits; half as "
    "many bits at twice the rate, operands scaled to 16 bits; tf32x3 and half3 three products of these, as accurate as "
    "float32"
)
_PATH_MEANING = (
    "packed: operands are brought into tiles first; wgmma: four warps multiply from shared memory; mma: each warp "
    "multiplies from its registers"
)


@dataclass(frozen=True)
class Ways:
    """Facts of a kernel's operands that decide which code paths it may take.

    - `dtype`: dtype of the operands' values
    - `is_gathered`: an operand is gathered element by element; each element has an address
    - `packs`: operands may be brought into tiles by launches of their own; `packing_pays`: and that is faster
    - `suits_wgmma`: rows of shared memory, which wgmma wants along k, are filled along k; few tiles are mostly empty
    - `ieee_only`: no product of float32 may be in TF32"""

    dtype: DType
    is_gathered: bool
    suits_wgmma: bool
    ieee_only: bool
    packs: bool = False
    packing_pays: bool = False

    def precisions(self, arch: str) -> tuple[str, ...]:
        """The precisions that the product may be computed in, the default first."""
        if not has_tensor_cores(arch) or self.dtype == "float64":
            return (IEEE,)
        if self.dtype in ("float16", "bfloat16"):
            return (self.dtype, IEEE)
        if self.ieee_only:
            return (IEEE,)
        if not self.packs or not has_wgmma(arch):
            return ("tf32", "tf32x3", IEEE)
        return (HALF, HALF3, "tf32", IEEE) if self.packing_pays else ("tf32", "tf32x3", HALF, HALF3, IEEE)

    def paths(self, precision: str, arch: str) -> tuple[str, ...]:
        """The legal paths in this precision, the default first."""
        if precision in (HALF, HALF3):
            return (PACKED,)
        if not has_wgmma(arch) or precision == "tf32x3":
            return ("mma",)
        staged = ("wgmma", "mma") if self.suits_wgmma else ("mma", "wgmma")
        if not self.packs:
            return staged
        return (PACKED, *staged) if self.packing_pays else (*staged, PACKED)


def has_tensor_cores(arch: str) -> bool:
    """True if the device has tensor cores with TF32 and bfloat16 (compute capability 8.0 or later)."""
    return arch.startswith("sm_") and int(arch.removeprefix("sm_").rstrip("af")) >= 80


def has_wgmma(arch: str) -> bool:
    """True if the device has wgmma instructions (compute capability 9.0)."""
    return arch.rstrip("af") == "sm_90"


@dataclass(frozen=True)
class TensorTiling(ABC):
    """A block's tile of the result, in elements, and how its product is computed."""

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    splits: int
    precision: str

    path = ""
    text = ""  # the kernel compiler's text of the kernel
    arch_feature = ""  # suffix that the architecture's name needs

    @property
    def type_name(self) -> str:
        """The precision's name in the kernel compiler's texts."""
        return TYPES[self.precision]

    @property
    def is_tf32(self) -> bool:
        """True if elements are kept in TF32."""
        return self.precision.startswith("tf32")

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def store_columns(self) -> int:
        """Number of result columns that a warp holds."""

    @property
    @abstractmethod
    def holes(self) -> dict[str, int]:
        """Values for the template's holes besides the block's tile."""

    @abstractmethod
    def keep(self, which: str, vector: int, *, along_k: bool) -> str:
        """The C statement that writes `held_a[i]` (or b), a vector of `vector` elements, to shared memory. `along_k`:
        it runs along k."""

    @abstractmethod
    def shared_bytes(self, a_along_k: bool, b_along_k: bool) -> int:
        """Bytes of dynamic shared memory; each operand is contiguous along k or along the result's axis."""

    @abstractmethod
    def registers(self, *, scalar: bool) -> int:
        """Estimated registers of a thread. `scalar`: an operand is gathered; each element has an address."""

    def resident_blocks(self, *, scalar: bool) -> int:
        """Blocks of a multiprocessor that the compiler should leave registers for."""
        return max(1, min(4, 65536 // (self.threads * min(255, self.registers(scalar=scalar)))))

    def is_legal(self, arch: str, *, scalar: bool) -> bool:
        """True if a block has 1 to 16 warps and fits the registers and shared memory."""
        if not 32 <= self.threads <= 512 or self.registers(scalar=scalar) > min(255, 65536 // self.threads):
            return False
        return self.shared_bytes(True, True) <= max_shared_bytes(arch)


@dataclass(frozen=True)
class MmaTiling(TensorTiling):
    """A tile of which each warp adds up warp_m x warp_n."""

    warp_m: int = 64
    warp_n: int = 64

    path = "mma"
    text = "cuda/contractions/gemm_mma.cu"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.warp_m) * (self.tile_n // self.warp_n) * 32

    @property
    def store_columns(self) -> int:
        """Number of result columns that a warp holds."""
        return self.warp_n

    @property
    def holes(self) -> dict[str, int]:
        """Values for the template's holes besides the block's tile."""
        return {"WM": self.warp_m, "WN": self.warp_n}

    def keep(self, which: str, vector: int, *, along_k: bool) -> str:
        """The C statement that writes `held_a[i]` (or b) to shared memory; fragments are read from both layouts, so
        `along_k` does not matter."""
        out, letter = "m" if which == "a" else "n", which.upper()
        return f"Tile{letter}::keep<{vector}>(to_{which}, in_{out}, in_k, held_{which}[i]);"

    def _operand_bytes(self, out: int, *, along_k: bool) -> int:
        """Bytes of shared memory for one operand's tile of `out` rows, padded as in mma::Operand."""
        words = self.tile_k * SIZES[self.precision] // 4
        return 4 * (out * (words + 4) if along_k else words * (out + 8))  # as mma::Operand pads it

    def shared_bytes(self, a_along_k: bool, b_along_k: bool) -> int:
        """Bytes of dynamic shared memory of all stages."""
        a, b = self._operand_bytes(self.tile_m, along_k=a_along_k), self._operand_bytes(self.tile_n, along_k=b_along_k)
        return self.stages * (a + b)

    def registers(self, *, scalar: bool) -> int:
        """Estimated registers: sums (twice if they are drained), fragments, the next tiles on their way, addresses and
        loops."""
        sums = self.warp_m * self.warp_n // 32
        fragments = (self.warp_m // 16) * 4 + (self.warp_n // 8) * 2
        held = self.tile_k * (self.tile_m + self.tile_n) // self.threads
        if self.precision == "tf32x3":
            sums, fragments = 2 * sums, 2 * fragments
        return sums + fragments + held * (2 if scalar else 1) + 40

    def is_legal(self, arch: str, *, scalar: bool) -> bool:
        """True if warps divide the tile, a block has at most 16 of them, and it fits registers and shared memory."""
        return not (self.tile_m % self.warp_m or self.tile_n % self.warp_n) and super().is_legal(arch, scalar=scalar)


@dataclass(frozen=True)
class WgmmaTiling(TensorTiling):
    """A tile of which each warpgroup adds up group_m x group_n; a row of shared memory holds 128 bytes of k."""

    group_m: int = 64
    group_n: int = 128

    path = "wgmma"
    text = "cuda/contractions/gemm_wgmma.cu"
    arch_feature = "a"

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.tile_m // self.group_m) * (self.tile_n // self.group_n) * 128

    @property
    def store_columns(self) -> int:
        """Number of result columns that a warp holds."""
        return self.group_n

    @property
    def holes(self) -> dict[str, int]:
        """Values for the template's holes besides the block's tile."""
        return {"GM": self.group_m, "GN": self.group_n}

    def keep(self, which: str, vector: int, *, along_k: bool) -> str:
        """The C statement that writes `held_a[i]` (or b) to shared memory, in rows along k."""
        out, letter = "m" if which == "a" else "n", which.upper()
        kind = f"{vector}, {str(along_k).lower()}"
        return f"Tile{letter}::keep<{kind}>(to_{which}, in_{out}, in_k, held_{which}[i]);"

    def shared_bytes(self, a_along_k: bool, b_along_k: bool) -> int:
        """Bytes of dynamic shared memory of all stages, the same for both layouts."""
        return self.stages * (self.tile_m + self.tile_n) * 128

    def registers(self, *, scalar: bool) -> int:
        """Estimated registers of a thread. `scalar`: an operand is gathered; each element has an address."""
        held = self.tile_k * (self.tile_m + self.tile_n) // self.threads
        return self.group_m * self.group_n // 128 + held * (2 if scalar else 1) + 48 * 4 // SIZES[self.precision]

    def is_legal(self, arch: str, *, scalar: bool) -> bool:
        """True if warpgroups divide the tile, its depth is 128 bytes, and it fits registers and shared memory."""
        if self.tile_m % self.group_m or self.tile_n % self.group_n or self.tile_k * SIZES[self.precision] != 128:
            return False
        return self.threads >= 128 and super().is_legal(arch, scalar=scalar)


@dataclass(frozen=True)
class _Path:
    """One code path as the search sees it: legal values and meanings of its tunables, and its usual shapes.

    A shape is (tile_m, tile_n, two sizes of a part, share of the arithmetic rate that its main loop reaches). `parts`
    names these sizes in `kind`."""

    values: dict[str, tuple[int, ...]]
    meaning: dict[str, tuple[str, str]]
    shapes: tuple[tuple[int, int, int, int, float], ...]
    kind: type[MmaTiling] | type[WgmmaTiling]
    parts: tuple[str, str]

    def tilings(self, precision: str, splits: int) -> Iterator[tuple[TensorTiling, float]]:
        """Yields (tiling, share of the arithmetic rate) of each usual shape, with two stages."""
        deep = (32 if self.kind is WgmmaTiling else 16) * (4 // SIZES[precision])
        for tile_m, tile_n, part_m, part_n, rate in self.shapes:
            parts = dict(zip(self.parts, (part_m, part_n), strict=True))
            yield self.kind(tile_m, tile_n, deep, 2, splits, precision=precision, **parts), rate


_PATHS = {
    "wgmma": _Path(
        {
            **{"tile_m": (64, 128, 256), "tile_n": (64, 128, 256), "tile_k": (32, 64)},
            **{"group_m": (64, 128), "group_n": (64, 128, 256), "stages": (2, 3, 4), "splits": SPLITS},
        },
        {
            **_COMMON,
            "group_m": ("tile", "rows that a warpgroup adds up: more products per read of b, more registers"),
            "group_n": ("tile", "columns that a warpgroup adds up"),
            "stages": (
                "memory",
                "tiles in flight: with 3 a step is multiplied while the next one begins; more shared memory",
            ),
        },
        (
            (128, 256, 64, 256, 1.0),
            (128, 128, 64, 128, 0.85),
            (128, 64, 64, 64, 0.6),
            (64, 128, 64, 128, 0.6),
            (64, 64, 64, 64, 0.45),
        ),
        WgmmaTiling,
        ("group_m", "group_n"),
    ),
    "mma": _Path(
        {
            **{"tile_m": (32, 64, 128, 256), "tile_n": (32, 64, 128, 256), "tile_k": (16, 32, 64)},
            **{"warp_m": (16, 32, 64), "warp_n": (32, 64), "stages": (1, 2), "splits": SPLITS},
        },
        {
            **_COMMON,
            "warp_m": ("tile", "rows a warp adds up: more products per read of shared memory, more registers"),
            "warp_n": ("tile", "columns a warp adds up"),
            "stages": (
                "memory",
                "tiles in shared memory: with 2 the next is stored while one is multiplied, one barrier a step",
            ),
        },
        (
            (128, 128, 64, 64, 1.0),
            (128, 128, 64, 32, 0.9),
            (128, 64, 64, 32, 0.8),
            (64, 128, 32, 64, 0.8),
            (64, 64, 32, 32, 0.6),
            (32, 128, 32, 32, 0.5),
            (32, 64, 16, 32, 0.4),
            (32, 32, 16, 32, 0.3),
        ),
        MmaTiling,
        ("warp_m", "warp_n"),
    ),
}


def _default_tiling(kernel: GemmKernel, path: str, precision: str, device: Device, *, scalar: bool) -> TensorTiling:
    """The tiling with the least estimated time: waves of tiles, each at its own rate, plus the traffic of a split."""
    batch = math.prod(kernel.batch)
    best: tuple[float, TensorTiling] | None = None
    for splits in SPLITS:
        depth = math.ceil(kernel.k / splits)
        if splits > 1 and depth < 256:
            break
        for tiling, rate in _PATHS[path].tilings(precision, splits):
            if not tiling.is_legal(device.arch, scalar=scalar):
                continue
            tiles = batch * math.ceil(kernel.m / tiling.tile_m) * math.ceil(kernel.n / tiling.tile_n) * splits
            work = math.ceil(tiles / device.cores) * tiling.tile_m * tiling.tile_n * depth / rate
            # A partial sum is written and read; products are about ten times faster than on the ordinary units.
            moved = (600.0 * batch * kernel.m * kernel.n * splits / device.cores + 2e6) if splits > 1 else 0.0
            if best is None or work + moved < best[0]:
                best = (work + moved, tiling)
    assert best is not None, "the smallest tiles are legal everywhere"
    return best[1]


def choose_tensor(
    kernel: GemmKernel, path: str, precision: str, device: Device, choices: dict[str, Choice], *, scalar: bool
) -> tuple[TensorTiling, tuple[Tunable, ...]]:
    """(tiling, its tunables) of a path on tensor cores. Choices that are not legal together give way to the default
    tiling. A tunable offers the values that are legal beside the others' present ones.

    `scalar`: an operand is gathered element by element."""
    found = _PATHS[path]
    default = _default_tiling(kernel, path, precision, device, scalar=scalar)
    wanted = {name: int(value) for name, value in choices.items() if value in found.values.get(name, ())}
    tiling = _replace_numbers(default, wanted)
    if not tiling.is_legal(device.arch, scalar=scalar) or tiling.splits * tiling.tile_k > max(kernel.k, tiling.tile_k):
        tiling = default
    tunables = []
    for name, values in found.values.items():
        legal = [
            value for value in values if _replace_numbers(tiling, {name: value}).is_legal(device.arch, scalar=scalar)
        ]
        if name == "splits":
            legal = [value for value in legal if value == 1 or kernel.k // value >= 4 * tiling.tile_k]
        if getattr(tiling, name) not in legal:
            legal.append(getattr(tiling, name))
        aspect, meaning = found.meaning[name]
        tunables.append(make_tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)


def _replace_numbers(tiling: TensorTiling, values: dict[str, int]) -> TensorTiling:
    """The tiling with some of its numbers replaced."""
    return replace(tiling, **values)  # type: ignore[arg-type]


def declare_ways(precisions: tuple[str, ...], paths: tuple[str, ...]) -> tuple[Tunable, ...]:
    """The tunables "precision" and "path", each only if there is more than one value."""
    found = []
    if len(precisions) > 1:
        found.append(make_tunable(PRECISION, precisions, precisions[0], PRECISION, _PRECISION_MEANING))
    if len(paths) > 1:
        found.append(make_tunable(PATH, paths, paths[0], "algorithm", _PATH_MEANING))
    return tuple(found)
