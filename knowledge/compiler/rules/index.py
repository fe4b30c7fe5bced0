"""Lowers reads through integer tensors: rows of tables, elements by index, positions in a sorted list."""

from __future__ import annotations

from typing import Literal

from foundry.knowledge.compiler.ir.kernels import Expr, Gather, Iota, Load, Named, SegmentKernel, Store, View
from foundry.knowledge.compiler.rules.builder import (
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
    number,
    promote,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.reduce import Rows, is_read
from foundry.knowledge.compiler.rules.resample import along, between
from foundry.knowledge.opgraph import DType, Op, Ref

MOST_QUESTIONS = 1 << 31  # most comparisons of values with boundaries in one kernel


@rule("embedding", "index_select")
def _rows_of(builder: Builder, op: Op) -> None:
    """Lowers embedding and index_select: weight[index] along one dimension, which the index's own dimensions
    replace."""
    source = builder.tensor(op.args[0])
    if op.kind == "embedding":
        axis = 0
        index = builder.tensor(op.args[1])
    else:
        axis = source.axis(integer(op, 1, "dim"))
        index = builder.tensor(op.args[2])
        index = builder.reshape(index, (index.numel,), op)
    _indexed(builder, op, source, {axis: index}, axis)


@rule("embedding_bag")
def _embedding_bag(builder: Builder, op: Op) -> None:
    """Lowers embedding_bag: rows of a table reduced over bags. Bags of one size (offsets in equal steps, or
    two-dimensional indices) become a row kernel, others a segment kernel over items in their given order. Raises
    Unsupported if further outputs than the first are read."""
    table, index, offsets = (builder.tensor(item) for item in op.args[:3])
    if any(is_read(builder, op, output) for output in range(1, len(op.outputs))):
        raise Unsupported("where bags begin and end")
    size = index.numel // max(offsets.numel, 1)
    is_even = offsets.expr == Iota(View(0, (size,)), offsets.dtype) and size * offsets.numel == index.numel
    if is_even and not flag(op, 7, "include_last_offset") and argument(op, 8, "padding_idx") is None:
        _even_bags(builder, op, table, index, offsets.numel)
    else:
        _bags(builder, op, table, index, offsets)


def _even_bags(builder: Builder, op: Op, table: Tensor, index: Tensor, bags: int) -> None:
    """Emits a row kernel over bags of equal size."""
    kind = integer(op, 4, "mode", 0)
    scale = builder.optional(op, 6, "per_sample_weights")
    size = index.numel // bags
    rows = Rows(builder, op, (bags, size, table.shape[1]), [1])
    named = rows.see(builder.reshape(index, (bags, size, 1), op), "int64")
    found = _row_of(builder, op, table, named, 3)
    if scale is not None:
        found = apply("mul", found, rows.see(builder.reshape(scale, (bags, size, 1), op)))
    joined = rows.reduce("bag", "max" if kind == 2 else "sum", found)
    rows.emit_row(scalar("div", joined, float(size)) if kind == 1 else joined)
    rows.finish()


def _row_of(builder: Builder, op: Op, table: Tensor, named: Expr, rank: int) -> Expr:
    """table[index] over `rank` dimensions, of which the second runs along a table row."""
    _, load = builder.ensure_load(table, op)
    step, along_row = load.view.strides
    view = View(load.view.offset, (0, along_row, 0)[:rank])
    return cast(
        Gather(load.buffer, view, index=named, step=step, bound=table.shape[0], dtype=load.dtype),
        compute_dtype(table.dtype),
    )


def _bags(builder: Builder, op: Op, table: Tensor, index: Tensor, offsets: Tensor) -> None:
    """Emits a segment kernel over bags of several sizes: each begins at its offset and ends at the next one. Padding
    rows count as 0 and weights multiply the rows. Raises Unsupported for empty bags or tables, and for padding in a
    mean or maximum."""
    kind = integer(op, 4, "mode", 0)
    scale = builder.optional(op, 6, "per_sample_weights")
    padding = argument(op, 8, "padding_idx")
    items = index.numel
    width = table.shape[1]
    bags = offsets.numel - flag(op, 7, "include_last_offset")
    if not items or not bags or not width or items >= 1 << 31 or (padding is not None and kind != 0):
        raise Unsupported("bags of nothing, or whose padding does not count")
    dtype = compute_dtype(table.dtype)
    full = (items, width)
    named = cast(builder.expand(builder.reshape(index, (items, 1), op), full, op).expr, "int64")
    value = _row_of(builder, op, table, named, 2)
    if scale is not None:
        value = apply("mul", value, cast(builder.expand(builder.reshape(scale, (items, 1), op), full, op).expr, dtype))
    if padding is not None:
        is_padding = apply("eq", named, const(number(op, 8, "padding_idx") % table.shape[0], "int64"), dtype="bool")
        value = apply("where", is_padding, const(0.0, dtype), value, dtype=dtype)
    starts = _begins(builder, op, offsets, bags, items)
    result = builder.buffer(op.outputs[0].name, (bags, width), op.outputs[0].spec.dtype)
    assert isinstance(result.expr, Load)
    store = Store(result.expr.buffer, result.expr.view, cast(_joined(kind, dtype), result.dtype))
    reduction: Literal["max", "sum"] = "max" if kind == 2 else "sum"
    name = f"k_{store.buffer}"
    kernel = SegmentKernel(
        name,
        items,
        shape=(bags, width),
        op=reduction,
        value=value,
        starts=starts,
        order="",
        stores=(store,),
        dtype=dtype,
        ops=(op.name,),
    )
    builder.emit(kernel)
    builder.tensors[op.outputs[0].name] = result


def _joined(kind: int, dtype: DType) -> Expr:
    """The result of a bag: the sum (kind 0), mean (1) or maximum (2) of its rows; zeros if it is empty."""
    acc, count = Named("acc", dtype), Named("count", "int64")
    if kind == 0:
        return acc
    if kind == 1:
        return apply("div", acc, cast(apply("maximum", count, const(1, "int64")), dtype))
    some = apply("gt", count, const(0, "int64"), dtype="bool")
    return apply("where", some, acc, const(0.0, dtype), dtype=dtype)


def _begins(builder: Builder, op: Op, offsets: Tensor, bags: int, items: int) -> str:
    """The name of the buffer with the start of each bag, and the end of the last one."""
    if offsets.numel > bags:
        found = cast(offsets.expr, "int64")
    else:
        _, load = builder.ensure_load(offsets, op)
        place = along(1, 0)
        view = View(load.view.offset, (0,))
        inside = between(place, 0, bags - 1)
        given = cast(
            Gather(load.buffer, view, index=inside, step=load.view.strides[0], bound=bags, dtype=load.dtype), "int64"
        )
        is_one = apply("lt", place, const(bags, "int64"), dtype="bool")
        found = apply("where", is_one, given, const(items, "int64"), dtype="int64")
    starts = builder.store(f"{op.name}_starts", (bags + 1,), between(found, 0, items), "int32", op)
    assert isinstance(starts.expr, Load)
    return starts.expr.buffer


@rule("index")
def _index(builder: Builder, op: Op) -> None:
    """Lowers index: x[i, j, ...] with integer tensors. Raises Unsupported for masks."""
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
    """Binds `op` to `source` with some dimensions indexed by the tensors in `found`, as one gather.

    The broadcast dimensions of the indices stand at position `at` of the result.
    """
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
        step = 1
        bound = 1 + sum((source.shape[axis] - 1) * load.view.strides[axis] for axis in indices)
        where = const(0, "int64")
        for axis, index_expr in indices.items():
            where = apply("add", where, _position(index_expr, source.shape[axis], load.view.strides[axis]))
    view = View(load.view.offset, tuple(strides))
    builder.pointwise(op, Gather(load.buffer, view, index=where, step=step, bound=bound, dtype=load.dtype))


def _position(index: Expr, size: int, stride: int) -> Expr:
    """The element offset of an index that may count from the end."""
    negative = apply("lt", index, const(0, "int64"), dtype="bool")
    wrapped = apply("where", negative, apply("add", index, const(size, "int64")), index, dtype="int64")
    return apply("mul", wrapped, const(stride, "int64"))


@rule("gather", "take_along_dim")
def _gather(builder: Builder, op: Op) -> None:
    """Lowers gather and take_along_dim. Raises Unsupported for a scalar."""
    source = builder.tensor(op.args[0])
    if op.kind == "gather":
        axis = source.axis(integer(op, 1, "dim"))
        index = builder.tensor(op.args[2])
    else:
        axis = source.axis(integer(op, 2, "dim"))
        index = builder.tensor(op.args[1])
    if not source.shape:
        raise Unsupported("gather from a scalar")
    _, load = builder.ensure_load(source, op)
    steps = tuple(0 if dim == axis else step for dim, step in enumerate(load.view.strides))
    where = cast(builder.expand(index, op.outputs[0].spec.shape, op).expr, "int64")
    view = View(load.view.offset, steps)
    builder.pointwise(
        op,
        Gather(
            load.buffer, view, index=where, step=load.view.strides[axis], bound=source.shape[axis], dtype=load.dtype
        ),
    )


@rule("take")
def _take(builder: Builder, op: Op) -> None:
    """Lowers take: elements by their flat index."""
    source = builder.contiguous(builder.tensor(op.args[0]), op)
    _, load = builder.ensure_load(source, op)
    index = cast(builder.tensor(op.args[1]).expr, "int64")
    view = View(0, (0,) * len(op.outputs[0].spec.shape))
    builder.pointwise(op, Gather(load.buffer, view, index, step=1, bound=source.numel, dtype=load.dtype))


# ---------------------------------------------------------------- places in a sorted list


@rule("bucketize", "searchsorted")
def _bucketize(builder: Builder, op: Op) -> None:
    """Lowers bucketize and searchsorted: the number of boundaries before a value (with `right`, before or at it).

    Boundaries are one list for all values, or a list for each row of values.
    """
    if not isinstance(op.args[0], Ref) or not isinstance(op.args[1], Ref):
        values, edges = _numbers_in_lists(builder, op)
    else:
        first, second = (builder.tensor(item) for item in op.args[:2])
        values, edges = (first, second) if op.kind == "bucketize" else (second, first)
    sorter = builder.optional(op, 5, "sorter") if op.kind == "searchsorted" else None
    if values.numel * edges.shape[-1] > MOST_QUESTIONS:
        raise Unsupported("many values in many buckets")
    if sorter is not None:
        load = builder.ensure_load(edges, op)[1]
        view = View(load.view.offset, (*load.view.strides[:-1], 0))
        at, step, bound = cast(sorter.expr, "int64"), load.view.strides[-1], edges.shape[-1]
        edges = Tensor(edges.shape, Gather(load.buffer, view, at, step=step, bound=bound, dtype=load.dtype))
    rows = Rows(builder, op, (*values.shape, edges.shape[-1]), [-1])
    dtype = promote(values.dtype, edges.dtype)
    leading = edges.shape[:-1] or (1,) * (len(values.shape) - 1)
    between_rows = (*leading, 1) if values.shape else ()
    edge = builder.expand(builder.reshape(edges, (*between_rows, edges.shape[-1]), op), rows.shape, op).expr
    is_right = flag(op, 3, "right") or argument(op, 4, "side") == "right"
    value = cast(rows.per_row(values), dtype)
    before = apply("le" if is_right else "lt", cast(edge, dtype), value, dtype="bool")
    unknown = apply("ne", value, value, dtype="bool")  # NaN is after all boundaries
    before = apply("logical_or", before, unknown, dtype="bool")
    rows.emit_row(rows.reduce("before", "sum", cast(before, "int64"), "int64"))
    rows.finish()


def _numbers_in_lists(builder: Builder, op: Op) -> tuple[Tensor, Tensor]:
    """(one number as a tensor without dimensions, the boundaries)."""
    at = 0 if op.kind == "bucketize" else 1
    edges = builder.tensor(op.args[1 - at])
    return Tensor((), const(number(op, at, "self"), edges.dtype)), edges
