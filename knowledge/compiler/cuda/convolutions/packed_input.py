"""A convolution's input in channels-last order with its padding, and the 16-byte pieces in which a product reads it.

A window is read tap by tap; a tap's channels are pieces of eight elements of 16 bits (or four of 32). Every phase of a
transposed convolution has pieces of its own, a whole number of steps of eight. With three products (`half3`) a phase is
read as (low, high), then (high, low), then (high, high) parts of input and weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from foundry.knowledge.compiler.cuda.contractions.tensor_tiles import HALF3, SIZES
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace
from foundry.knowledge.compiler.ir.conv_geometry import AxisPart

_STEP = 8  # pieces: 128 bytes


@dataclass(frozen=True)
class PackedInput:
    """The packed input in numbers. `size` has the places of an image along each axis, `spots` is their product; a place
    has `point` pieces, `pieces_group` for each group."""

    size: tuple[int, int, int]
    spots: int
    point: int
    pieces_group: int
    low: int  # pieces from the high part of an element to its low part, 0 without
    pieces: int  # number of pieces in all images
    reads: tuple[int, ...]  # place of each piece from the window's begin; -1 for none
    taps: tuple[int, ...]  # tap of the weights that each piece meets
    channels: tuple[int, ...]  # first channel of each piece
    low_weights: tuple[bool, ...]  # True if a piece meets the low part of the weights
    phases: tuple[tuple[int, ...], ...]  # first output along each axis, number of steps, first of them

    @property
    def all_steps(self) -> int:
        """Number of steps of eight pieces, for all phases."""
        return len(self.reads) // _STEP


def plan_packed_input(space: ConvSpace, precision: str) -> PackedInput:
    """The packed input of a convolution in this precision."""
    found, kernel = space.found, space.kernel
    piece = 16 // SIZES[precision]
    pieces_group = math.ceil(found.in_per_group / piece)
    point = kernel.groups * pieces_group
    depth, height, width = (
        (axis.count - 1) * axis.in_step + 1 + max(tap.shift * axis.in_step + tap.phase for tap in taps)
        for axis in found.axes
        if (taps := [tap for part in axis.parts for tap in part.taps])
    )
    size = (depth, height, width)
    spots = math.prod(size)
    volume = kernel.batch * spots * point
    low = volume if precision == HALF3 else 0
    rows: list[tuple[int, int, int, bool]] = []
    phases = []
    for part in found.parts:
        first = len(rows) // _STEP
        for reads_low, meets_low in ((True, False), (False, True), (False, False)) if low else ((False, False),):
            rows += [
                (at + low * reads_low, tap, channel, meets_low)
                for at, tap, channel in _list_pieces(space, part, size, (point, pieces_group, piece))
            ]
        rows += [(-1, -1, 0, False)] * (-len(rows) % _STEP)
        phases.append((*(axis.start for axis in part), len(rows) // _STEP - first, first))
    reads, taps_of, channels, lows = (tuple(column) for column in zip(*rows, strict=True))
    return PackedInput(
        *(size, spots, point, pieces_group, low, volume * (2 if low else 1)),
        *(reads, taps_of, channels, lows, tuple(phases)),
    )


def _list_pieces(
    space: ConvSpace, part: tuple[AxisPart, ...], size: tuple[int, int, int], shape: tuple[int, int, int]
) -> Iterator[tuple[int, int, int]]:
    """Yields (place from the window's begin, tap of the weights, first channel) of each piece that a phase reads.

    `shape` is (pieces of a place, pieces of a group, elements of a piece)."""
    point, pieces_group, piece = shape
    _, high, wide = space.kernel.kernel
    steps = [axis.in_step for axis in space.found.axes]
    for taps in product(*(axis.taps for axis in part)):
        d, h, w = (tap.shift * step + tap.phase for tap, step in zip(taps, steps, strict=True))
        place = ((d * size[1] + h) * size[2] + w) * point
        tap = (taps[0].index * high + taps[1].index) * wide + taps[2].index
        for number in range(pieces_group):
            yield place + number, tap, number * piece
