"""Lowers convolutions: the input is read in its own layout, and the bias is added in the epilogue."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import ConvKernel, Expr, GemmKernel, Load, Named, Store, View
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    cast,
    compute_dtype,
    flag,
    integer,
    integers,
    rule,
)
from foundry.knowledge.opgraph import Op

POINTWISE_AS_GEMM = "pointwise-convolution-as-gemm"
LEAST_OF_PATCHES = 32  # fewest output channels, and fewest elements of a patch, for a GEMM


def _each(op: Op, index: int, name: str, default: int, rank: int) -> tuple[int, ...]:
    """A parameter for each spatial dimension; one number stands for all."""
    found = integers(op, index, name) or [default]
    return tuple(found * rank if len(found) == 1 else found)


@dataclass(frozen=True)
class _Geometry:
    """Stride, padding and dilation for each spatial dimension, the number of groups, and if the convolution is
    transposed."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool


def _geometry(op: Op, kernel: tuple[int, ...]) -> _Geometry:
    """The geometry of a call. The three operator families order their arguments differently."""
    rank = len(kernel)
    transposed = op.kind.startswith("conv_transpose")
    if op.kind == "convolution":
        transposed = flag(op, 6, "transposed")
        dilation = _each(op, 5, "dilation", 1, rank)
        groups = integer(op, 8, "groups", 1)
    elif transposed:
        groups = integer(op, 6, "groups", 1)
        dilation = _each(op, 7, "dilation", 1, rank)
    else:
        dilation = _each(op, 5, "dilation", 1, rank)
        groups = integer(op, 6, "groups", 1)
    padding = _padding(op, kernel, dilation, rank)
    return _Geometry(_each(op, 3, "stride", 1, rank), padding, dilation, groups, transposed)


@rule("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolution(builder: Builder, op: Op) -> None:
    """Lowers convolutions of one to three spatial dimensions, transposed ones too: as a GEMM if possible and asked
    for, else as a ConvKernel."""
    source, weight = builder.tensor_at(op, 0, "input"), builder.tensor_at(op, 1, "weight")
    bias = builder.optional(op, 2, "bias")
    rank = len(weight.shape) - 2
    geometry = _geometry(op, weight.shape[2:])
    shape = op.outputs[0].spec.shape
    if len(source.shape) == rank + 1:
        source = builder.reshape(source, (1, *source.shape), op)
        shape = (1, *shape)
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    result: Expr = Named("acc", dtype)
    if bias is not None:
        column = builder.reshape(bias, (bias.numel,) + (1,) * rank, op)
        result = apply("add", result, cast(builder.expand(column, shape, op).expr, dtype))
    plain = _Geometry((1,) * rank, (0,) * rank, geometry.dilation, 1, False)
    if geometry == plain and weight.shape[2:] == (1,) * rank:
        builder.applicable.append(POINTWISE_AS_GEMM)
        if POINTWISE_AS_GEMM in builder.rewrites and _as_gemm(builder, op, source, weight, shape, result=result):
            return
    if _has_patches(geometry, weight.shape) and _patches_as_gemm(
        builder, op, source, weight, shape, result=result, geometry=geometry
    ):
        return
    _emit(builder, op, source, weight, shape, result=result, geometry=geometry)


def _emit(
    builder: Builder,
    op: Op,
    source: Tensor,
    weight: Tensor,
    shape: tuple[int, ...],
    result: Expr,
    geometry: _Geometry,
) -> None:
    """Emits a ConvKernel that stores `result`, and binds the output to its buffer.

    Operands are put into memory first. A depthwise output gets channels last, if the input has them and the target
    wants that.
    """
    source, load = builder.ensure_load(source, op)
    kernel = builder.contiguous(weight, op)
    assert isinstance(kernel.expr, Load)
    value = op.outputs[0]
    depthwise = geometry.groups == source.shape[1] == shape[1] > 1 and not geometry.transposed
    channels_last = builder.forms.depthwise_channels_last and load.view.strides[1] == 1
    if depthwise and channels_last and value.spec.shape == shape:
        target = _with_channels_last(builder, op, shape)
    else:
        target = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
    assert isinstance(target.expr, Load)
    stored = target.expr.view if value.spec.shape == shape else views.identity(shape)
    builder.tensors[value.name] = target
    builder.emit(
        ConvKernel(
            name=f"k_{target.expr.buffer}",
            batch=shape[0],
            in_channels=source.shape[1],
            out_channels=shape[1],
            groups=geometry.groups,
            input_size=source.shape[2:],
            output_size=shape[2:],
            kernel=weight.shape[2:],
            stride=geometry.stride,
            padding=geometry.padding,
            dilation=geometry.dilation,
            transposed=geometry.transposed,
            x=load.buffer,
            x_offset=load.view.offset,
            x_strides=load.view.strides,
            weight=kernel.expr.buffer,
            stores=(Store(target.expr.buffer, stored, cast(result, value.spec.dtype)),),
            dtype=result.dtype,
            ops=(op.name,),
        )
    )


def _with_channels_last(builder: Builder, op: Op, shape: tuple[int, ...]) -> Tensor:
    """The result's buffer with channels contiguous, because a depthwise result is computed from an input of that
    layout."""
    value = op.outputs[0]
    stored = builder.buffer(value.name, (shape[0], *shape[2:], shape[1]), value.spec.dtype)
    return builder.permute(stored, (0, len(shape) - 1, *range(1, len(shape) - 1)), op)


def _padding(op: Op, kernel: tuple[int, ...], dilation: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The padding for each spatial dimension. Raises Unsupported for "same" padding that differs between the two
    sides."""
    given = argument(op, 4, "padding", 0)
    if given == "valid":
        return (0,) * rank
    if given == "same":
        total = [reach * (size - 1) for reach, size in zip(dilation, kernel, strict=True)]
        if any(pad % 2 for pad in total):
            raise Unsupported("uneven padding on the two sides")
        return tuple(pad // 2 for pad in total)
    return _each(op, 4, "padding", 0, rank)


def _as_gemm(builder: Builder, op: Op, source: Tensor, weight: Tensor, shape: tuple[int, ...], result: Expr) -> bool:
    """Lowers a 1x1 convolution as weight (out, in) times input (in, positions) for each image. False if the layout
    does not allow it."""
    value = op.outputs[0]
    dtype = compute_dtype(value.spec.dtype)
    batch, channels = source.shape[:2]
    positions = source.numel // (batch * channels)
    space = (batch, shape[1], positions)
    try:
        flat = (batch, channels, positions)
        right = cast(views.remap(source.expr, source.shape, views.identity(flat), flat), dtype)
        stored = views.remap(result, shape, views.identity(space), space)
    except views.NotAffine:
        return False
    matrix = builder.reshape(weight, weight.shape[:2], op)
    left = cast(builder.expand(matrix, (batch, *weight.shape[:2]), op).expr, dtype)
    _emit_gemm(builder, op, space, k=channels, left=left, right=right, stored=stored)
    return True


def _has_patches(geometry: _Geometry, weight: tuple[int, ...]) -> bool:
    """True if a convolution is one product over separate patches, as in patch embedding.

    It has no padding and one group, is not transposed, and its stride is at least the window, above 1 in some
    dimension. Channels and window are large enough for a GEMM's tiles.
    """
    kernel = weight[2:]
    plain = not geometry.transposed and geometry.groups == 1 and not any(geometry.padding)
    apart = all(size == 1 or reach == 1 for size, reach in zip(kernel, geometry.dilation, strict=True))
    apart = apart and all(step >= size for step, size in zip(geometry.stride, kernel, strict=True))
    return plain and apart and max(geometry.stride) > 1 and min(weight[0], math.prod(weight[1:])) >= LEAST_OF_PATCHES


def _patches_as_gemm(
    builder: Builder,
    op: Op,
    source: Tensor,
    weight: Tensor,
    shape: tuple[int, ...],
    result: Expr,
    geometry: _Geometry,
) -> bool:
    """Lowers a convolution of non-overlapping patches: copies patches to rows, then multiplies weight (out, k) by
    (k, positions) for each image. False if the bias does not allow it."""
    kernel = weight.shape[2:]
    positions = math.prod(shape[2:])
    space = (shape[0], shape[1], positions)
    try:
        stored = views.remap(result, shape, views.identity(space), space)
    except views.NotAffine:
        return False
    source, load = builder.ensure_load(source, op)
    image, channel, *steps = load.view.strides
    walked = (step * jump for step, jump in zip(steps, geometry.stride, strict=True))
    view = View(load.view.offset, (image, *walked, channel, *steps))
    cut = (shape[0], *shape[2:], source.shape[1], *kernel)
    patches = builder.store(f"{op.name}_patches", cut, replace(load, view=view), source.dtype, op)
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    k = math.prod(weight.shape[1:])
    rows = builder.reshape(patches, (shape[0], positions, k), op)
    matrix = builder.reshape(weight, (shape[1], k), op)
    left = cast(builder.expand(matrix, (shape[0], shape[1], k), op).expr, dtype)
    right = cast(builder.permute(rows, (0, 2, 1), op).expr, dtype)
    _emit_gemm(builder, op, space, k, left, right=right, stored=stored)
    return True


def _emit_gemm(
    builder: Builder, op: Op, space: tuple[int, int, int], k: int, left: Expr, right: Expr, stored: Expr
) -> None:
    """Emits a product for each image, over (image, output channel, position), and binds the output to its buffer."""
    value = op.outputs[0]
    target = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
    assert isinstance(target.expr, Load)
    builder.tensors[value.name] = target
    store = Store(target.expr.buffer, views.identity(space), cast(stored, value.spec.dtype))
    builder.emit(
        GemmKernel(
            name=f"k_{target.expr.buffer}",
            batch=space[:1],
            m=space[1],
            n=space[2],
            k=k,
            a=left,
            b=right,
            stores=(store,),
            dtype=stored.dtype,
            ops=(op.name,),
        )
    )
