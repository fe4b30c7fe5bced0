"""Reads through integer tensors, and writes as reads: each element of the result looks for the indices that name it.

Where it is written, an element asks every index, so the work is that of the result times the number of indices:
right for one-hot rows, routing tables and short lists of rows, and left to PyTorch where both are large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.library.ir.kernels import Expr, Gather, Iota, Load, View
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
    number,
    promote,
    rule,
    scalar,
)
from foundry.knowledge.library.rules.reduce import Rows, is_read
from foundry.knowledge.library.rules.resample import along
from foundry.knowledge.opgraph import Op

MOST_QUESTIONS = 1 << 31  # of all values to all boundaries
# Of all elements to all indices, where these are many: PyTorch, which walks the indices once, is quicker beyond.
MOST_QUESTIONS_OF_WRITES, MANY_INDICES = 1 << 22, 64


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


# ---------------------------------------------------------------- writes


@dataclass(frozen=True)
class _Writes:
    """What is written into `target`: over the points (target's dimensions..., index), whether this index names the
    element, and the value that it brings."""

    target: Tensor
    count: int
    names: Expr
    value: Expr


def _rows(builder: Builder, op: Op, target: Tensor, count: int) -> Rows:
    if count > MANY_INDICES and target.numel * count > MOST_QUESTIONS_OF_WRITES:
        raise Unsupported("writes through many indices into many elements")
    return Rows(builder, op, (*target.shape, count), [-1])


def _present(index: Expr, position: Expr, size: int) -> Expr:
    """Whether an index, which may count from the end, is this position."""
    wide = cast(index, "int64")
    negative = scalar("lt", wide, 0)
    wrapped = apply("where", cast(negative, "bool"), scalar("add", wide, size), wide, dtype="int64")
    return apply("eq", wrapped, position, dtype="bool")


def _by_rows(builder: Builder, op: Op, target: Tensor, axis: int, index: Tensor, source: Tensor | None) -> _Writes:
    """index (count) names slices of one dimension; the source has a slice for each."""
    count = index.numel
    rank = len(target.shape)
    full = (*target.shape, count)
    flat = builder.reshape(index, (*(1,) * rank, count), op)
    names = _present(builder.expand(flat, full, op).expr, along(rank + 1, axis), target.shape[axis])
    if source is None:
        return _Writes(target, count, names, const(0, target.dtype))
    order = [*(dim for dim in range(rank) if dim != axis), axis]
    turned = builder.permute(
        builder.expand(source, (*source.shape[:axis], count, *source.shape[axis + 1 :]), op), order, op
    )
    spread = builder.reshape(turned, (*turned.shape[:axis], 1, *turned.shape[axis:]), op)
    return _Writes(target, count, names, builder.expand(spread, full, op).expr)


def _by_elements(builder: Builder, op: Op, target: Tensor, axis: int, index: Tensor, source: Tensor | None) -> _Writes:
    """Each element of `index` names one place along the dimension, at its own place in the others."""
    count = index.shape[axis]
    kept = [dim for dim in range(len(target.shape)) if dim != axis]
    if any(index.shape[dim] != target.shape[dim] for dim in kept):
        raise Unsupported("a scatter into a part of the other dimensions")
    rank = len(target.shape)
    full = (*target.shape, count)

    def seen(tensor: Tensor) -> Expr:
        turned = builder.permute(tensor, [*kept, axis], op)
        spread = builder.reshape(turned, (*turned.shape[:axis], 1, *turned.shape[axis:]), op)
        return builder.expand(spread, full, op).expr

    if source is not None:
        for dim in range(rank):
            source = _front(builder, op, source, dim, index.shape[dim])
    names = _present(seen(index), along(rank + 1, axis), target.shape[axis])
    return _Writes(target, count, names, const(0, target.dtype) if source is None else seen(source))


def _front(builder: Builder, op: Op, tensor: Tensor, axis: int, size: int) -> Tensor:
    if tensor.shape[axis] == size:
        return tensor
    _, load = builder.ensure_load(tensor, op)
    return Tensor((*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]), load)


# ---------------------------------------------------------------- what becomes of an element


def _combine(builder: Builder, op: Op, writes: _Writes, kind: str, *, keeps: bool = True, factor: float = 1.0) -> None:
    """The element joined with all that is written to it; `keeps`: its own value counts, too."""
    dtype = compute_dtype(writes.target.dtype)
    rows = _rows(builder, op, writes.target, writes.count)
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}[kind]
    if dtype not in ("float32", "float64") and kind in ("amax", "amin"):
        raise Unsupported("extrema of scattered integers")
    named = writes.names
    value = cast(writes.value, dtype)
    value = value if factor == 1 else scalar("mul", value, factor)
    value = apply("where", named, value, const(neutral, dtype), dtype=dtype)
    reduction = {"sum": "sum", "mean": "sum", "prod": "prod", "amax": "max", "amin": "min"}[kind]
    found = rows.reduce("written", reduction, value)  # type: ignore[arg-type]
    own = cast(rows.per_row(writes.target), dtype)
    join = {"sum": "add", "mean": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}[kind]
    joined = apply(join, found, own)
    if kind == "mean" or not keeps:
        count = rows.reduce("count", "sum", cast(named, dtype))
        if kind == "mean":
            total = joined if keeps else found
            whole = scalar("add", count, 1.0) if keeps else apply("maximum", count, const(1.0, dtype))
            joined = found = apply("div", total, whole)
        if not keeps:
            joined = apply("where", cast(scalar("gt", count, 0.0), "bool"), found, own, dtype=dtype)
    rows.emit_row(joined)
    rows.finish()


def _replace(builder: Builder, op: Op, writes: _Writes, source: Load | None, steps: tuple[int, ...], step: int) -> None:
    """The last of the indices that name an element decides; without a `source` its value is the constant's."""
    target = writes.target
    if writes.count == 1:  # a step of a cache: one question to each element, which what reads it may ask itself
        named = builder.reshape(Tensor((*target.shape, 1), writes.names), target.shape, op).expr
        brought = writes.value if source is None else Load(source.buffer, View(source.view.offset, steps), source.dtype)
        builder.pointwise(op, apply("where", named, cast(brought, target.dtype), target.expr, dtype=target.dtype))
        return
    rows = _rows(builder, op, target, writes.count)
    position = along(len(target.shape) + 1, len(target.shape))
    named = apply("where", writes.names, position, const(-1, "int64"), dtype="int64")
    last = rows.reduce("last", "max", named, "int64")
    own = rows.per_row(target)
    value = writes.value
    if source is not None:
        view = View(source.view.offset, (*steps, 0))
        at = apply("maximum", last, const(0, "int64"))
        value = Gather(source.buffer, view, at, step, writes.count, source.dtype)
    is_named = scalar("ge", last, 0)
    rows.emit_row(apply("where", cast(is_named, "bool"), cast(value, target.dtype), own, dtype=target.dtype))
    rows.finish()


# ---------------------------------------------------------------- operators


@rule("index_add", "index_reduce")
def _index_add(builder: Builder, op: Op) -> None:
    target, index, source = builder.tensor(op.args[0]), builder.tensor(op.args[2]), builder.tensor(op.args[3])
    axis = target.axis(integer(op, 1, "dim"))
    writes = _by_rows(builder, op, target, axis, index, source)
    if op.kind == "index_add":
        _combine(builder, op, writes, "sum", factor=number(op, 4, "alpha", 1.0))
    else:
        kind = str(argument(op, 4, "reduce"))
        _combine(builder, op, writes, kind, keeps=flag(op, 5, "include_self", True))


@rule("scatter_add", "scatter_reduce")
def _scatter_add(builder: Builder, op: Op) -> None:
    target, index, source = builder.tensor(op.args[0]), builder.tensor(op.args[2]), builder.tensor(op.args[3])
    writes = _by_elements(builder, op, target, target.axis(integer(op, 1, "dim")), index, source)
    kind = "sum" if op.kind == "scatter_add" else str(argument(op, 4, "reduce"))
    _combine(builder, op, writes, kind, keeps=flag(op, 5, "include_self", True))


@rule("scatter")
def _scatter(builder: Builder, op: Op) -> None:
    target, index = builder.tensor(op.args[0]), builder.tensor(op.args[2])
    axis = target.axis(integer(op, 1, "dim"))
    if argument(op, 4, "reduce") is not None:
        raise Unsupported("a scatter that reduces")
    if not op.target.endswith(".src"):
        writes = _by_elements(builder, op, target, axis, index, None)
        value = const(number(op, 3, "value"), target.dtype)
        _replace(builder, op, _Writes(target, writes.count, writes.names, value), None, (), 1)
        return
    source = builder.tensor(op.args[3])
    load = builder.ensure_load(source, op)[1]
    writes = _by_elements(builder, op, target, axis, index, None)
    steps = tuple(0 if dim == axis else step for dim, step in enumerate(load.view.strides))
    _replace(builder, op, writes, load, steps, load.view.strides[axis])


@rule("index_copy", "index_fill")
def _index_copy(builder: Builder, op: Op) -> None:
    target, index = builder.tensor(op.args[0]), builder.tensor(op.args[2])
    axis = target.axis(integer(op, 1, "dim"))
    writes = _by_rows(builder, op, target, axis, index, None)
    if op.kind == "index_fill":
        if not op.target.endswith("Scalar"):
            raise Unsupported("index_fill by a tensor")
        value = const(number(op, 3, "value"), target.dtype)
        _replace(builder, op, _Writes(target, writes.count, writes.names, value), None, (), 1)
        return
    _replace_rows(builder, op, writes, axis, builder.tensor(op.args[3]))


def _replace_rows(builder: Builder, op: Op, writes: _Writes, axis: int, source: Tensor) -> None:
    load = builder.ensure_load(source, op)[1]
    steps = tuple(0 if dim == axis else step for dim, step in enumerate(load.view.strides))
    _replace(builder, op, writes, load, steps, load.view.strides[axis])


@rule("index_put")
def _index_put(builder: Builder, op: Op) -> None:
    target, given, values = builder.tensor(op.args[0]), op.args[1], builder.tensor(op.args[2])
    assert isinstance(given, list)
    found = {axis: builder.tensor(item) for axis, item in enumerate(given) if item is not None}
    if all(index.dtype == "bool" for index in found.values()):
        _put_by_mask(builder, op, target, found, values)
        return
    if len(found) != 1 or any(index.dtype in ("bool", "uint8") for index in found.values()):
        raise Unsupported("writes by several indices")
    ((axis, index),) = found.items()
    shape = (*target.shape[:axis], *index.shape, *target.shape[axis + 1 :])
    flat = (*target.shape[:axis], index.numel, *target.shape[axis + 1 :])
    source = builder.reshape(builder.expand(values, shape, op), flat, op)
    if flag(op, 3, "accumulate"):
        _combine(builder, op, _by_rows(builder, op, target, axis, index, source), "sum")
        return
    _replace_rows(builder, op, _by_rows(builder, op, target, axis, index, None), axis, source)


def _put_by_mask(builder: Builder, op: Op, target: Tensor, found: dict[int, Tensor], values: Tensor) -> None:
    """One value wherever a mask of the leading dimensions says so."""
    if list(found) != [0] or values.numel != 1 or flag(op, 3, "accumulate"):
        raise Unsupported("values of their own for a mask")
    mask = found[0]
    trailing = (1,) * (len(target.shape) - len(mask.shape))
    shown = builder.expand(builder.reshape(mask, mask.shape + trailing, op), target.shape, op).expr
    value = builder.expand(builder.reshape(values, (1,) * len(target.shape), op), target.shape, op).expr
    builder.pointwise(op, apply("where", shown, cast(value, target.dtype), target.expr, dtype=target.dtype))


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
