"""Tiles of convolutions through a channels-last copy: those that are legal, and the chosen one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import HALF3
from foundry.knowledge.compiler.cuda.convolutions.packed_input import plan_packed_input
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.space import make_tunable, pick, pick_number
from foundry.knowledge.compiler.ir.kernels import Tunable
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

_COLUMNS = (16, 24, 32, 48, 64, 96, 128)  # channels of one instruction
KEPT, MOVED = "kept", "moved"  # weights stay in shared memory, or come with each step


@dataclass(frozen=True)
class Needs:
    """Registers for `sums` of each output, and shared memory for the kept weights of `steps` steps and `channels`
    channels: a convolution's needs of its tiling. `channels` is larger than every tile if weights cannot be kept."""

    sums: int
    steps: int
    channels: int


@dataclass(frozen=True)
class PixelTiling:
    """A tile of pixels times channels, by the tunables: `turns` warpgroups take turns to multiply, and `weights` are
    "kept" in shared memory or "moved" with the input."""

    tile_pixels: int
    tile_channels: int
    turns: int
    stages: int
    weights: str

    @property
    def threads(self) -> int:
        """Threads of a block: the warpgroups that multiply, and the one that copies."""
        return self.turns * 128 + 128

    def shared_bytes(self, steps: int) -> int:
        """Shared memory of a block in bytes: all stages, the kept weights of `steps` steps, and barriers."""
        kept, moved = (steps, 0) if self.weights == KEPT else (0, self.tile_channels)
        return (
            self.stages * ((self.tile_pixels + moved) * 128 + 16) + kept * self.tile_channels * 128 + self.turns * 8 + 8
        )

    def registers(self, sums: int) -> int:
        """Registers of a multiplying thread that holds `sums` of each output."""
        return self.tile_pixels * self.tile_channels // 128 * sums + self.tile_pixels // 64 * 12 + 48

    def is_legal(self, needs: Needs, arch: str) -> bool:
        """True if registers and shared memory suffice, and weights that should be kept can be."""
        if self.weights == KEPT and self.tile_channels < needs.channels:
            return False
        fits = self.shared_bytes(needs.steps) <= max_shared_bytes(arch)
        return fits and self.registers(needs.sums) <= REGISTERS[self.turns][1]

    def resident_blocks(self, needs: Needs, arch: str) -> int:
        """Blocks that a multiprocessor runs at a time: as many as fit with one warpgroup that multiplies, else 1."""
        if self.turns > 1:
            return 1
        by_registers = 65536 // (self.threads * self.registers(needs.sums))
        return max(1, min(by_registers, max_shared_bytes(arch) // (self.shared_bytes(needs.steps) + 1024)))


# (registers of a copying thread, of a multiplying thread), by the number of warpgroups that multiply.
REGISTERS = {1: (0, 255), 2: (56, 224), 3: (56, 152)}
_VALUES: dict[str, tuple[int, ...]] = {
    "tile_pixels": (64, 128, 256),
    "tile_channels": (*_COLUMNS, 256),
    "turns": (1, 2, 3),
    "stages": (3, 4, 5, 6, 8),
}
_MEANING = {
    "tile_pixels": ("tile", "output positions of a tile: larger reads weights less often"),
    "tile_channels": ("tile", "output channels of a tile: larger reads the input less often"),
    "turns": ("parallel", "warpgroups that take turns: one stores while others multiply, each with fewer registers"),
    "stages": ("memory", "tiles in flight: more latency is hidden, more shared memory"),
}


def gathers_phases(space: ConvSpace) -> bool:
    """True if a tail reduces windows of one output of every phase, which a tile then computes all."""
    tail, phases = space.kernel.tail, tuple(len(axis.parts) for axis in space.found.axes)
    if tail is None or math.prod(phases) == 1 or phases == space.kernel.output_size:
        return False
    return tail.extent == (1, 1, *phases)


def count_phases(space: ConvSpace) -> int:
    """Number of phases that a tile computes together."""
    if gathers_phases(space):
        return len(space.found.parts)
    return 2 if len(space.found.axes[2].parts) == 2 else 1


def find_needs(space: ConvSpace, precision: str) -> Needs:
    """The needs of a convolution in this precision."""
    sums = count_phases(space) + (precision == HALF3)
    channels = space.found.out_per_group if space.kernel.groups == 1 else 2**31
    return Needs(sums, plan_packed_input(space, precision).all_steps, channels)


def _default_tiling(space: ConvSpace, needs: Needs, arch: str) -> PixelTiling:
    """Two warpgroups that take turns, on the largest tiles that leave them registers. Raises CannotLower if none does.

    With more than four stages an H200 is slower: a tile is reported present only when the stages behind it are on their
    way."""
    out = space.found.out_per_group
    columns = min((n for n in _COLUMNS if n >= out), default=128)
    shapes = [
        PixelTiling(pixels, wide, 2, 4, weights)
        for wide in (columns, 64, 32, 16)
        for pixels in (128, 64)
        for weights in (KEPT, MOVED)
        if wide <= columns
    ]
    found = next((shape for shape in shapes if shape.is_legal(needs, arch)), None)
    if found is None:
        raise CannotLower("sums of all phases fill more registers than there are")
    return found


def _replace_number(shape: PixelTiling, name: str, value: int) -> PixelTiling:
    """The tiling with one of its numbers replaced."""
    return replace(shape, **{name: value})  # type: ignore[arg-type]


def choose_pixels(
    space: ConvSpace, precision: str, device: Device, choices: dict[str, Choice]
) -> tuple[PixelTiling, tuple[Tunable, ...]]:
    """(tiling, its tunables). If the choices are not legal together, weights are moved, then the default tiling is
    taken."""
    needs = find_needs(space, precision)
    default = _default_tiling(space, needs, device.arch)
    most = max(16, 2 * space.found.out_per_group)
    values = {name: tuple(v for v in found if name != "tile_channels" or v < most) for name, found in _VALUES.items()}
    wanted = {name: pick_number(choices, name, values[name], getattr(default, name)) for name in values}
    shape = PixelTiling(**wanted, weights=str(pick(choices, "weights", (KEPT, MOVED), default.weights)))
    if not shape.is_legal(needs, device.arch):
        shape = replace(shape, weights=MOVED)
    if not shape.is_legal(needs, device.arch):
        shape = default
    tunables = []
    for name, (aspect, meaning) in _MEANING.items():
        legal = [v for v in values[name] if _replace_number(shape, name, v).is_legal(needs, device.arch)]
        legal = sorted({*legal, getattr(default, name)})
        if len(legal) > 1:
            tunables.append(make_tunable(name, legal, getattr(default, name), aspect, meaning))
    ways = [way for way in (KEPT, MOVED) if replace(shape, weights=way).is_legal(needs, device.arch)]
    if len(ways) > 1:
        meaning = "kept: all weights stay in shared memory; moved: they come with the input, step by step"
        tunables.append(make_tunable("weights", ways, default.weights, "memory", meaning))
    return shape, tuple(tunables)
