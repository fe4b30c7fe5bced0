"""Lowers reads at computed positions: padding from the tensor's own values, interpolation, sampling at grid points."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from foundry.knowledge.compiler.ir.kernels import Apply, Buffer, Const, Expr, Gather, Iota, Load, View
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    cast,
    compute_dtype,
    const,
    flag,
    integer,
    integers,
    rule,
    scalar,
)
from foundry.knowledge.opgraph import DType, Op

_CUBIC = -0.75  # parameter a of Keys' cubic convolution, as in PyTorch's bicubic mode


def read_at(load: Load, sizes: Sequence[int], positions: Mapping[int, Expr]) -> Expr:
    """`load` over the result's points, with some dimensions read at computed positions, which must be inside."""
    kept = tuple(0 if axis in positions else step for axis, step in enumerate(load.view.strides))
    view = View(load.view.offset, kept)
    if len(positions) == 1:
        ((axis, where),) = positions.items()
        return Gather(load.buffer, view, index=where, step=load.view.strides[axis], bound=sizes[axis], dtype=load.dtype)
    where = const(0, "int64")
    bound = 1
    for axis, position in positions.items():
        step = load.view.strides[axis]
        where = apply("add", where, scalar("mul", position, step))
        bound += (sizes[axis] - 1) * step
    return Gather(load.buffer, view, index=where, step=1, bound=bound, dtype=load.dtype)


def forward_load(builder: Builder, tensor: Tensor, op: Op) -> Load:
    """The tensor as one load without negative strides, copied if necessary: positions are counted from the first
    element."""
    _, load = builder.ensure_load(tensor, op)
    if all(step >= 0 for step in load.view.strides):
        return load
    copy = builder.store(f"{op.name}_copy", tensor.shape, tensor.expr, tensor.dtype, op).expr
    assert isinstance(copy, Load)
    return copy


def along(rank: int, axis: int, offset: int = 0) -> Expr:
    """The index along one dimension plus `offset`, over `rank` dimensions."""
    return Iota(View(offset, tuple(int(dim == axis) for dim in range(rank))), "int64")


def between(expr: Expr, low: int, high: int) -> Expr:
    """The expression clamped to [low, high]."""
    return apply("minimum", apply("maximum", expr, const(low, expr.dtype)), const(high, expr.dtype))


# ---------------------------------------------------------------- padding


def _replicated(position: Expr, size: int) -> Expr:
    """The position clamped to the edge."""
    return between(position, 0, size - 1)


def _reflected(position: Expr, size: int) -> Expr:
    """The position reflected at the edges: -1, -2 become 1, 2; size, size + 1 become size - 2, size - 3."""
    last = const(size - 1, "int64")
    beyond = apply("abs", apply("sub", last, apply("abs", position)))
    return apply("sub", last, beyond)


def _wrapped(position: Expr, size: int) -> Expr:
    """The position modulo the size."""
    return apply("remainder", position, const(size, "int64"))


_OUTSIDE: dict[str, Callable[[Expr, int], Expr]] = {
    "replicate": _replicated,
    "reflect": _reflected,
    "circular": _wrapped,
}


def pad_from_inside(builder: Builder, op: Op, mode: str) -> None:
    """Lowers padding whose values come from the tensor itself; `mode` is "replicate", "reflect" or "circular"."""
    source = builder.tensor_at(op, 0, "self")
    pads = integers(op, 1, "pad") or []
    rank = len(source.shape)
    positions = {}
    for pair in range(len(pads) // 2):
        axis = rank - 1 - pair
        if pads[2 * pair] or pads[2 * pair + 1]:
            positions[axis] = _OUTSIDE[mode](along(rank, axis, -pads[2 * pair]), source.shape[axis])
    if not positions:
        builder.bind(op, source)
        return
    builder.pointwise(op, read_at(forward_load(builder, source, op), source.shape, positions))


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(builder: Builder, op: Op) -> None:
    """Lowers reflection padding."""
    pad_from_inside(builder, op, "reflect")


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(builder: Builder, op: Op) -> None:
    """Lowers replication padding."""
    pad_from_inside(builder, op, "replicate")


# ---------------------------------------------------------------- interpolation


@dataclass(frozen=True)
class _Axis:
    """One resized dimension, and how an index of the result maps to the source."""

    number: int
    size: int
    target: int
    factor: float | None  # scale factor given by the caller
    corners: bool
    dtype: DType

    @property
    def scale(self) -> float:
        """Source elements per result element."""
        if self.corners:
            return (self.size - 1) / (self.target - 1) if self.target > 1 else 0.0
        return 1.0 / self.factor if self.factor else self.size / self.target

    def position(self, rank: int) -> Expr:
        """The source position of the centre of each result element."""
        index = cast(along(rank, self.number), self.dtype)
        if self.corners:
            return scalar("mul", index, self.scale)
        return scalar("sub", scalar("mul", scalar("add", index, 0.5), self.scale), 0.5)


def enlarged_axes(op: Op, source: Tensor, *, corners: bool, has_corners: bool) -> list[_Axis]:
    """The spatial dimensions of a call of an upsampling operator: sizes before and after, and factors, if the call has
    them."""
    target = op.outputs[0].spec.shape
    at = 3 if has_corners else 2
    if op.target.endswith(".vec"):
        given = argument(op, at, "scale_factors")
        factors = list(given) if isinstance(given, list) else [None] * (len(target) - 2)
    else:
        factors = [*op.args[at:], *[None] * len(target)][: len(target) - 2]
    axes = []
    for axis, factor in enumerate(factors, 2):
        number = float(factor) if isinstance(factor, int | float) else None
        dtype = compute_dtype(source.dtype)
        axes.append(
            _Axis(axis, size=source.shape[axis], target=target[axis], factor=number, corners=corners, dtype=dtype)
        )
    return axes


@rule("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def _upsample_exact(builder: Builder, op: Op) -> None:
    """Lowers nearest-exact upsampling."""
    upsample_nearest(builder, op, 0.5)


def upsample_nearest(builder: Builder, op: Op, middle: float) -> None:
    """Reads the element at floor((index + middle) * scale), which PyTorch computes in float32."""
    source = builder.tensor_at(op, 0, "self")
    rank = len(source.shape)
    positions = {}
    for axis in enlarged_axes(op, source, corners=False, has_corners=False):
        index: Expr = cast(along(rank, axis.number), "float32")
        index = scalar("add", index, middle) if middle else index
        found = cast(apply("floor", scalar("mul", index, axis.scale)), "int64")
        positions[axis.number] = between(found, 0, axis.size - 1)
    builder.pointwise(op, read_at(forward_load(builder, source, op), source.shape, positions))


# Operators that positions and weights of an axis are made of, where they stand in the text of the kernel.
_NUMBERS: Mapping[str, Callable[..., float]] = {
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "maximum": max, "minimum": min},
    **{"floor": math.floor, "cast": lambda value: value},
}
_Taps = list[tuple[Expr, Expr]]  # positions and their weights


def _linear_taps(position: Expr, size: int) -> _Taps:
    """The two neighbours of a position and their linear weights."""
    low = apply("maximum", position, const(0.0, position.dtype))
    first = apply("minimum", apply("floor", low), const(float(size - 1), position.dtype))
    share = apply("minimum", apply("sub", low, first), const(1.0, position.dtype))
    at = cast(first, "int64")
    return [
        (at, scalar("sub", share, 1.0, reverse=True)),
        (between(scalar("add", at, 1), 0, size - 1), share),
    ]


def _cubic_taps(position: Expr, size: int) -> _Taps:
    """The four neighbours of a position and their weights by Keys' cubic convolution; those outside are the edge's."""
    floor = apply("floor", position)
    share = apply("sub", position, floor)
    at = cast(floor, "int64")

    def near(x: Expr) -> Expr:  # ((a + 2) x - (a + 3)) x x + 1
        """The cubic weight of a neighbour at distance `x` up to 1."""
        inner = scalar("sub", scalar("mul", x, _CUBIC + 2), _CUBIC + 3)
        return scalar("add", apply("mul", apply("mul", inner, x), x), 1.0)

    def far(x: Expr) -> Expr:  # ((a x - 5 a) x + 8 a) x - 4 a
        """The cubic weight of a neighbour at distance `x` from 1 to 2."""
        inner = apply("mul", scalar("sub", scalar("mul", x, _CUBIC), 5 * _CUBIC), x)
        return scalar("sub", apply("mul", scalar("add", inner, 8 * _CUBIC), x), 4 * _CUBIC)

    other = scalar("sub", share, 1.0, reverse=True)
    weights = [far(scalar("add", share, 1.0)), near(share), near(other), far(scalar("add", other, 1.0))]
    return [(between(scalar("add", at, step), 0, size - 1), weight) for step, weight in enumerate(weights, -1)]


def _table(builder: Builder, op: Op, axis: _Axis, expr: Expr) -> Expr:
    """The values of an expression of one index, as a constant buffer. Compilers vectorise loops that load them, but
    not loops that round and compare to compute them."""
    name = builder.identifier(f"{op.name}_{axis.number}_{len(builder.buffers)}")
    data = tuple(_value(expr, index) for index in range(axis.target))
    builder.buffers[name] = Buffer(
        name, shape=(axis.target,), strides=(1,), dtype=expr.dtype, role="constant", source="", data=data
    )
    rank = len(op.outputs[0].spec.shape)
    return Load(name, View(0, tuple(int(dim == axis.number) for dim in range(rank))), expr.dtype)


def _value(expr: Expr, index: int) -> float:
    """The value of an expression at an index, in float64."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Iota):
        return index
    assert isinstance(expr, Apply)
    found = _NUMBERS[expr.op](*(_value(argument, index) for argument in expr.args))
    return int(found) if expr.dtype == "int64" else float(found)


def _interpolate(builder: Builder, op: Op, taps: Callable[[Expr, int], _Taps]) -> None:
    """Emits the weighted sum of the neighbours that `taps` gives, in each resized dimension."""
    source = builder.tensor_at(op, 0, "self")
    load = forward_load(builder, source, op)
    rank = len(source.shape)
    axes = enlarged_axes(op, source, corners=flag(op, 2, "align_corners"), has_corners=True)
    points: list[tuple[dict[int, Expr], list[Expr]]] = [({}, [])]
    for axis in axes:
        found = taps(axis.position(rank), axis.size)
        if axis.target <= builder.forms.longest_table:
            found = [(_table(builder, op, axis, at), _table(builder, op, axis, by)) for at, by in found]
        points = [({**at, axis.number: where}, [*by, weight]) for at, by in points for where, weight in found]
    builder.pointwise(op, _weighted(load, source.shape, points))


def _weighted(
    load: Load, sizes: Sequence[int], points: Sequence[tuple[dict[int, Expr], list[Expr]]], *, skips: bool = False
) -> Expr:
    """The sum of the elements at `points`, each times the product of its weights. With `skips`, elements of weight 0
    are ignored, NaN included: they stand for points outside."""
    terms = []
    for positions, weights in points:
        weight = reduce(lambda left, right: apply("mul", left, right), weights)
        term = apply("mul", cast(read_at(load, sizes, positions), weight.dtype), weight)
        if skips:
            none = const(0.0, weight.dtype)
            term = apply("where", apply("ne", weight, none, dtype="bool"), term, none, dtype=weight.dtype)
        terms.append(term)
    return reduce(lambda left, right: apply("add", left, right), terms)


@rule("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _upsample_linear(builder: Builder, op: Op) -> None:
    """Lowers linear, bilinear and trilinear upsampling."""
    _interpolate(builder, op, _linear_taps)


@rule("upsample_bicubic2d")
def _upsample_cubic(builder: Builder, op: Op) -> None:
    """Lowers bicubic upsampling."""
    _interpolate(builder, op, _cubic_taps)


# ---------------------------------------------------------------- grids of points

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


@rule("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(builder: Builder, op: Op) -> None:
    """Lowers grid_sampler: the input at points whose coordinates run from -1 to 1; points outside read zeros, the
    border or a reflection. Raises Unsupported for bicubic mode."""
    source, grid = builder.tensor(op.args[0]), builder.tensor(op.args[1])
    mode, padding = integer(op, 2, "interpolation_mode"), integer(op, 3, "padding_mode")
    if mode not in (_BILINEAR, _NEAREST):
        raise Unsupported("grid_sample by cubes")
    corners = flag(op, 4, "align_corners")
    load = forward_load(builder, source, op)
    grid_load = builder.ensure_load(grid, op)[1]
    rank = len(source.shape)
    points: list[tuple[dict[int, Expr], list[Expr]]] = [({}, [])]
    for axis in range(2, rank):
        where = rank - 1 - axis  # the last coordinate of a point is that of the first dimension
        steps = grid_load.view.strides
        view = View(grid_load.view.offset + where * steps[-1], (steps[0], 0, *steps[1:-1]))
        coordinate = cast(Load(grid_load.buffer, view, grid_load.dtype), compute_dtype(grid_load.dtype))
        found = _grid_taps(coordinate, source.shape[axis], mode, padding, corners=corners)
        points = [({**at, axis: position}, [*by, weight]) for at, by in points for position, weight in found]
    builder.pointwise(op, _weighted(load, source.shape, points, skips=padding == _ZEROS))


def _grid_taps(coordinate: Expr, size: int, mode: int, padding: int, *, corners: bool) -> _Taps:
    """Positions that a grid coordinate reads along one dimension, with their weights: one for nearest, else two.

    Coordinates in [-1, 1] span the elements' centres (`corners`) or edges; padding is by zeros or by the border.
    """
    shifted = scalar("add", coordinate, 1.0)
    if corners:
        position = scalar("mul", shifted, (size - 1) / 2)
    else:
        position = scalar("mul", scalar("sub", scalar("mul", shifted, float(size)), 1.0), 0.5)
    dtype = position.dtype
    if padding == _REFLECTION:
        position = _mirrored(position, size, corners=corners)
    if padding != _ZEROS:  # NaN is at the beginning, as PyTorch has it (clip_coordinates in GridSamplerKernel.cpp)
        first, last = const(0.0, dtype), const(float(size - 1), dtype)
        begun = apply("where", apply("ge", position, first, dtype="bool"), position, first, dtype=dtype)
        position = apply("minimum", begun, last)
    place = partial(_inside, size=size) if padding == _ZEROS else partial(_up_to, size=size)
    if mode == _NEAREST:
        return [place(apply("round", position), const(1.0, dtype))]
    low = apply("floor", position)
    share = apply("sub", position, low)
    return [place(low, scalar("sub", share, 1.0, reverse=True)), place(scalar("add", low, 1.0), share)]


def _mirrored(position: Expr, size: int, *, corners: bool) -> Expr:
    """A position mirrored at the first and last elements (with `corners`), or at their outer edges, into between."""
    dtype = position.dtype
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if not span:
        return const(0.0, dtype)
    distance = apply("abs", scalar("sub", position, low))
    rest = scalar("fmod", distance, span)
    flips = apply("floor", scalar("div", distance, span))
    is_even = apply("eq", scalar("fmod", flips, 2.0), const(0.0, dtype), dtype="bool")
    there, back = scalar("add", rest, low), scalar("sub", rest, span + low, reverse=True)
    return apply("where", is_even, there, back, dtype=dtype)


def _up_to(position: Expr, weight: Expr, size: int) -> tuple[Expr, Expr]:
    """The position as an integer, and its weight; one past the last element (weight 0) reads the last one."""
    return cast(apply("minimum", position, const(float(size - 1), position.dtype)), "int64"), weight


def _inside(position: Expr, weight: Expr, size: int) -> tuple[Expr, Expr]:
    """The position as an integer, and its weight: 0 for positions outside and for NaN."""
    dtype = position.dtype
    last = const(float(size - 1), dtype)
    low = apply("ge", position, const(0.0, dtype), dtype="bool")
    is_there = apply("logical_and", low, apply("le", position, last, dtype="bool"), dtype="bool")
    none = const(0.0, dtype)
    at = cast(apply("where", is_there, position, none, dtype=dtype), "int64")
    return at, apply("where", is_there, weight, none, dtype=dtype)


# ---------------------------------------------------------------- windows as columns


@rule("im2col")
def _columns(builder: Builder, op: Op) -> None:
    """Lowers im2col: windows of an image as columns, (batch, channels * window, windows), with zeros outside. Raises
    Unsupported for an image without a batch."""
    source = builder.tensor(op.args[0])
    kernel, dilation, padding, stride = (integers(op, at, "sizes") or [1, 1] for at in range(1, 5))
    if len(source.shape) != 4:
        raise Unsupported("columns of one image")
    load = forward_load(builder, source, op)
    batch, channels, *sizes = source.shape
    out = [
        (size + 2 * pad - step * (taps - 1) - 1) // move + 1
        for size, taps, step, pad, move in zip(sizes, kernel, dilation, padding, stride, strict=True)
    ]
    shape = (batch, channels, *kernel, *out)
    rank = len(shape)
    positions: dict[int, Expr] = {}
    inside: Expr = const(True, "bool")
    for axis in range(2):
        strides = [0] * rank
        strides[2 + axis], strides[4 + axis] = dilation[axis], stride[axis]
        where: Expr = Iota(View(-padding[axis], tuple(strides)), "int64")
        positions[2 + axis] = between(where, 0, sizes[axis] - 1)
        if padding[axis]:
            low = scalar("ge", where, 0)
            high = scalar("lt", where, sizes[axis])
            test = apply("logical_and", cast(low, "bool"), cast(high, "bool"), dtype="bool")
            inside = apply("logical_and", inside, test, dtype="bool")
    spread = Load(load.buffer, View(load.view.offset, (*load.view.strides, 0, 0)), load.dtype)
    value = read_at(spread, source.shape, positions)
    if any(padding):
        value = apply("where", inside, value, const(0.0, value.dtype), dtype=value.dtype)
    whole = builder.store(op.outputs[0].name, shape, value, source.dtype, op)
    flat = (batch, channels * math.prod(kernel), math.prod(out))
    builder.bind(op, builder.reshape(whole, flat, op))
