"""Attention on tensor cores: the precisions that a kernel may be computed in, and the tiles that are legal and fill the
device best."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.contractions.attention_boxes import find_boxes
from foundry.knowledge.compiler.cuda.contractions.attention_space import AttentionSpace
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import (
    IEEE,
    SIZES,
    TYPES,
    has_tensor_cores,
    has_wgmma,
)
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.space import make_tunable
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, Plan, Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import ITEM_BYTES

LARGEST_HEAD = 256
MOST_REGISTERS = 264  # registers of a thread as estimated, a little more than the compiler takes
SPLITS = (1, 2, 4, 8, 16, 32)
_VALUES: dict[str, dict[str, tuple[int, ...]]] = {
    "mma": {
        **{"warp_rows": (16, 32), "warps": (1, 2, 4, 8), "keys": (16, 32, 64, 128)},
        **{"stages": (2, 3), "splits": SPLITS},
    },
    "turns": {
        **{"warps": (4, 8, 12), "keys": (64, 80, 96, 112, 128, 144, 160, 176, 192), "stages": (2, 3, 4)},
        **{
            "in_turn": (0, 1),
            "lazy": (0, 1),
            "stay": (0, 1),
            "pass_by": (0, 1),
            "shared_mask": (0, 1),
            "splits": SPLITS,
        },
    },
}
_MEANING = {
    "warp_rows": ("tile", "query rows of a warp: more products per read of keys and values, more registers"),
    "warps": ("parallel", "warps that share a tile of keys and values"),
    "keys": ("tile", "keys of a tile: fewer barriers and rescalings, more registers and shared memory"),
    "stages": ("memory", "tiles of keys and values in shared memory: more are on their way"),
    "in_turn": (
        "parallel",
        "1: a warpgroup multiplies when the one before has begun, and weighs while others multiply",
    ),
    "lazy": ("algorithm", "1: sums are rescaled only when a weight would exceed 2^8"),
    "pass_by": ("algorithm", "1: a warpgroup leaves out steps in which it has no rows, or its rows see no keys"),
    "shared_mask": ("memory", "1: the mask comes in tiles with the keys; 0: each thread reads what it needs of it"),
    "stay": ("parallel", "1: as many blocks as fit, each takes one tile of rows after the other; 0: a block for each"),
    "splits": ("algorithm", "parts of the keys computed by different blocks and joined by a second launch"),
}


def list_precisions(kernel: AttentionKernel, plan: Plan, arch: str) -> tuple[str, ...]:
    """The precisions that the attention may be computed in, the default first.

    PyTorch's own operator (`empty_rows` is "zero") is as accurate as float32 even if TF32 is allowed; products that a
    task writes out are not."""
    kinds = {kernel.q.dtype, kernel.k.dtype, kernel.v.dtype}
    kind = kinds.pop()
    if kinds or not has_tensor_cores(arch) or kernel.dtype == "float64":
        return (IEEE,)
    if kind in ("float16", "bfloat16"):
        return (kind, IEEE)
    if kind != "float32" or plan.ieee_only:
        return (IEEE,)
    return ("tf32x3", "tf32", IEEE) if kernel.empty_rows == "zero" else ("tf32", "tf32x3", IEEE)


@dataclass(frozen=True)
class AttentionTiling(ABC):
    """A block's division: warps, keys of a tile, parts of the keys, and the heads padded to what one product takes."""

    head: int
    value_head: int
    precision: str
    warps: int
    keys: int
    splits: int = 1

    path = ""
    text = ""  # the kernel compiler's text of the kernel
    arch_feature = ""  # suffix that the architecture's name needs
    kits: ClassVar[tuple[str, ...]] = ()  # library texts beside those of the precision

    @property
    @abstractmethod
    def rows(self) -> int:
        """Query rows of a block."""

    @property
    @abstractmethod
    def registers(self) -> int:
        """Estimated registers of a thread."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes."""

    @property
    @abstractmethod
    def holes(self) -> dict[str, object]:
        """Values for the holes of this kernel's template alone."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def type_name(self) -> str:
        """The precision's name in the kernel compiler's texts."""
        return TYPES[self.precision]

    @property
    def item_bytes(self) -> int:
        """Bytes of an operand's element in shared memory."""
        return SIZES[self.precision]

    def resident_blocks(self, arch: str) -> int:
        """Blocks of a multiprocessor that the compiler should leave registers for."""
        by_registers = 65536 // (self.threads * min(255, self.registers + 8))
        return max(1, min(16, by_registers, max_shared_bytes(arch) // self.shared_bytes))

    def is_legal(self, arch: str) -> bool:
        """True if a thread's registers and a block's shared memory suffice."""
        return self.registers <= MOST_REGISTERS and self.shared_bytes <= max_shared_bytes(arch)


@dataclass(frozen=True)
class MmaAttention(AttentionTiling):
    """Attention in which each warp multiplies its rows by fragments that it reads from the tile."""

    warp_rows: int = 16
    stages: int = 2

    path = "mma"
    text = "cuda/contractions/attention_mma.cu"

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return self.warps * self.warp_rows

    @property
    def is_held(self) -> bool:
        """True if a warp's queries stay in its registers."""
        return self._registers + self._query_registers <= 184

    @property
    def _query_registers(self) -> int:
        """Registers of a thread for its warp's queries."""
        return self.warp_rows * self.head * self.item_bytes // 128

    @property
    def part(self) -> int:
        """Number of result columns that a warp adds up at a time, so that enough products are independent."""
        return min(self.value_head, 32 if self.warp_rows * self.value_head <= 16 * 128 else 16)

    @property
    def _registers(self) -> int:
        """Estimated registers without held queries.

        These are sums, beside either scores or weights and a part of the next sums, then fragments and addresses.
        """
        sums, scores = self.warp_rows * self.value_head // 32, self.warp_rows * self.keys // 32
        weights = scores * self.item_bytes // 4 + self.warp_rows * self.part // 32
        fragments = (12 if self.precision == "tf32x3" else 4) * self.warp_rows // 16 + 4
        return sums + max(scores, weights) + fragments + 56

    @property
    def registers(self) -> int:
        """Estimated registers of a thread, with held queries."""
        return self._registers + (self._query_registers if self.is_held else 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: stages of keys and values, and queries, which use the same memory
        if they are held in registers."""
        row, value_row = (size * self.item_bytes + 16 for size in (self.head, self.value_head))
        stages, queries = self.stages * self.keys * (row + value_row), self.rows * row
        return max(stages, queries) if self.is_held else stages + queries

    @property
    def holes(self) -> dict[str, object]:
        """Values for the holes of attention_mma.cu alone."""
        is_held = str(self.is_held).lower()
        return {"ROWS": self.warp_rows, "STAGES": self.stages, "PART": self.part, "IS_HELD": is_held}


# (registers of a copying thread, of a multiplying thread), by the number of warps that multiply.
REGISTERS = {4: (0, 240), 8: (24, 240), 12: (32, 160)}


@dataclass(frozen=True)
class TurnsAttention(AttentionTiling):
    """Attention in which each warpgroup has 64 rows, and the tensor cores read 16-bit keys and values from shared
    memory, 64 elements of a head in a row of it. A thread of one more warpgroup lets TMA bring tiles ahead of their
    use."""

    stages: int = 2
    in_turn: int = 1
    lazy: int = 0
    stay: int = 1
    pass_by: int = 0
    shared_mask: int = 0
    mask_bytes: int = 0  # bytes of an element of a mask that may come in tiles; 0: there is none

    path = "turns"
    text = "cuda/contractions/attention_turns.cu"
    arch_feature = "a"
    kits = ("wgmma", "wgmma_sixteen", "attention_wgmma", "bulk")

    @property
    def rows(self) -> int:
        """Query rows of a block."""
        return self.warps * 16

    @property
    def threads(self) -> int:
        """Threads of a block: the warps that multiply, and a warpgroup that copies."""
        return 32 * self.warps + 128

    @property
    def registers(self) -> int:
        """Estimated registers of a thread: sums, scores, weights of the tile before, addresses."""
        return self.value_head // 2 + self.keys // 2 + self.keys // 4 + 32

    def resident_blocks(self, arch: str) -> int:
        """Number of resident blocks; 1 if the kernel redistributes registers between warpgroups."""
        return 1 if REGISTERS[self.warps][0] else super().resident_blocks(arch)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block in bytes: two tiles of queries, stages of keys, values and mask, and
        barriers."""
        head, value_head = _pad_head(self.head, 64), _pad_head(self.value_head, 64)
        tiles = 2 * self.keys * (head + value_head) + 128 * self.rows * self.mask_boxes
        return 2 * self.rows * head + self.stages * tiles + 8 * (4 * self.stages + 2)

    @property
    def mask_boxes(self) -> int:
        """Number of 128-byte boxes in each row of a tile's mask; 0 if the mask does not come in tiles."""
        return math.ceil(self.keys * self.mask_bytes / 128) if self.shared_mask else 0

    @property
    def holes(self) -> dict[str, object]:
        """Values for the holes of attention_turns.cu alone."""
        own, most = REGISTERS[self.warps]
        return {
            **{"GROUPS": self.warps // 4, "STAGES": self.stages, "SPLITS": self.splits},
            "IN_TURN": str(bool(self.in_turn) and self.warps > 4).lower(),
            "LAZY": str(bool(self.lazy)).lower(),
            "PASS_BY": str(bool(self.pass_by)).lower(),
            "MASK_BOXES": self.mask_boxes,
            "GIVE_UP": f"        wgmma::give_up<{own}>();" if own else "",
            "CLAIM": f"    wgmma::claim<{most}>();" if own else "",
        }

    def is_legal(self, arch: str) -> bool:
        """True if registers and shared memory suffice, and a mask that should come in tiles can."""
        if self.shared_mask and not self.mask_bytes:
            return False
        return self.registers <= REGISTERS[self.warps][1] and super().is_legal(arch)


def _pad_head(head: int, step: int) -> int:
    """The size of a head, rounded up to a multiple of `step`."""
    return math.ceil(head / step) * step


def list_paths(space: AttentionSpace, precision: str, arch: str) -> tuple[str, ...]:
    """The legal paths, the default first; with few rows and few keys there is nothing to copy ahead."""
    kernel = space.kernel
    if SIZES[precision] != 2 or not has_wgmma(arch) or not all(find_boxes(space, which) for which in ("q", "k", "v")):
        return ("mma",)
    return ("turns", "mma") if kernel.rows > 64 or kernel.columns >= 1024 else ("mma", "turns")


def _default_mma(space: AttentionSpace, precision: str, device: Device) -> MmaAttention:
    """The default tiling of the path "mma" by the sizes of rows and heads, with fewer keys until it is legal."""
    kernel = space.kernel
    head, value_head = _pad_head(kernel.head, 16), _pad_head(kernel.value_head, 16)
    widest = {2: 128, 4: 128 if precision == "tf32" else 64}[SIZES[precision]]
    wide = kernel.rows > 64 and max(head, value_head) <= widest
    warps = 4 if kernel.rows > 32 else 2 if kernel.rows > 16 else 1
    if kernel.rows >= 256 and SIZES[precision] == 4 and 64 < max(head, value_head) <= 128:
        warps = 8
    few = kernel.rows <= 16 and SIZES[precision] == 4
    keys = 64 if max(head, value_head) * SIZES[precision] <= 256 and not few else 32
    found = MmaAttention(head, value_head, precision, warps, keys, warp_rows=32 if wide else 16)
    while not (found.is_legal(device.arch) and found.registers <= 255) and found.keys > 16:
        found = replace(found, keys=found.keys // 2)
    return found


def _default_turns(space: AttentionSpace, precision: str, device: Device) -> TurnsAttention:
    """The default tiling, measured on an H200.

    It has three warpgroups if their registers hold tiles of 128 keys, else two, and one for at most 64 rows. Three skip
    what causal rows do not see. A mask comes in tiles if it fits. For few rows, whose time goes to keys and values, it
    has as many stages as fit.
    """
    kernel, mask = space.kernel, find_boxes(space, "mask")
    head, value_head = _pad_head(kernel.head, 16), _pad_head(kernel.value_head, 64)
    if 64 < kernel.value_head <= 96:
        value_head = 96
    warps = 4 if kernel.rows <= 64 else 12 if max(head, value_head) <= 64 and kernel.rows > 128 else 8
    is_plain = kernel.mask is None and not kernel.causal and kernel.rows > 64
    most = 176 if is_plain and _pad_head(kernel.columns, 176) <= 1.05 * kernel.columns else 128
    mask_bytes = ITEM_BYTES[mask.dtype] if mask else 0
    first = TurnsAttention(head, value_head, precision, warps, 64, lazy=int(kernel.mask is None), mask_bytes=mask_bytes)
    sizes = [keys for keys in _VALUES["turns"]["keys"] if keys <= most]
    tried = [replace(first, keys=keys, shared_mask=way) for keys in sizes for way in (0, 1)]
    found = max(tried, key=lambda t: (t.is_legal(device.arch), t.shared_mask, t.keys))
    if kernel.causal and kernel.mask is None and warps == 12:
        found = replace(found, pass_by=1)
    if kernel.rows <= 64:
        found = max((replace(found, stages=n) for n in (2, 3, 4)), key=lambda t: (t.is_legal(device.arch), t.stages))
    return found


_DEFAULTS = {"mma": _default_mma, "turns": _default_turns}


def _split_keys(found: AttentionTiling, kernel: AttentionKernel, device: Device) -> AttentionTiling:
    """The tiling with as many parts of the keys as fill the device: once for persistent blocks, else a few times."""
    blocks = math.prod(kernel.batch) * math.ceil(kernel.rows / found.rows)
    times = 1 if found.path == "turns" else 4 if found.warps == 1 else 3
    most, least = times * device.cores, 1024 if found.path == "turns" and kernel.rows > 64 else max(256, found.keys)
    splits = [count for count in SPLITS if blocks * count <= most and kernel.columns >= count * least]
    return replace(found, splits=max([1, *splits]))


def choose_attention(
    space: AttentionSpace, path: str, precision: str, device: Device, choices: dict[str, Choice]
) -> tuple[AttentionTiling, tuple[Tunable, ...]]:
    """(tiling, its tunables) of a path. Choices that are not legal together give way to the default tiling. A tunable
    offers the values that are legal beside the others' present ones."""
    kernel = space.kernel
    default = _split_keys(_DEFAULTS[path](space, precision, device), kernel, device)
    values = _VALUES[path]
    wanted = {name: int(value) for name, value in choices.items() if value in values.get(name, ())}
    tiling = _replace_numbers(default, wanted)
    if not tiling.is_legal(device.arch) or tiling.splits * tiling.keys > max(kernel.columns, tiling.keys):
        tiling = default
    tunables = []
    for name, every in values.items():
        legal = [value for value in every if _replace_numbers(tiling, {name: value}).is_legal(device.arch)]
        if name == "splits":
            legal = [value for value in legal if value == 1 or kernel.columns >= value * tiling.keys]
        if getattr(tiling, name) not in legal:
            legal.append(getattr(tiling, name))
        if len(legal) == 1 and name in ("shared_mask", "in_turn"):
            continue
        aspect, meaning = _MEANING[name]
        tunables.append(make_tunable(name, legal, getattr(default, name), aspect, meaning))
    return tiling, tuple(tunables)


def _replace_numbers(tiling: AttentionTiling, values: dict[str, int]) -> AttentionTiling:
    """The tiling with some of its numbers replaced."""
    return replace(tiling, **values)  # type: ignore[arg-type]
