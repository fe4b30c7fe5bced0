"""Index arithmetic of convolutions, for every target: the taps of each output, and their places in a staged band.

Along one axis with stride s, dilation d and padding p, output o reads inputs o * s + k * d - p. This equals (o + k * d
// s) * s + k * d % s - p: the inputs of one phase (k * d mod s) are contiguous for consecutive o.

A transposed convolution adds input i to outputs i * s - p + k * d. The outputs of one phase (o mod s) are a
convolution of stride 1. Its taps are those for which (o + p - k * d) is a multiple of s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Emit, EmitRow, Let, Reduction, Tail, View


@dataclass(frozen=True)
class Tap:
    """Kernel element `index` reads staged position `shift` + output index, in input phase `phase`."""

    index: int
    phase: int
    shift: int


@dataclass(frozen=True)
class AxisPart:
    """The outputs start, start + step, ... (`count` of them), which all have the same taps."""

    start: int
    step: int
    count: int
    taps: tuple[Tap, ...]


@dataclass(frozen=True)
class Axis:
    """One spatial axis. Staged position l of phase f holds input l * in_step + f - lead."""

    in_size: int
    in_step: int
    lead: int
    parts: tuple[AxisPart, ...]

    @property
    def count(self) -> int:
        """Number of outputs of the longest part."""
        return max(part.count for part in self.parts)

    @property
    def reach(self) -> int:
        """The largest distance, in staged positions, from an output's index to the position that one of its taps
        reads."""
        return max((tap.shift for part in self.parts for tap in part.taps), default=0)

    @property
    def phases(self) -> tuple[int, ...]:
        """The input phases that taps read."""
        return tuple(sorted({tap.phase for part in self.parts for tap in part.taps})) or (0,)

    @property
    def stays_inside(self) -> bool:
        """True if no tap reads padding, for any output up to the count of the longest part."""
        reads = [tap.shift * self.in_step + tap.phase - self.lead for part in self.parts for tap in part.taps]
        return not reads or (min(reads) >= 0 and max(reads) + (self.count - 1) * self.in_step < self.in_size)

    def shared_zeros(self) -> int:
        """Number of zeros at the end of a staged row that may also serve as zeros at the start of the next row."""
        length = self.count + self.reach
        starts = [max(0, math.ceil((self.lead - phase) / self.in_step)) for phase in self.phases]
        ends = [max(0, length - math.ceil((self.in_size + self.lead - phase) / self.in_step)) for phase in self.phases]
        return min(*starts, *ends)


def forward_axis(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Axis:
    """An axis of an ordinary convolution, with one part."""
    taps = tuple(Tap(k, k * dilation % stride, k * dilation // stride) for k in range(kernel))
    return Axis(size, stride, padding, (AxisPart(0, 1, out, taps),))


def transposed_axis(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Axis:
    """An axis of a transposed convolution, with one part for each output phase."""
    parts = []
    for start in range(min(stride, out)):
        offsets = [(k, start + padding - k * dilation) for k in range(kernel)]
        taps = tuple(Tap(k, 0, offset // stride) for k, offset in offsets if offset % stride == 0)
        parts.append(AxisPart(start, stride, math.ceil((out - start) / stride), taps))
    lead = max(0, -min((tap.shift for part in parts for tap in part.taps), default=0))
    lifted = [replace(part, taps=tuple(replace(tap, shift=tap.shift + lead) for tap in part.taps)) for part in parts]
    return Axis(size, 1, lead, tuple(lifted))


@dataclass(frozen=True)
class Geometry:
    """A convolution over three spatial axes, and its tensors' strides over (batch, channel, depth, height, width)."""

    kernel: ConvKernel  # rewritten to three spatial dimensions
    axes: tuple[Axis, Axis, Axis]

    @property
    def in_per_group(self) -> int:
        """Input channels of one group."""
        return self.kernel.in_channels // self.kernel.groups

    @property
    def out_per_group(self) -> int:
        """Output channels of one group."""
        return self.kernel.out_channels // self.kernel.groups

    @property
    def phases(self) -> list[tuple[int, ...]]:
        """Combinations of the axes' input phases."""
        return list(product(*(axis.phases for axis in self.axes)))

    @property
    def parts(self) -> list[tuple[AxisPart, ...]]:
        """Combinations of the axes' parts."""
        return list(product(*(axis.parts for axis in self.axes)))

    @property
    def most_taps(self) -> int:
        """The largest number of taps of any part."""
        return max(math.prod(len(axis.taps) for axis in part) for part in self.parts)

    @property
    def reads_in_place(self) -> bool:
        """True if the input's own rows can serve as the staged band: no padding, stride 1, contiguous along the
        width."""
        fits = all(
            axis.in_step == 1 and axis.lead == 0 and len(axis.parts) == 1 and axis.count + axis.reach <= axis.in_size
            for axis in self.axes
        )
        return fits and self.kernel.x_strides[-1] == 1


def flatten_pixels(kernel: ConvKernel) -> ConvKernel:
    """A 1x1 convolution over contiguous images as a one-dimensional one over all their pixels; others unchanged."""
    ones = all((k, s, p) == (1, 1, 0) for k, s, p in zip(kernel.kernel, kernel.stride, kernel.padding, strict=True))
    sizes = kernel.output_size
    if not ones or len(sizes) == 1 or sizes != kernel.input_size or kernel.tail is not None:
        return kernel

    def contiguous(strides: tuple[int, ...]) -> bool:
        """True if each spatial stride is the next one times its size, so that the pixels form one run."""
        pairs = zip(strides[2:-1], strides[3:], sizes[1:], strict=True)
        return all(outer == inner * size for outer, inner, size in pairs)

    seen = views.stored_views(kernel.stores)
    if not contiguous(kernel.x_strides) or not all(contiguous(view.strides) for view in seen):
        return kernel

    def flat(view: View) -> View:
        """The view with strides for batch, channel and the last spatial axis only."""
        return View(view.offset, (*view.strides[:2], view.strides[-1]))

    pixels = (math.prod(sizes),)
    return replace(
        kernel,
        input_size=pixels,
        output_size=pixels,
        kernel=(1,),
        stride=(1,),
        padding=(0,),
        dilation=(1,),
        x_strides=(*kernel.x_strides[:2], kernel.x_strides[-1]),
        stores=tuple(views.map_store(store, flat) for store in kernel.stores),
    )


def three_dimensional(kernel: ConvKernel) -> ConvKernel:
    """The same convolution with spatial axes of size 1 put in front."""
    missing = 3 - len(kernel.output_size)
    if missing == 0:
        return kernel

    def widen(view: View) -> View:
        """The view with spatial axes of stride 0 in front, up to three."""
        return View(view.offset, (*view.strides[:2], *(0,) * missing, *view.strides[2:]))

    ones, zeros = (1,) * missing, (0,) * missing
    return replace(
        kernel,
        input_size=ones + kernel.input_size,
        output_size=ones + kernel.output_size,
        kernel=ones + kernel.kernel,
        stride=ones + kernel.stride,
        padding=zeros + kernel.padding,
        dilation=ones + kernel.dilation,
        x_strides=(*kernel.x_strides[:2], *zeros, *kernel.x_strides[2:]),
        stores=tuple(views.map_store(store, widen) for store in kernel.stores),
        tail=None if kernel.tail is None else _widen_tail(kernel.tail, missing),
    )


def _widen_tail(tail: Tail, missing: int) -> Tail:
    """The epilogue with `missing` more spatial axes, of size 1."""

    def widen(view: View) -> View:
        """The view with spatial axes of stride 0 in front, up to three."""
        return View(view.offset, (*view.strides[:2], *(0,) * missing, *view.strides[2:]))

    stages: list[Reduction | Let | Emit | EmitRow] = []
    for stage in tail.stages:
        if isinstance(stage, Emit | EmitRow):
            stages.append(replace(stage, store=views.map_store(stage.store, widen)))
        else:
            stages.append(replace(stage, value=views.map_views(stage.value, widen)))
    extent = (*tail.extent[:2], *(1,) * missing, *tail.extent[2:])
    return Tail(views.map_views(tail.value, widen), extent, tuple(stages))


def geometry(kernel: ConvKernel) -> Geometry:
    """The geometry of any convolution, brought to three spatial axes."""
    kernel = three_dimensional(flatten_pixels(kernel))
    make = transposed_axis if kernel.transposed else forward_axis
    sizes = zip(
        kernel.input_size,
        kernel.output_size,
        kernel.kernel,
        kernel.stride,
        kernel.padding,
        kernel.dilation,
        strict=True,
    )
    depth, height, width = (make(*size) for size in sizes)
    return Geometry(kernel, (depth, height, width))


@dataclass(frozen=True)
class Staging:
    """Strides in elements of a staged band, or of the input itself if it is read in place."""

    pitch: int
    depth_stride: int
    phase_stride: int
    channel_stride: int
    stage_depth: int
    stage_height: int
    shared_zeros: int

    def offset(self, found: Geometry, taps: tuple[Tap, ...]) -> int:
        """The element offset of a combination of taps."""
        phase = found.phases.index(tuple(tap.phase for tap in taps))
        depth, height, width = (tap.shift for tap in taps)
        return phase * self.phase_stride + depth * self.depth_stride + height * self.pitch + width


def staging(found: Geometry, band: tuple[int, int, int], copied: bool) -> Staging:
    """The layout of the staged band for (depth, rows, columns) outputs; with `copied` false, that of the input in
    place."""
    depth, height, width = found.axes
    if not copied:
        _, channel, by_depth, by_row, _ = found.kernel.x_strides
        return Staging(
            by_row if height.count > 1 else width.in_size,
            depth_stride=by_depth,
            phase_stride=0,
            channel_stride=channel,
            stage_depth=0,
            stage_height=0,
            shared_zeros=0,
        )
    full_rows = band[2] >= width.count
    shared = width.shared_zeros() if full_rows else 0
    pitch = band[2] + width.reach - shared
    stage_depth, stage_height = band[0] + depth.reach, band[1] + height.reach
    plane = stage_height * pitch
    phase = stage_depth * plane
    return Staging(
        pitch,
        depth_stride=plane,
        phase_stride=phase,
        channel_stride=len(found.phases) * phase,
        stage_depth=stage_depth,
        stage_height=stage_height,
        shared_zeros=shared,
    )


def tap_tables(found: Geometry, layout: Staging) -> list[tuple[list[int], list[int]]]:
    """(element offsets of a part's taps in the staged band, their row-major positions in the kernel) for each part."""
    _, high, wide = found.kernel.kernel
    tables = []
    for part in found.parts:
        taps = list(product(*(axis.taps for axis in part)))
        offsets = [layout.offset(found, tap) for tap in taps]
        tables.append((offsets, [(d.index * high + h.index) * wide + w.index for d, h, w in taps]))
    return tables
