"""Lowers pooling; a pool over the whole image is a reduction."""

from __future__ import annotations

import math

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import Load, Named, PoolKernel, Store
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    argument,
    cast,
    compute_dtype,
    flag,
    integer,
    integers,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.reduce import Rows, is_read
from foundry.knowledge.opgraph import Op


def _rank(op: Op) -> int:
    """The number of spatial dimensions, from the operator's name."""
    return int(next(letter for letter in op.kind if letter.isdigit()))


def _each(op: Op, index: int, name: str, default: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A parameter for each spatial dimension; one number stands for all."""
    found = tuple(integers(op, index, name) or default)
    return found * rank if len(found) == 1 else found


def _emit(builder: Builder, op: Op, source: Tensor, kernel: PoolKernel, with_index: bool) -> None:
    """Emits a pool kernel: completes `kernel` with its name, value and stores."""
    rank = len(kernel.input_size)
    batch = math.prod(source.shape[: len(source.shape) - rank])
    value = builder.reshape(source, (batch, *kernel.input_size), op)
    space = (batch, *kernel.output_size)
    stores = []
    for output, (name, dtype) in enumerate((("acc", kernel.dtype), ("index", "int64"))):
        if output and not (with_index and is_read(builder, op, output)):
            break
        spec = op.outputs[output].spec
        target = builder.buffer(op.outputs[output].name, spec.shape, spec.dtype)
        assert isinstance(target.expr, Load)
        builder.tensors[op.outputs[output].name] = target
        result = cast(Named(name, dtype), spec.dtype)
        stores.append(Store(target.expr.buffer, views.identity(space), result))
    builder.emit(
        PoolKernel(
            name=f"k_{builder.identifier(op.name)}",
            op=kernel.op,
            outer=(batch,),
            input_size=kernel.input_size,
            output_size=kernel.output_size,
            kernel=kernel.kernel,
            stride=kernel.stride,
            padding=kernel.padding,
            dilation=kernel.dilation,
            value=cast(value.expr, kernel.dtype),
            stores=tuple(stores),
            dtype=kernel.dtype,
            count_include_pad=kernel.count_include_pad,
            divisor=kernel.divisor,
            ops=(op.name,),
        )
    )


@rule("max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices")
def _max_pool(builder: Builder, op: Op) -> None:
    """Lowers maximum pools."""
    _window(builder, op, "max")


@rule("max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def _other_pool(builder: Builder, op: Op) -> None:
    """Lowers average pools, and maximum pools with indices in three dimensions."""
    _window(builder, op, "max" if op.kind.startswith("max") else "avg")


def _window(builder: Builder, op: Op, kind: str) -> None:
    """Lowers a pool with windows of one size, "max" or average. Raises Unsupported for windows beyond the padding."""
    source = builder.tensor_at(op, 0, "self")
    rank = _rank(op)
    kernel = _each(op, 1, "kernel_size", (), rank)
    stride = _each(op, 2, "stride", kernel, rank)
    padding = _each(op, 3, "padding", (0,), rank)
    output = op.outputs[0].spec.shape[-rank:]
    size = source.shape[-rank:]
    divisor = None
    include = True
    dilation = (1,) * rank
    if kind == "max":
        dilation = _each(op, 4, "dilation", (1,), rank)
    else:
        include = flag(op, 5, "count_include_pad", True)
        divisor = None if argument(op, 6, "divisor_override") is None else integer(op, 6, "divisor_override")
        reach = [(count - 1) * step + width for count, step, width in zip(output, stride, kernel, strict=True)]
        if include and any(end > have + 2 * pad for end, have, pad in zip(reach, size, padding, strict=True)):
            raise Unsupported("average windows that reach beyond the padding")
    shell = PoolKernel(
        name="",
        op="max" if kind == "max" else "avg",
        outer=(),
        input_size=size,
        output_size=output,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        value=source.expr,
        stores=(),
        dtype=compute_dtype(source.dtype),
        count_include_pad=include,
        divisor=divisor,
    )
    _emit(builder, op, source, shell, "with_indices" in op.kind)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "_adaptive_avg_pool2d")
def _adaptive_avg(builder: Builder, op: Op) -> None:
    """Lowers adaptive average pools."""
    _adaptive(builder, op, "avg")


@rule("_adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max(builder: Builder, op: Op) -> None:
    """Lowers adaptive maximum pools, and the remaining average one."""
    _adaptive(builder, op, "max" if "max" in op.kind else "avg")


def _adaptive(builder: Builder, op: Op, kind: str) -> None:
    """Lowers an adaptive pool: to one position as a reduction, else as a pool with windows that may differ in size."""
    source = builder.tensor_at(op, 0, "self")
    rank = _rank(op)
    size, output = source.shape[-rank:], op.outputs[0].spec.shape[-rank:]
    indices = len(op.outputs) > 1 and is_read(builder, op, 1)
    dims = len(source.shape)
    if output == (1,) * rank and not indices:
        rows = Rows(builder, op, source.shape, range(dims - rank, dims))
        total = rows.reduce("acc", "sum" if kind == "avg" else "max", rows.see(source))
        rows.emit_row(scalar("div", total, float(rows.count)) if kind == "avg" else total)
        rows.finish()
        return
    even = all(have % want == 0 for have, want in zip(size, output, strict=True))
    windows = tuple(have // want for have, want in zip(size, output, strict=True)) if even else ()
    shell = PoolKernel(
        name="",
        op="max" if kind == "max" else "avg",
        outer=(),
        input_size=size,
        output_size=output,
        kernel=windows,
        stride=windows,
        padding=(0,) * len(windows),
        dilation=(1,) * len(windows),
        value=source.expr,
        stores=(),
        dtype=compute_dtype(source.dtype),
    )
    _emit(builder, op, source, shell, indices)
