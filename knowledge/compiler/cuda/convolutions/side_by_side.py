"""Neighbouring pixels of a tile in one lane, which stores them as one vector.

A product leaves a lane with two rows of every 64, and any pixel may be any row of the tile. If the pixels of a channel
are neighbours in memory, a lane's rows are neighbouring pixels: a warp then stores whole lines of four channels, not a
piece of each. A place of the result is then (image, channel, pixel)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.convolutions.pixel_tiles import count_phases
from foundry.knowledge.compiler.cuda.convolutions.space import ConvSpace
from foundry.knowledge.compiler.cuda.space import Space, make_tunable, pick_number
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import Store, Tunable, View


@dataclass(frozen=True)
class SideBySide:
    """Tiles whose lanes have `count` neighbours of the `pixels` of an image. `stores` are the kernel's over `space`:
    (image, channel, pixel)."""

    count: int
    pixels: int
    stores: tuple[Store, ...]
    space: Space

    def find(self) -> list[str]:
        """C statements that define the place of row `m`."""
        return [f"const int photo = m / {self.pixels}, spot = m % {self.pixels}, p0 = spot, p1 = 0, p2 = 0;"]

    def parts(self, tile_pixels: int) -> int:
        """Number of runs of neighbours that a lane has in a tile."""
        return tile_pixels // (32 * self.count)

    @property
    def gathered(self) -> str:
        """C text of the tile's pixel that is its row thread / 8 + i * 16 (eight threads a row)."""
        if self.count == 2:
            return "i / 4 * 64 + (i % 4 * 8 + thread / 8 % 8) * 2 + thread / 64"
        return "i / 8 * 128 + (i % 4 * 8 + thread / 8 % 8) * 4 + i / 4 % 2 * 2 + thread / 64"

    @property
    def row(self) -> str:
        """C text of the first pixel of a lane's neighbours."""
        return f"(warp % 4 * 8 + lane / 4) * {self.count} + i * {32 * self.count}"

    @property
    def acc(self) -> str:
        """C text of the sum of neighbour j."""
        return f"acc[0][i * {self.count // 2} + j / 2][h * 4 + j % 2 * 2 + side]"


def list_counts(space: ConvSpace, tile_pixels: int) -> tuple[int, ...]:
    """Legal numbers of neighbours of a lane in tiles of `tile_pixels` pixels, 1 first."""
    kernel = space.kernel
    is_plain = kernel.tail is None and count_phases(space) == 1 and len(space.found.parts) == 1
    if not is_plain or kernel.output_size[2] == 1:
        return (1,)
    flat = {view: _flatten(view, kernel.output_size) for view in views.stored_views(kernel.stores)}
    stored = [flat[store.view] for store in kernel.stores]
    if any(view is None for view in flat.values()):
        return (1,)
    wide = [count for count in (2, 4) if 32 * count <= tile_pixels and math.prod(kernel.output_size) % count == 0]
    return (1, *(count for count in wide if all(_is_aligned(view, count) for view in stored if view)))


def place_side_by_side(space: ConvSpace, count: int) -> SideBySide:
    """The stores and places of a convolution whose lanes have `count` neighbouring pixels."""
    kernel = space.kernel
    pixels = math.prod(kernel.output_size)

    def flat(view: View) -> View:
        """The view with its spatial axes merged to one of pixels."""
        found = _flatten(view, kernel.output_size)
        assert found is not None
        return found

    stores = tuple(views.map_store(store, flat) for store in kernel.stores)
    sizes, seen = (kernel.batch, kernel.out_channels, pixels), views.stored_views(stores)
    return SideBySide(
        count, pixels, stores, Space(sizes, ("image", "channel", "p0"), {v: v for v in seen}, space.inside)
    )


def choose_neighbours(
    space: ConvSpace, tile_pixels: int, choices: dict[str, Choice]
) -> tuple[int, tuple[Tunable, ...]]:
    """(number of neighbouring pixels of a lane, the tunable "neighbours" if there is a choice)."""
    values = list_counts(space, tile_pixels)
    if len(values) == 1:
        return 1, ()
    meaning = "pixels of a channel that a lane has side by side, and stores as one vector"
    found = pick_number(choices, "neighbours", values, values[0])
    return found, (make_tunable("neighbours", values, values[0], "memory", meaning),)


def _flatten(view: View, size: tuple[int, ...]) -> View | None:
    """The view with its spatial axes merged to one of pixels; None if no single stride walks them."""
    inner = view.strides[-1]
    steps = [math.prod(size[axis + 1 :]) * inner for axis in range(len(size))]
    wide = zip(size, view.strides[2:], steps, strict=True)
    return View(view.offset, (*view.strides[:2], inner)) if all(n == 1 or s == t for n, s, t in wide) else None


def _is_aligned(view: View, count: int) -> bool:
    """True if `count` neighbouring pixels are one aligned vector in memory."""
    return view.strides[-1] == 1 and all(step % count == 0 for step in (view.offset, *view.strides[:-1]))
