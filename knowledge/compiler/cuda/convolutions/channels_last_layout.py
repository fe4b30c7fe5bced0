"""The layout of a convolution through a channels-last copy of its input: its precision and tiles, and the sizes and
places of the copy and the packed weights."""

from __future__ import annotations

import math

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda import launches as cuda_launch
from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import HALF, HALF3, PRECISION
from foundry.knowledge.compiler.cuda.convolutions.packed_input import PackedInput, plan_packed_input
from foundry.knowledge.compiler.cuda.convolutions.pixel_tiles import choose_pixels, count_phases, gathers_phases
from foundry.knowledge.compiler.cuda.convolutions.side_by_side import choose_neighbours, place_side_by_side
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace
from foundry.knowledge.compiler.cuda.convolutions.tails import order_pixels
from foundry.knowledge.compiler.cuda.space import pick
from foundry.knowledge.compiler.ir.access import tail_outer
from foundry.knowledge.device import Device

PACKING_THREADS = 256
NEAR = ("no", "yes")
_ALIGN = 1024


def stored_type(space: ConvSpace) -> str:
    """The 16-bit dtype that input and weights are both stored in, else "float32"."""
    stored = {space.plan.buffers[name].dtype for name in (space.kernel.x, space.kernel.weight)}
    found = stored.pop() if len(stored) == 1 else "float32"
    return found if found in ("float16", "bfloat16") else "float32"


def precisions_of(space: ConvSpace) -> tuple[str, ...]:
    """The precisions that the convolution may be computed in, the default first."""
    dtype = stored_type(space)
    return (HALF, HALF3, "tf32") if dtype == "float32" else (dtype,)


class ChannelsLastLayout:
    """Sizes and places of one such convolution, by choices or defaults. It is a product of `m` pixels, padding of tiles
    included, and `n` channels of a group.

    `weights`, `image`, `peaks` and the exponents are launch arguments for parts of the workspace, or of prepared
    memory."""

    def __init__(self, space: ConvSpace, device: Device, choices: dict[str, Choice]) -> None:
        self.space, self.found, self.kernel = space, space.found, space.kernel
        self.arch, self.cores = device.arch, device.cores
        precisions = precisions_of(space)
        self.precision = str(pick(choices, PRECISION, precisions, precisions[0]))
        # Neighbouring taps of few channels are in one cache line, which L1 then serves.
        self.near_default = NEAR[plan_packed_input(space, self.precision).point == 1]
        self.near = str(pick(choices, "near", NEAR, self.near_default))
        tail = self.kernel.tail
        whole = tail is not None and math.prod(tail.extent[2:]) == 1  # a tile has all channels
        if whole:
            choices = {name: value for name, value in choices.items() if name != "tile_channels"}
        self.shape, tunables = choose_pixels(space, self.precision, device, choices)
        self.tunables = tuple(item for item in tunables if not (whole and item.name == "tile_channels"))
        self.packed: PackedInput = plan_packed_input(space, self.precision)
        self.n = self.found.out_per_group
        self.gathers = gathers_phases(space)
        counts = tail_outer(self.kernel)[2:] if self.gathers else tuple(axis.count for axis in self.found.axes)
        self.pixels = order_pixels(self.kernel, counts, self.shape.tile_pixels, gathers=self.gathers)
        self.m = self.kernel.batch * self.pixels.padded
        self.neighbours, tunable_of = choose_neighbours(space, self.shape.tile_pixels, choices)
        self.tunables += tunable_of
        self.near_by = place_side_by_side(space, self.neighbours) if self.neighbours > 1 else None
        self.tiles = math.ceil(self.m / self.shape.tile_pixels), math.ceil(self.n / self.shape.tile_channels)
        self.phases = self.found.parts
        self.padded_n = self.tiles[1] * self.shape.tile_channels
        self.weight_rows = self.kernel.groups * self.padded_n
        self.is_prepared = space.plan.buffers[self.kernel.weight].role in ("parameter", "prepared")
        self._place()

    @property
    def together(self) -> int:
        """Number of phases that a tile computes together: one, two of the last axis (outputs side by side), or all."""
        return count_phases(self.space)

    @property
    def all_tiles(self) -> int:
        """Number of tiles of all phases and groups."""
        return self.tiles[0] * self.tiles[1] * len(self.phases) // self.together * self.kernel.groups

    @property
    def is_scaled(self) -> bool:
        """True if the copy and the weights are scaled by powers of two to fit 16 bits."""
        return self.precision in (HALF, HALF3)

    def _place(self) -> None:
        """Sets the launch arguments of all parts of the workspace and of prepared memory, and the sizes of both."""
        weights = self.weight_rows * len(self.packed.reads) * 16
        self.prepared_bytes = weights + (_aligned(4 * self.weight_rows) if self.is_scaled else 0)
        self.workspace_bytes = 0 if self.is_prepared else _aligned(self.prepared_bytes)
        memory = cuda_launch.prepared_argument if self.is_prepared else cuda_launch.workspace_argument
        self.weights, self.exponents_w = memory(0), memory(weights)
        image = self.workspace_bytes
        self.image = cuda_launch.workspace_argument(image)
        self.exponents_x = cuda_launch.workspace_argument(image + _aligned(self.packed.pieces * 16))
        peaks = image + _aligned(self.packed.pieces * 16) + _aligned(4 * self.kernel.batch)
        self.peaks = cuda_launch.workspace_argument(peaks)
        self.workspace_bytes = peaks + (_aligned(4 * self.kernel.batch * self.pack_blocks) if self.is_scaled else 0)

    @property
    def part(self) -> int:
        """Number of pieces of a place that a block packs, one a thread."""
        return next(part for part in (8, 4, 2, 1) if self.packed.point % part == 0)

    @property
    def chunks(self) -> int:
        """Number of blocks that share the pieces of a place."""
        return self.packed.point // self.part

    @property
    def spot_blocks(self) -> int:
        """Number of blocks that share the places of an image."""
        return math.ceil(self.packed.spots * self.part / PACKING_THREADS)

    @property
    def pack_blocks(self) -> int:
        """Number of blocks that pack an image."""
        return self.spot_blocks * self.chunks

    @property
    def repairers(self) -> int:
        """Number of blocks that check if an image must be packed again."""
        return max(1, min(8, self.pack_blocks))


def _aligned(size: int) -> int:
    """A size in bytes, rounded up to 1024."""
    return math.ceil(size / _ALIGN) * _ALIGN
