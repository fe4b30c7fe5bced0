"""Tails of convolutions in CUDA, in tiles of pixels times channels.

`OverPixels` reduces the pixels of a channel: each warp leaves a state of its pixels for every channel, and a launch
joins them. Tiles then never reach into the next image. `OverChannels` reduces the channels of a pixel, all of which a
warp has in registers: four lanes share a pixel, and the results of its row, one or one for each channel, are stored at
once. `OverWindows` reduces the pixels of small windows; a tile then has its pixels window by window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from foundry.knowledge.compiler.cuda.contractions.tails import (
    Dimension,
    Joined,
    Kept,
    compose,
    define_results,
    finish_row,
    reduce_once,
    row_space,
    row_values,
    state_name,
)
from foundry.knowledge.compiler.cuda.convolutions.pixel_tiles import PixelTiling
from foundry.knowledge.compiler.cuda.convolutions.space import POSITION, ConvSpace
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, register_type
from foundry.knowledge.compiler.cuda.launches import Argument, Launch
from foundry.knowledge.compiler.cuda.rows.steps import EmitPass, ReducePass, steps_of
from foundry.knowledge.compiler.cuda.space import Space, buffers_of, decompose, make_emitter, to_identifier
from foundry.knowledge.compiler.ir.access import tail_outer
from foundry.knowledge.compiler.ir.kernels import ConvKernel, EmitRow, Expr, Let, Reduction, Tail
from foundry.knowledge.compiler.ir.views import leaves
from foundry.knowledge.compiler.schedule.passes import RowStep, split_statistics
from foundry.knowledge.errors import CannotLower

_WARP_ROWS = 16  # neighbouring pixels of a warp
_MOST_WASTE = 1.07  # rows of an image's tiles divided by its pixels; beyond, tiles reach into the next image
_QUARTET = 3  # bits in which the numbers of lanes that share a pixel differ
_COLUMN = 28  # bits in which the numbers of lanes that share a channel differ


class ConvTail(Protocol):
    """The C statements that a tail adds to a tiled convolution, and its launches. `end` is the byte behind its part of
    the workspace."""

    end: int  # byte behind its part of the workspace

    def values(self) -> dict[str, Expr]:
        """C variables that the epilogue assigns for each element, with the values assigned."""

    def note(self, exists: str) -> list[str]:
        """Further statements of the epilogue for each element; `exists`: C test that it exists."""

    def begin(self) -> list[str]:
        """Statements at the begin of a tile."""

    def begin_channel(self) -> list[str]:
        """Statements before the epilogue of a channel."""

    def keep(self) -> list[str]:
        """Statements behind the epilogue of a channel."""

    def finish(self) -> list[str]:
        """Statements behind all channels of a tile."""

    def slots(self) -> list[tuple[str, Argument]]:
        """(C parameter, launch argument) for memory that the tail needs."""

    def launches(self) -> list[tuple[str, Launch]]:
        """(CUDA text, launch) of each kernel behind the convolution."""

    def row_buffers(self) -> tuple[list[str], list[str]]:
        """(names of buffers read, of buffers written) once a row by statements in the convolution's kernel."""


@dataclass(frozen=True)
class Pixels:
    """The order of the product's rows: (image, place among the `counts` outputs of a phase), or window by window.

    If a tail reduces an image's pixels, rows without a pixel fill its last tile, or its last warp's rows: `padded` are
    the rows of an image with these."""

    batch: int
    counts: tuple[int, ...]
    window: tuple[int, ...]
    padded: int  # rows of an image, with those that fill its tiles

    @property
    def of_image(self) -> int:
        """Number of pixels in an image."""
        return math.prod(self._boxes) * math.prod(self.window)

    @property
    def _boxes(self) -> tuple[int, ...]:
        """Number of windows along each axis."""
        return tuple(count // width for count, width in zip(self.counts, self.window, strict=True))

    def find(self) -> list[str]:
        """C statements that define the image and the place in it of row `m`."""
        names = ("photo", "j0", "j1", "j2")
        if self.padded > self.of_image:
            lines = [f"const int photo = m / {self.padded}, spot = m % {self.padded};"]
            return [*lines, *decompose("spot", self.counts, names[1:], "int")]
        if math.prod(self.window) == 1:
            return decompose("m", (self.batch, *self.counts), names, "int")
        parts = ("photo", *(f"q{d}" for d in range(3)), *(f"w{d}" for d in range(3)))
        lines = decompose("m", (self.batch, *self._boxes, *self.window), parts, "int")
        return [*lines, *(f"const int j{d} = q{d} * {self.window[d]} + w{d};" for d in range(3))]

    def exist(self) -> list[str]:
        """The C test that the pixel exists, for use behind the statements of `find`; [] if all do."""
        return [f"spot < {self.of_image}"] if self.padded > self.of_image else []

    def is_pixel(self, row: str) -> str:
        """C test that a row (C text of its number) is a pixel."""
        test = f"{row} < {self.batch * self.padded}"
        return f"{test} && {row} % {self.padded} < {self.of_image}" if self.padded > self.of_image else test


def order_pixels(kernel: ConvKernel, counts: tuple[int, ...], tile: int, *, gathers: bool) -> Pixels:
    """The order of the rows of tiles. `tile`: rows of a tile; `gathers`: a row is an output of every phase."""
    extent = kernel.tail.extent[2:] if kernel.tail else (1, 1, 1)
    whole = extent == kernel.output_size and math.prod(extent) > 1
    found = Pixels(kernel.batch, counts, (1, 1, 1) if whole or gathers else extent, 0)
    pixels = found.of_image
    if not whole:
        return replace(found, padded=pixels)
    tiled = math.ceil(pixels / tile) * tile
    padded = tiled if tiled <= pixels * _MOST_WASTE else math.ceil(pixels / _WARP_ROWS) * _WARP_ROWS
    return replace(found, padded=padded)


class OverPixels:
    """The tail of a convolution that reduces all pixels of a channel. Raises CannotLower for other axes, and for
    positions of extremes.

    `every`: a tile has no pixel that does not exist. Its four warps join their states in shared memory, unless it may
    reach into the next image, or `room` in bytes is too small (`by_rows`)."""

    def __init__(
        self,
        space: ConvSpace,
        tail: Tail,
        pixels: Pixels,
        shape: PixelTiling,
        together: int,
        memory: int,
        *,
        every: bool,
        room: int,
    ) -> None:
        tile = shape.tile_pixels
        kernel = space.kernel
        image_extent, width, *box = tail.extent
        if tuple(box) != kernel.output_size or kernel.out_channels % width:
            raise CannotLower("the tail reduces some of the axes of an image")
        self.space, self.kernel, self.tail = space, kernel, tail
        self.every, padded = every, pixels.padded
        self.tile, self.together, self.sets = tile, together, len(space.found.parts) // together
        shared = shape.turns * 4 * shape.tile_channels * sum(item.state_bytes for item in reduce_once(tail)[0])
        self.by_rows = padded % tile != 0 or shared > room  # every sixteen pixels of a warp have a state of their own
        self.of_image = padded // (_WARP_ROWS if self.by_rows else tile)
        self.shape, self.group = shape, "group_index" if kernel.groups > 1 else "0"
        segments = kernel.batch * self.of_image * self.sets
        channels, images = kernel.out_channels, kernel.batch // image_extent
        one = Dimension(1, 0)
        outer = [Dimension(images, segments // images * channels), Dimension(channels // width, width), one, one, one]
        inner = [Dimension(segments // images, channels), Dimension(width, 1)]
        states = (segments + tile // _WARP_ROWS * self.sets) * channels
        self.joined = Joined(space.name, space.plan, tail, outer=outer, inner=inner, states=states, memory=memory)
        if any(item.indexed for item in self.joined.accumulators):
            raise CannotLower("the place of a pixel is not kept")
        self.end = self.joined.end
        rows = f"BM / 64][2 * {together}" if self.by_rows else f"BM / 64 * 2 * {together}"
        slot = f"i][r * {together} + j" if self.by_rows else f"(i * 2 + r) * {together} + j"
        self.kept = Kept(self.joined.accumulators, tail, rows, slot, "0")

    def values(self) -> dict[str, Expr]:
        """C variables that keep each element's values for the reductions."""
        return self.kept.values()

    def note(self, exists: str) -> list[str]:
        """C statements that record which elements exist."""
        return self.kept.note(exists)

    def begin(self) -> list[str]:
        """Declarations of shared memory for the states of each warpgroup's warps; [] if it is not used."""
        lines = []
        for item in self.joined.accumulators if not self.by_rows else ():
            kind, name = f"S_{to_identifier(item.name)}", f"s_{to_identifier(item.name)}"
            lines.append(f"typedef {item.state} {kind};")
            lines.append(f"SHARED_STATES({kind}, {name}, {self.shape.turns * 4 * self.shape.tile_channels});")
        return lines

    def begin_channel(self) -> list[str]:
        """Declarations of the arrays for a channel's values."""
        return self.kept.declare()

    def keep(self) -> list[str]:
        """C statements that reduce a channel over the pixels of a warp, or each sixteen of them, and keep the state."""
        items, kernel = self.joined.accumulators, self.kernel
        part, lines = "", ["{"]
        if self.by_rows:
            part, lines = "[i]", ["#pragma unroll", "for (int i = 0; i < BM / 64; ++i) {"]
        lines += [f"{item.state} {state_name(item)};" for item in items]
        lines += [self.kept.reduce(item, _COLUMN, part, every=self.every) for item in items]
        if not self.by_rows:
            stores = [f"s_{to_identifier(item.name)}[warp * BN + n - first_n] = {state_name(item)};" for item in items]
            return [*lines, "if (lane < 4) {", *stores, "}", "}"]
        number = f"tile_m * {self.tile // _WARP_ROWS} + i * 4 + warp % 4"
        tests = ["lane < 4", f"n < {self.space.found.out_per_group}"]
        tests += [f"({number}) < {kernel.batch * self.of_image}"]
        return [*lines, f"if ({' && '.join(tests)}) {{", *self._leave(number, "channel"), "}", "}"]

    def _leave(self, segment: str, channel: str) -> list[str]:
        """C statements that write the states of a channel to scratch memory."""
        phase = f" * {self.sets} + phase / {self.together}" if self.sets > 1 else ""
        place = f"((long long)({segment}){phase}) * {self.kernel.out_channels} + {channel}"
        return [self.joined.keep(item, place) for item in self.joined.accumulators]

    def finish(self) -> list[str]:
        """C statements that merge the states of a tile's four warps, one thread a channel; [] if warps keep their
        own."""
        if self.by_rows:
            return []
        items, out = self.joined.accumulators, self.space.found.out_per_group
        lines = ["bulk::meet(1 + group, 128);", "for (int c = threadIdx.x % 128; c < BN; c += 128) {"]
        for item in items:
            shared = f"s_{to_identifier(item.name)}"
            lines.append(f"{item.state} {state_name(item)} = {shared}[group * 4 * BN + c];")
            merge = f"{state_name(item)}.merge({shared}[(group * 4 + other) * BN + c]);"
            lines += ["#pragma unroll", f"for (int other = 1; other < 4; ++other) {merge}"]
        channel = f"{self.group} * {out} + first_n + c"
        lines += [f"if (first_n + c < {out}) {{", *self._leave("tile_m", channel), "}", "}"]
        return [*lines, "bulk::meet(1 + group, 128);"]

    def slots(self) -> list[tuple[str, Argument]]:
        """(C parameter, launch argument) for the states of each reduction."""
        return self.joined.slots()

    def launches(self) -> list[tuple[str, Launch]]:
        """(CUDA text, launch) of each kernel that joins the states."""
        return self.joined.launches()

    def row_buffers(self) -> tuple[list[str], list[str]]:
        """([], []): the launches behind the convolution read and write what a row has once."""
        return [], []


class OverWindows:
    """The tail of a convolution that reduces windows of pixels. Lanes that have one or two of up to sixteen pixels
    share a window, or a thread has all of it: an output of every phase (`gathers`). Raises CannotLower for other
    windows."""

    def __init__(self, space: ConvSpace, tail: Tail, memory: int, *, gathers: bool) -> None:
        kernel, self.box = space.kernel, tail.extent[2:]
        self.size, self.gathers = 1 if gathers else math.prod(self.box), gathers
        side_by_side = self.size in (2, 4, 8, 16) and len(space.found.parts) == 1
        if tail.extent[:2] != (1, 1) or not (gathers or side_by_side):
            raise CannotLower("windows of a tail are not among neighbouring lanes")
        self.space, self.kernel, self.tail, self.end = space, kernel, tail, memory
        self.reductions = [stage for stage in tail.stages if isinstance(stage, Reduction)]
        self.rest: list[RowStep] = [stage for stage in tail.stages if isinstance(stage, Let | EmitRow)]

    def values(self) -> dict[str, Expr]:
        """C variables that take each element's values for the reductions."""
        which = "" if self.gathers else "[i][r]"
        return {
            f"{_window(stage, self.gathers)}{which}": compose(stage.value, self.tail.value) for stage in self.reductions
        }

    def note(self, exists: str) -> list[str]:
        """C statements that add an element of a phase to the window's results; [] if lanes share the windows."""
        lines = []
        for stage in self.reductions if self.gathers else ():
            kept, new = f"{_window(stage)}[i][r]", _window(stage, True)
            lines.append(f"{kept} = w == 0 ? {new} : {_joined(stage, kept, new)};")
        return lines

    def each_phase(self, body: Sequence[str]) -> list[str]:
        """C statements that run `body` for the output of every phase."""
        lines = ["#pragma unroll", "for (int w = 0; w < PHASES; ++w) {"]
        for d, position in enumerate(POSITION):
            below = math.prod(self.box[d + 1 :])
            lines.append(f"const int {position} = place[i][r].{position} + w / {below} % {self.box[d]};")
        lines += [f"{register_type(stage.dtype)} {_window(stage, True)};" for stage in self.reductions]
        return [*lines, *body, "}"]

    def begin(self) -> list[str]:
        """[]: windows need no statements at the begin of a tile."""
        return []

    def begin_channel(self) -> list[str]:
        """Declarations of a channel's values, one for each pixel of a thread."""
        return [f"{register_type(stage.dtype)} {_window(stage)}[BM / 64][2] = {{}};" for stage in self.reductions]

    def keep(self) -> list[str]:
        """C statements that finish each window, by the lane that has its first pixel."""
        lines = ["#pragma unroll", "for (int i = 0; i < BM / 64; ++i)", "#pragma unroll"]
        lines += [f"for (int r = 0; r < {1 if self.size == 16 else 2}; ++r) {{"]
        names = {}
        for stage in self.reductions:
            element, names[stage.name] = f"{_window(stage)}[i][r]", f"n_{to_identifier(stage.name)}"
            if self.size == 16:
                element = _joined(stage, element, f"{_window(stage)}[i][1]")
            lines += [f"{register_type(stage.dtype)} {names[stage.name]} = {element};"]
            for mask in (4, 8, 16)[: self.size.bit_length() - 1]:
                other = f"__shfl_xor_sync(0xffffffffu, {names[stage.name]}, {mask})"
                lines.append(f"{names[stage.name]} = {_joined(stage, names[stage.name], other)};")
        tests = [f"lane / 4 % {min(self.size, 8)} == 0", f"n < {self.space.found.out_per_group}", "place[i][r].exists"]
        lines += [f"if ({' && '.join(tests)}) {{", f"const {self.space.image} image = place[i][r].image;"]
        for position, width in zip(POSITION, self.box, strict=True):
            lines.append(f"const int {position} = place[i][r].{position} / {width};")
        rows = row_space(self.rest, tail_outer(self.kernel), ("image", "channel", *POSITION))
        return [*lines, *finish_row(self.rest, rows, self.space.plan, names), "}", "}"]

    def finish(self) -> list[str]:
        """[]: `keep` has finished the windows of each channel."""
        return []

    def slots(self) -> list[tuple[str, Argument]]:
        """[]: windows need no scratch memory."""
        return []

    def launches(self) -> list[tuple[str, Launch]]:
        """[]: windows are finished in the convolution's kernel."""
        return []

    def row_buffers(self) -> tuple[list[str], list[str]]:
        """(names of buffers read, of buffers written) once a window."""
        values, stores = row_values(self.rest)
        return buffers_of(leaves(values), stores)


def _joined(stage: Reduction, one: str, other: str) -> str:
    """C text of two values reduced to one: their maximum or sum."""
    return f"math::maximum({one}, {other})" if stage.op == "max" else f"{one} + {other}"


def _window(stage: Reduction, element: bool = False) -> str:
    """The C variable of a window's value for a reduction; with `element`, that of a new element."""
    return f"{'new' if element else 'all'}_{to_identifier(stage.name)}"


class OverChannels:
    """The tail of a convolution that reduces the channels of a pixel. `acc` is C text of a sum, which the epilogue
    replaces by the tail's value. Raises CannotLower unless tiles have all channels.

    `columns`: channels of a tile; `together`: phases of a tile; `edge`: C test that the second of two outputs
    exists."""

    def __init__(
        self, space: ConvSpace, tail: Tail, columns: int, acc: str, together: int, edge: str, memory: int
    ) -> None:
        kernel = space.kernel
        if tail.extent[:2] != (1, kernel.out_channels) or kernel.groups > 1 or columns < kernel.out_channels:
            raise CannotLower("a tile has some of the channels of a row")
        self.space, self.tail, self.acc, self.together, self.edge = space, tail, acc, together, edge
        self.guard = f"n < {kernel.out_channels}" if kernel.out_channels % columns else ""
        self.steps = steps_of(split_statistics(tail.stages, kernel.out_channels), online=False)
        self.end = memory
        self.names: dict[str, str] = {}

    def values(self) -> dict[str, Expr]:
        """The C text of a sum, with the tail's value, which replaces it."""
        return {self.acc: self.tail.value}

    def note(self, exists: str) -> list[str]:
        """[]: nothing is recorded of an element."""
        return []

    def begin(self) -> list[str]:
        """[]: pixels need no statements at the begin of a tile."""
        return []

    def begin_channel(self) -> list[str]:
        """[]: values stay in the registers of the sums."""
        return []

    def keep(self) -> list[str]:
        """[]: values stay in the registers of the sums until `finish`."""
        return []

    def slots(self) -> list[tuple[str, Argument]]:
        """[]: rows need no scratch memory."""
        return []

    def launches(self) -> list[tuple[str, Launch]]:
        """[]: rows are finished in the convolution's kernel."""
        return []

    def finish(self) -> list[str]:
        """C statements that finish a pixel's channels, pass by pass over the registers."""
        lines: list[str] = []
        self.names = {"acc": self.acc}
        for number, step in enumerate(self.steps):
            if isinstance(step, ReducePass):
                lines += self._reduce(step, number)
            elif isinstance(step, EmitPass):
                body = make_emitter(self._outputs(), [], self.names, f"y{number}_")
                body.reserve(step.values)
                for emit in step.emits:
                    dtype = self.space.plan.buffers[emit.store.buffer].dtype
                    value = CUDA_DIALECT.store(body.value(emit.store.value), dtype)
                    target = f"b_{emit.store.buffer}[{self._outputs().offset(emit.store.view)}]"
                    body.lines.append(f"if ({self._exists()}) {target} = {value};")
                lines += self._each_channel(body.lines)
            elif isinstance(step, Let):
                lines += self._let(step, number)
            else:
                lines += self._emit_row(step, number)
        return lines

    def _reduce(self, step: ReducePass, number: int) -> list[str]:
        """C statements of one pass that reduces; records the C texts of its results in `names`."""
        size = f"[BM / 64][2][{self.together}]"
        lines = [f"{item.state} {state_name(item)}{size};" for item in step.accumulators]
        body = make_emitter(self._outputs(), [], self.names, f"x{number}_")
        body.reserve(step.values)
        for item in step.accumulators:
            more = ", channel" if item.indexed else ""
            value = f"({item.value_type})({body.value(item.value)})"
            body.lines.append(f"{state_name(item)}[i][r][j].add({value}{more});")
        lines += self._each_channel(body.lines)
        results = define_results(step.accumulators, "[i][r][j]")
        first = define_results(step.accumulators, "[0][0][0]")
        for (name, _), (_, text) in zip(results.texts, first.texts, strict=True):
            lines.append(f"decltype({text}) {name}{size};")
        joins = [f"tails::join_lanes<{_QUARTET}>({state_name(item)}[i][r][j]);" for item in step.accumulators]
        joins += [f"{name}[i][r][j] = {text};" for name, text in results.texts]
        self.names |= {name: f"{text}[i][r][j]" for name, text in results.names.items()}
        return [*lines, *self._each_place(joins)]

    def _let(self, step: Let, number: int) -> list[str]:
        """C statements that compute a named value for each pixel; records its C text in `names`."""
        name = f"n_{to_identifier(step.name)}"
        body = make_emitter(self._rows([step]), [], self.names, f"z{number}_")
        body.lines.append(f"{name}[i][r][j] = {body.value(step.value)};")
        self.names[step.name] = f"{name}[i][r][j]"
        kind = register_type(step.value.dtype)
        return [f"{kind} {name}[BM / 64][2][{self.together}];", *self._each_pixel(body.lines)]

    def _emit_row(self, step: EmitRow, number: int) -> list[str]:
        """C statements that store a value once a pixel; its four lanes take turns by pixel. `number` makes the C names
        unique."""
        space = self._rows([step])
        body = make_emitter(space, [], self.names, f"z{number}_")
        body.store(step.store, space.offset, self.space.plan.buffers[step.store.buffer].dtype)
        test = f"if (((i * 2 + r) * {self.together} + j) % 4 == lane % 4) {{"
        return self._each_pixel([test, *body.lines, "}"])

    def row_buffers(self) -> tuple[list[str], list[str]]:
        """(names of buffers read, of buffers written) once a pixel."""
        values, stores = row_values([step for step in self.steps if isinstance(step, Let | EmitRow)])
        return buffers_of(leaves(values), stores)

    # ------------------------------------------------ spaces and loops

    def _last(self) -> str:
        """C text of an output's position along the last axis."""
        return "(p2 + j)" if self.together > 1 else "p2"

    def _outputs(self) -> Space:
        """The space of the outputs at the present element."""
        return self.space.outputs().with_inner(self._last())

    def _rows(self, rest: Sequence[RowStep]) -> Space:
        """The space of a pixel's row, over which the steps have their views."""
        return row_space(rest, tail_outer(self.space.kernel), ("image", "0", *POSITION[:2], self._last()))

    def _each_place(self, body: Sequence[str]) -> list[str]:
        """C statements that run `body` for every pixel of a thread, by its number (i, r, j)."""
        lines = []
        for name, size in (("i", "BM / 64"), ("r", "2"), ("j", str(self.together))):
            lines += ["#pragma unroll", f"for (int {name} = 0; {name} < {size}; ++{name}) {{"]
        return [*lines, *body, "}", "}", "}"]

    def _each_pixel(self, body: Sequence[str], *, every: bool = False) -> list[str]:
        """C statements that run `body` for every pixel of a thread that exists; with `every`, also for others."""
        place = [
            f"const {self.space.image} image = place[i][r].image;",
            "const int p0 = place[i][r].p0, p1 = place[i][r].p1, p2 = place[i][r].p2;",
        ]
        test = self._exists().replace("p2", "place[i][r].p2")
        return self._each_place(["{" if every else f"if ({test}) {{", *place, *body, "}"])

    def _exists(self) -> str:
        """C test that pixel (i, r, j) exists."""
        return " && ".join(["place[i][r].exists", *([self.edge] if self.edge else [])])

    def _each_channel(self, body: Sequence[str]) -> list[str]:
        """C statements that run `body` for every element of a thread."""
        lines = ["#pragma unroll", "for (int h = 0; h < BN / 8; ++h)", "#pragma unroll"]
        lines += ["for (int side = 0; side < 2; ++side) {", "const int n = h * 8 + lane % 4 * 2 + side, channel = n;"]
        inside = self._each_pixel(body, every=self.space.ignores_pixels())
        return [*lines, *([f"if ({self.guard}) {{", *inside, "}"] if self.guard else inside), "}"]
