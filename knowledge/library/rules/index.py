"""Reads through integer tensors."""

from __future__ import annotations

from foundry.knowledge.library.ir.kernels import Expr, Gather, View
from foundry.knowledge.library.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    broadcast,
    cast,
    const,
    integer,
    rule,
)
from foundry.knowledge.opgraph import Op


@rule("embedding", "index_select")
def _rows_of(builder: Builder, op: Op) -> None:
    """weight[index] along one dimension, which the index's own dimensions replace."""
    source = builder.tensor(op.args[0])
    if op.kind == "embedding":
        axis, index = 0, builder.tensor(op.args[1])
    else:
        axis, index = source.axis(integer(op, 1, "dim")), builder.tensor(op.args[2])
        index = builder.reshape(index, (index.numel,), op)
    _indexed(builder, op, source, {axis: index}, axis)


@rule("index")
def _index(builder: Builder, op: Op) -> None:
    source = builder.tensor(op.args[0])
    given = op.args[1]
    assert isinstance(given, list)
    found = {axis: builder.tensor(item) for axis, item in enumerate(given) if item is not None}
    if any(index.dtype in ("bool", "uint8") for index in found.values()):
        raise Unsupported("indexing by a mask")
    axes = sorted(found)
    together = axes == list(range(axes[0], axes[-1] + 1))
    _indexed(builder, op, source, found, axes[0] if together else 0)


def _indexed(builder: Builder, op: Op, source: Tensor, found: dict[int, Tensor], at: int) -> None:
    """`source` with some dimensions indexed; the broadcast index dimensions stand at `at` in the result."""
    shape = op.outputs[0].spec.shape
    index_shape = broadcast(*(index.shape for index in found.values()))
    _, load = builder.ensure_load(source, op)
    kept = [axis for axis in range(len(source.shape)) if axis not in found]
    before = [axis for axis in kept if axis < at] if at else []
    after = [axis for axis in kept if axis not in before]
    strides = [load.view.strides[axis] for axis in before]
    strides += [0] * len(index_shape) + [load.view.strides[axis] for axis in after]
    padding = (1,) * len(after)
    indices = {}
    for axis, index in found.items():
        column = builder.reshape(index, index.shape + padding, op)
        indices[axis] = cast(builder.expand(column, shape, op).expr, "int64")
    if len(indices) == 1:
        axis, where = next(iter(indices.items()))
        step, bound = load.view.strides[axis], source.shape[axis]
    else:
        step, bound = 1, 1 + sum((source.shape[axis] - 1) * load.view.strides[axis] for axis in indices)
        where = const(0, "int64")
        for axis, index_expr in indices.items():
            where = apply("add", where, _position(index_expr, source.shape[axis], load.view.strides[axis]))
    view = View(load.view.offset, tuple(strides))
    builder.pointwise(op, Gather(load.buffer, view, where, step, bound, load.dtype))


def _position(index: Expr, size: int, stride: int) -> Expr:
    negative = apply("lt", index, const(0, "int64"), dtype="bool")
    wrapped = apply("where", negative, apply("add", index, const(size, "int64")), index, dtype="int64")
    return apply("mul", wrapped, const(stride, "int64"))


@rule("gather", "take_along_dim")
def _gather(builder: Builder, op: Op) -> None:
    source = builder.tensor(op.args[0])
    if op.kind == "gather":
        axis, index = source.axis(integer(op, 1, "dim")), builder.tensor(op.args[2])
    else:
        axis, index = source.axis(integer(op, 2, "dim")), builder.tensor(op.args[1])
    if not source.shape:
        raise Unsupported("gather from a scalar")
    _, load = builder.ensure_load(source, op)
    steps = tuple(0 if dim == axis else step for dim, step in enumerate(load.view.strides))
    where = cast(builder.expand(index, op.outputs[0].spec.shape, op).expr, "int64")
    view = View(load.view.offset, steps)
    builder.pointwise(op, Gather(load.buffer, view, where, load.view.strides[axis], source.shape[axis], load.dtype))


@rule("take")
def _take(builder: Builder, op: Op) -> None:
    source = builder.contiguous(builder.tensor(op.args[0]), op)
    _, load = builder.ensure_load(source, op)
    index = cast(builder.tensor(op.args[1]).expr, "int64")
    view = View(0, (0,) * len(op.outputs[0].spec.shape))
    builder.pointwise(op, Gather(load.buffer, view, index, 1, source.numel, load.dtype))
