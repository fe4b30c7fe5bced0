"""Reads through integer tensors: rows of tables, elements by indices, places in a sorted list."""

from __future__ import annotations

from foundry.knowledge.library.ir.kernels import Expr, Gather, Iota, View
from foundry.knowledge.library.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    broadcast,
    cast,
    compute_dtype,
    const,
    flag,
    integer,
    promote,
    rule,
    scalar,
)
from foundry.knowledge.library.rules.reduce import Rows, is_read
from foundry.knowledge.opgraph import Op

MOST_QUESTIONS = 1 << 31  # of all values to all boundaries


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


@rule("embedding_bag")
def _embedding_bag(builder: Builder, op: Op) -> None:
    """Rows of a table joined in bags of one size: offsets that count in equal steps, as bags in two dimensions have."""
    table, index, offsets = (builder.tensor(item) for item in op.args[:3])
    kind = integer(op, 4, "mode", 0)
    scale, bags = builder.optional(op, 6, "per_sample_weights"), offsets.numel
    size = index.numel // max(bags, 1)
    if offsets.expr != Iota(View(0, (size,)), offsets.dtype) or size * bags != index.numel:
        raise Unsupported("bags of several sizes")
    if flag(op, 7, "include_last_offset") or argument(op, 8, "padding_idx") is not None:
        raise Unsupported("bags with a last offset, or with padding")
    if any(is_read(builder, op, output) for output in range(1, len(op.outputs))):
        raise Unsupported("where bags begin and end")
    _, load = builder.ensure_load(table, op)
    rows = Rows(builder, op, (bags, size, table.shape[1]), [1])
    named = rows.see(builder.reshape(index, (bags, size, 1), op), "int64")
    step, along_row = load.view.strides
    found: Expr = Gather(
        load.buffer, View(load.view.offset, (0, along_row, 0)), named, step, table.shape[0], load.dtype
    )
    found = cast(found, compute_dtype(table.dtype))
    if scale is not None:
        found = apply("mul", found, rows.see(builder.reshape(scale, (bags, size, 1), op)))
    joined = rows.reduce("bag", "max" if kind == 2 else "sum", found)
    rows.emit_row(scalar("div", joined, float(size)) if kind == 1 else joined)
    rows.finish()


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


# ---------------------------------------------------------------- places in a sorted list


@rule("bucketize", "searchsorted")
def _bucketize(builder: Builder, op: Op) -> None:
    """How many boundaries lie before a value (`right`: before or at it)."""
    first, second = (builder.tensor(item) for item in op.args[:2])
    values, edges = (first, second) if op.kind == "bucketize" else (second, first)
    if len(edges.shape) != 1:
        raise Unsupported("a list of boundaries for each row")
    if op.kind == "searchsorted" and (argument(op, 4, "side") or argument(op, 5, "sorter")):
        raise Unsupported("searchsorted with a side or a sorter")
    if values.numel * edges.numel > MOST_QUESTIONS:
        raise Unsupported("many values in many buckets")
    rows = Rows(builder, op, (*values.shape, edges.numel), [-1])
    dtype = promote(values.dtype, edges.dtype)
    edge = builder.expand(builder.reshape(edges, (*(1,) * len(values.shape), edges.numel), op), rows.shape, op).expr
    test = "le" if flag(op, 3, "right") else "lt"
    value = cast(rows.per_row(values), dtype)
    before = apply(test, cast(edge, dtype), value, dtype="bool")
    unknown = apply("ne", value, value, dtype="bool")  # NaN is beyond all
    before = apply("logical_or", before, unknown, dtype="bool")
    rows.emit_row(rows.reduce("before", "sum", cast(before, "int64"), "int64"))
    rows.finish()
