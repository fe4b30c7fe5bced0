"""Lowers index_add, index_put, scatter, scatter_reduce and their relatives.

If there are few indices, each element of the result compares them all with its position, in one kernel that fusion
may join. If there are many, the items are processed in their given order, or sorted by target (`segments.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.ir.kernels import Const, Expr, Gather, Load, View
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
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.reduce import Rows
from foundry.knowledge.compiler.rules.resample import along
from foundry.knowledge.compiler.rules.writes.in_place import put_items
from foundry.knowledge.compiler.rules.writes.segments import (
    front,
    items_of_elements,
    items_of_indices,
    write_segments,
)
from foundry.knowledge.opgraph import Op, Ref

# Elements times indices beyond KernelForms.most_index_questions: items are taken in or sorted. On the CPU 16 rows of 64
# numbers into 1000 rows take 0.69 ms by asking and 0.02 so, 1000 numbers into 16 take 0.009 ms either way.


@dataclass(frozen=True)
class _Writes:
    """Writes to `target`, over the points (target's dimensions..., index): `names` is true if this index names the
    element, `value` is the value to write."""

    target: Tensor
    count: int
    names: Expr
    value: Expr


def _rows(builder: Builder, op: Op, target: Tensor, count: int) -> Rows:
    """Rows of the target's elements, reducing over the indices."""
    return Rows(builder, op, (*target.shape, count), [-1])


def _present(index: Expr, position: Expr, size: int) -> Expr:
    """True if an index, which may count from the end, is this position."""
    wide = cast(index, "int64")
    negative = scalar("lt", wide, 0)
    wrapped = apply("where", cast(negative, "bool"), scalar("add", wide, size), wide, dtype="int64")
    return apply("eq", wrapped, position, dtype="bool")


def _by_rows(builder: Builder, op: Op, target: Tensor, axis: int, index: Tensor, source: Tensor | None) -> _Writes:
    """Writes by an index of `count` elements that name slices of one dimension; the source has a slice for each."""
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
    """Writes of a scatter: each index element names one position along the axis, at its own position in the others.

    Each element of the target looks through all indices along the axis. `source` None writes zeros.
    """
    count = index.shape[axis]
    kept = [dim for dim in range(len(target.shape)) if dim != axis]
    rank = len(target.shape)
    full = (*target.shape, count)

    def seen(tensor: Tensor) -> Expr:
        """The tensor's expression over all positions of the target, read anew along the scattered axis."""
        turned = builder.permute(tensor, [*kept, axis], op)
        spread = builder.reshape(turned, (*turned.shape[:axis], 1, *turned.shape[axis:]), op)
        return builder.expand(spread, full, op).expr

    if source is not None:
        for dim in range(rank):
            source = front(builder, op, source, dim, index.shape[dim])
    names = _present(seen(index), along(rank + 1, axis), target.shape[axis])
    return _Writes(target, count, names, const(0, target.dtype) if source is None else seen(source))


# ---------------------------------------------------------------- what becomes of an element


def _combine(builder: Builder, op: Op, writes: _Writes, kind: str, *, keeps: bool = True, factor: float = 1.0) -> None:
    """Emits each element combined with all values written to it; `keeps`: its own value counts too."""
    dtype = compute_dtype(writes.target.dtype)
    rows = _rows(builder, op, writes.target, writes.count)
    neutral = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}[kind]
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
    """Emits each element replaced by the value of the last index that names it; without a `source` that value is
    `writes.value`."""
    target = writes.target
    if writes.count == 1:  # one step of a key-value cache: one comparison per element, which can fuse with its readers
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
        value = Gather(source.buffer, view, index=at, step=step, bound=writes.count, dtype=source.dtype)
    is_named = scalar("ge", last, 0)
    rows.emit_row(apply("where", cast(is_named, "bool"), cast(value, target.dtype), own, dtype=target.dtype))
    rows.finish()


# ---------------------------------------------------------------- operators


@dataclass(frozen=True)
class _Join:
    """The combination of an element with the values written to it."""

    kind: str  # sum, mean, prod, amax, amin, or last: the last written value replaces it
    keeps: bool = True  # the element's own value counts too
    factor: float = 1.0

    @property
    def put(self) -> str:
        """The combination's name for in-place writes."""
        return self.kind if self.keeps else "without the element's own value"


def _is_put(builder: Builder, op: Op, target: Tensor, found: dict[int, Tensor], source: Tensor, join: _Join) -> bool:
    """Writes slices that indices name directly to the module's own memory. False if that is not possible, or not
    faster."""
    if op.name not in builder.in_place:
        return False
    return put_items(builder, op, items_of_indices(builder, op, target, found, source), join.put, join.factor)


def _asks_each(builder: Builder, target: Tensor, count: int, join: _Join) -> bool:
    """True if each element should compare all indices, instead of sorting them."""
    if join.kind in ("amax", "amin", "mean") and compute_dtype(target.dtype) not in ("float32", "float64"):
        return False
    forms = builder.forms
    return count <= forms.few_indices or target.numel * count <= forms.most_index_questions


def _write_rows(
    builder: Builder, op: Op, target: Tensor, axis: int, index: Tensor, source: Tensor, join: _Join
) -> None:
    """Lowers writes of slices of one dimension; the source has a slice for each index, or is one value."""
    if not target.shape:
        raise Unsupported("a write into a number")
    index = builder.reshape(index, (index.numel,), op)
    if not index.numel:
        builder.bind(op, target)
    elif _is_put(builder, op, target, found={axis: index}, source=source, join=join):
        pass
    elif not _asks_each(builder, target, index.numel, join):
        items = items_of_indices(builder, op, target, {axis: index}, source)
        write_segments(builder, op, items, join.kind, keeps=join.keeps, factor=join.factor)
    elif join.kind != "last":
        writes = _by_rows(builder, op, target, axis, index, source=source)
        _combine(builder, op, writes, join.kind, keeps=join.keeps, factor=join.factor)
    else:
        _replace_by(builder, op, _by_rows(builder, op, target, axis, index, source=None), axis, source)


def _write_elements(
    builder: Builder, op: Op, target: Tensor, axis: int, index: Tensor, source: Tensor, join: _Join
) -> None:
    """Lowers writes of single elements: each index element names the position along `axis` for the source element at
    the same place. Raises Unsupported for a scalar target."""
    if not target.shape:
        raise Unsupported("a scatter into a number")
    whole = all(dim == axis or size == target.shape[dim] for dim, size in enumerate(index.shape))
    if not index.numel:
        builder.bind(op, target)
    elif op.name in builder.in_place and put_items(
        builder, op, items_of_elements(builder, op, target, axis, index, source=source), join.put, join.factor
    ):
        pass
    elif not whole or not _asks_each(builder, target, index.shape[axis], join):
        items = items_of_elements(builder, op, target, axis, index, source=source)
        write_segments(builder, op, items, join.kind, keeps=join.keeps, factor=join.factor)
    elif join.kind != "last":
        writes = _by_elements(builder, op, target, axis, index, source=source)
        _combine(builder, op, writes, join.kind, keeps=join.keeps, factor=join.factor)
    else:
        _replace_by(builder, op, _by_elements(builder, op, target, axis, index, source=None), axis, source)


def _replace_by(builder: Builder, op: Op, writes: _Writes, axis: int, source: Tensor) -> None:
    """Emits the replacement of elements along `axis` by the last source slice that names them."""
    if isinstance(source.expr, Const):
        value = cast(source.expr, writes.target.dtype)
        _replace(builder, op, _Writes(writes.target, writes.count, writes.names, value), source=None, steps=(), step=1)
        return
    load = builder.ensure_load(source, op)[1]
    steps = tuple(0 if dim == axis else step for dim, step in enumerate(load.view.strides))
    _replace(builder, op, writes, source=load, steps=steps, step=load.view.strides[axis])


@rule("index_add", "index_reduce")
def _index_add(builder: Builder, op: Op) -> None:
    """Lowers index_add and index_reduce."""
    target, index, source = builder.tensor(op.args[0]), builder.tensor(op.args[2]), builder.tensor(op.args[3])
    if op.kind == "index_add":
        join = _Join("sum", factor=number(op, 4, "alpha", 1.0))
    else:
        join = _Join(str(argument(op, 4, "reduce")), flag(op, 5, "include_self", True))
    _write_rows(builder, op, target, axis=target.axis(integer(op, 1, "dim")), index=index, source=source, join=join)


@rule("scatter_add", "scatter_reduce")
def _scatter_add(builder: Builder, op: Op) -> None:
    """Lowers scatter_add and scatter_reduce."""
    target, index, source = builder.tensor(op.args[0]), builder.tensor(op.args[2]), builder.tensor(op.args[3])
    kind = "sum" if op.kind == "scatter_add" else str(argument(op, 4, "reduce"))
    join = _Join(kind, flag(op, 5, "include_self", True))
    _write_elements(builder, op, target, axis=target.axis(integer(op, 1, "dim")), index=index, source=source, join=join)


@rule("scatter")
def _scatter(builder: Builder, op: Op) -> None:
    """Lowers scatter of a tensor or a value, with its optional reduction."""
    target, index = builder.tensor(op.args[0]), builder.tensor(op.args[2])
    join = _Join("last")
    if argument(op, 4, "reduce") is not None:
        join = _Join({"add": "sum", "multiply": "prod"}[str(argument(op, 4, "reduce"))])
    if isinstance(op.args[3] if len(op.args) > 3 else None, Ref):
        source = builder.tensor(op.args[3])
    else:
        source = Tensor(index.shape, const(number(op, 3, "value"), target.dtype))
    _write_elements(builder, op, target, axis=target.axis(integer(op, 1, "dim")), index=index, source=source, join=join)


@rule("index_copy", "index_fill")
def _index_copy(builder: Builder, op: Op) -> None:
    """Lowers index_copy and index_fill by a number. Raises Unsupported for index_fill by a tensor."""
    target, index = builder.tensor(op.args[0]), builder.tensor(op.args[2])
    axis = target.axis(integer(op, 1, "dim"))
    if op.kind == "index_copy":
        source = builder.tensor(op.args[3])
    elif op.target.endswith("Scalar"):
        shape = (*target.shape[:axis], index.numel, *target.shape[axis + 1 :])
        source = Tensor(shape, const(number(op, 3, "value"), target.dtype))
    else:
        raise Unsupported("index_fill by a tensor")
    _write_rows(builder, op, target, axis, index, source=source, join=_Join("last"))


@rule("index_put")
def _index_put(builder: Builder, op: Op) -> None:
    """Lowers index_put: x[i, j, ...] = values, with `accumulate`. Raises Unsupported for masks beside indices."""
    target = builder.tensor(op.args[0])
    given = op.args[1]
    values = builder.tensor(op.args[2])
    assert isinstance(given, list)
    found = {axis: builder.tensor(item) for axis, item in enumerate(given) if item is not None}
    if all(index.dtype == "bool" for index in found.values()):
        _put_by_mask(builder, op, target, found, values)
        return
    if any(index.dtype in ("bool", "uint8") for index in found.values()):
        raise Unsupported("writes by masks and indices")
    join = _Join("sum" if flag(op, 3, "accumulate") else "last")
    if len(found) > 1:
        if not math.prod(broadcast(*(index.shape for index in found.values()))):
            builder.bind(op, target)
            return
        if not _is_put(builder, op, target, found, source=values, join=join):
            write_segments(builder, op, items_of_indices(builder, op, target, found, values), join.kind)
        return
    ((axis, index),) = found.items()
    shape = (*target.shape[:axis], *index.shape, *target.shape[axis + 1 :])
    flat = (*target.shape[:axis], index.numel, *target.shape[axis + 1 :])
    source = builder.reshape(builder.expand(values, shape, op), flat, op)
    _write_rows(builder, op, target, axis, index, source=source, join=join)


def _put_by_mask(builder: Builder, op: Op, target: Tensor, found: dict[int, Tensor], values: Tensor) -> None:
    """Lowers index_put by a mask of the leading dimensions, of values that are the same for each true element. Raises
    Unsupported for other masks."""
    mask = found[0] if list(found) == [0] else None
    rank = len(target.shape) - (len(mask.shape) if mask is not None else 0)
    if mask is None or len(values.shape) > rank + 1 or (len(values.shape) == rank + 1 and values.shape[0] != 1):
        raise Unsupported("values of their own for a mask")
    shown = builder.expand(builder.reshape(mask, mask.shape + (1,) * rank, op), target.shape, op).expr
    alike = builder.reshape(values, values.shape[-rank:] if rank else (), op)
    value = cast(builder.expand(alike, target.shape, op).expr, target.dtype)
    value = apply("add", target.expr, value) if flag(op, 3, "accumulate") else value
    builder.pointwise(op, apply("where", shown, value, target.expr, dtype=target.dtype))
