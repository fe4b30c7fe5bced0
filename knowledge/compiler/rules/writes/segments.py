"""Lowers writes through many indices. On the CPU, items are added in their given order to a table of all targets. If
that table is too large, and on CUDA, items are first sorted by target. All writes through the same indices share one
sort, and each target reads its own items.

An item names one position along some neighbouring dimensions of the target; its value has the other dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import (
    Expr,
    Iota,
    Load,
    Named,
    SegmentKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    broadcast,
    cast,
    compute_dtype,
    const,
    scalar,
)
from foundry.knowledge.compiler.rules.grouped import scalar_bool, sorted_items, wrapped
from foundry.knowledge.opgraph import Op, contiguous_strides

_MOST = (1 << 31) - 1  # most items, and most targets: the sort counts in int32
# Limits of tables that the CPU fills without a sort. Measured, without sort / sorted, in ms: 100,000 items of 64
# numbers
# in 10,000 segments (5 MB) 0.83 / 0.94; 125,000 items in 25,000 (12 MB) 1.9 / 1.2; 3,000,000 numbers in as many
# segments
# (22 MB) 15 / 33; 100,000 numbers in 200,000 segments 0.14 / 0.82; 10 items of 64 numbers in 100,000 segments 2.6 /
# 1.1.
_WIDE = 8  # numbers per item from which the smaller limit holds
_MOST_WIDE_BYTES = 1 << 23
_MOST_BYTES = 1 << 28
_REDUCTION: dict[str, Literal["sum", "prod", "max", "min", "last"]] = {
    "sum": "sum",
    "mean": "sum",
    "prod": "prod",
    "amax": "max",
    "amin": "min",
    "last": "last",
}
_JOIN = {"sum": "add", "mean": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}


@dataclass(frozen=True)
class Items:
    """`count` items to be written to `target`. `key`, over (count,), is each item's position along `axes`
    (neighbouring dimensions; -1 for none). `value` is over (count, the target's other dimensions...)."""

    target: Tensor
    axes: tuple[int, ...]
    count: int
    key: Expr
    value: Expr


def items_of_indices(builder: Builder, op: Op, target: Tensor, found: Mapping[int, Tensor], source: Tensor) -> Items:
    """The items of an index_put: broadcast indices of some dimensions name slices. `source` broadcasts to a slice for
    each, with the indices' dimensions in place of the indexed ones. Raises Unsupported if the indexed dimensions are
    not next to each other."""
    axes = tuple(sorted(found))
    if axes != tuple(range(axes[0], axes[-1] + 1)):
        raise Unsupported("writes by indices of dimensions that are apart")
    index_shape = broadcast(*(index.shape for index in found.values()))
    count = math.prod(index_shape)
    places = []
    for axis in axes:
        flat = builder.reshape(builder.expand(found[axis], index_shape, op), (count,), op)
        places.append(wrapped(flat.expr, target.shape[axis]))
    before, after = target.shape[: axes[0]], target.shape[axes[-1] + 1 :]
    spread = builder.expand(source, (*before, *index_shape, *after), op)
    flat = builder.reshape(spread, (*before, count, *after), op)
    at = len(before)
    order = [at, *range(at), *range(at + 1, at + 1 + len(after))]
    value = builder.permute(flat, order, op).expr
    return Items(target, axes, count, _key(places, [target.shape[axis] for axis in axes]), value)


def items_of_elements(builder: Builder, op: Op, target: Tensor, axis: int, index: Tensor, source: Tensor) -> Items:
    """The items of a scatter: each element of `index` names one position along `axis`, at its own position in the
    others, for the source element at the same place.

    Dimensions along which all indices are equal become part of an item's value.
    """
    for dim, size in enumerate(index.shape):
        source = front(builder, op, source, dim, size)
    moving = _moving(index)
    axes = [d for d, size in enumerate(index.shape) if d == axis or d in moving or size != target.shape[d]]
    if axes != list(range(axes[0], axes[-1] + 1)):
        axes = list(range(len(index.shape)))
    rest = [d for d in range(len(index.shape)) if d not in axes]
    own = tuple(index.shape[d] for d in axes)
    count = math.prod(own)
    # Along dimensions in which the indices do not vary, one of them stands for all.
    seen = index
    for dim in rest:
        seen = front(builder, op, seen, dim, 1)
    seen = builder.reshape(seen, own, op)
    places: list[Expr] = []
    for at, dim in enumerate(axes):
        along = Iota(View(0, tuple(int(other == at) for other in range(len(axes)))), "int64")
        places.append(wrapped(seen.expr, target.shape[dim]) if dim == axis else along)
    key = builder.reshape(Tensor(own, _key(places, [target.shape[d] for d in axes])), (count,), op)
    turned = builder.permute(source, [*axes, *rest], op)
    value = builder.reshape(turned, (count, *(target.shape[d] for d in rest)), op).expr
    return Items(target, tuple(axes), count, key.expr, value)


def _moving(index: Tensor) -> set[int]:
    """The dimensions along which an index tensor's elements may differ."""
    steps = [node.view.strides for node in views.nodes(index.expr) if isinstance(node, views.Leaf)]
    return {d for d in range(len(index.shape)) if any(step[d] for step in steps)}


def front(builder: Builder, op: Op, tensor: Tensor, axis: int, size: int) -> Tensor:
    """The first `size` elements along one dimension."""
    if tensor.shape[axis] == size:
        return tensor
    shape = (*tensor.shape[:axis], size, *tensor.shape[axis + 1 :])
    return builder.reindex(tensor, View(0, contiguous_strides(tensor.shape)), shape, op)


def _key(places: list[Expr], sizes: list[int]) -> Expr:
    """The row-major number of a position in several dimensions; -1 if one of the indices is out of range."""
    if len(places) == 1:
        return places[0]
    key: Expr = const(0, "int64")
    known: Expr = const(True, "bool")
    for place, size, step in zip(places, sizes, contiguous_strides(tuple(sizes)), strict=True):
        key = apply("add", key, scalar("mul", place, step))
        if not isinstance(place, Iota):
            inside = apply("logical_and", scalar_bool("ge", place, 0), scalar_bool("lt", place, size), dtype="bool")
            known = apply("logical_and", known, inside, dtype="bool")
    return apply("where", known, key, const(-1, "int64"), dtype="int64")


# ---------------------------------------------------------------- the kernels


def write_segments(
    builder: Builder, op: Op, items: Items, kind: str, *, keeps: bool = True, factor: float = 1.0
) -> None:
    """Emits the target combined with the items' values. `kind` is the reduction, or "last" for the value of the last
    item. Without `keeps`, an element that an item names loses its own value. Raises Unsupported for an empty target,
    too many items or segments, and reductions of bools."""
    target = items.target
    dtype = compute_dtype(items.target.dtype)
    rest = [d for d in range(len(target.shape)) if d not in items.axes]
    shape = (math.prod(target.shape[d] for d in items.axes), *(target.shape[d] for d in rest))
    if (dtype == "bool" and kind != "last") or not target.numel or max(items.count, shape[0]) >= _MOST:
        raise Unsupported("segments that are not counted")
    own = cast(builder.reshape(builder.permute(target, [*items.axes, *rest], op), shape, op).expr, dtype)
    value = cast(items.value, dtype)
    value = value if factor == 1 else scalar("mul", value, factor)
    key = items.key if _is_direct(builder, items, shape) else None
    starts = ""
    order = ""
    if key is None:
        starts, order = sorted_items(builder, op, items.key, items.count, shape[0])
    joined = _joined(kind, keeps, Named("acc", dtype), own)
    result = builder.buffer(op.outputs[0].name, target.shape, target.dtype)
    assert isinstance(result.expr, Load)
    steps = result.expr.view.strides
    view = View(0, (steps[items.axes[-1]], *(steps[d] for d in rest)))
    store = Store(result.expr.buffer, view, cast(joined, target.dtype))
    name = f"k_{store.buffer}"
    reduction = _REDUCTION[kind]
    stores, ops = (store,), (op.name,)
    kernel = SegmentKernel(
        name,
        items=items.count,
        shape=shape,
        op=reduction,
        value=value,
        starts=starts,
        order=order,
        stores=stores,
        dtype=dtype,
        ops=ops,
        key=key,
    )
    builder.emit(kernel)
    builder.tensors[op.outputs[0].name] = result


def _joined(kind: str, keeps: bool, acc: Expr, own: Expr) -> Expr:
    """The result of an element from its own value and the reduced values of its items."""
    number = Named("count", "int64")
    dtype = own.dtype
    found = apply(_JOIN[kind], acc, own) if keeps and kind != "last" else acc
    if kind == "mean":
        whole = scalar("add", number, 1) if keeps else apply("maximum", number, const(1, "int64"))
        found = apply("div" if dtype in ("float32", "float64") else "floordiv", found, cast(whole, dtype))
    if keeps and kind != "last":
        return found
    return apply("where", scalar_bool("gt", number, 0), found, own, dtype=dtype)


def _is_direct(builder: Builder, items: Items, shape: tuple[int, ...]) -> bool:
    """True if items are added in their given order to a table of all targets: on the CPU, unless the table is very
    large, or much larger than the items."""
    inner = math.prod(shape[1:])
    is_filled = shape[0] * min(inner, _WIDE) <= _WIDE * items.count
    most = _MOST_BYTES if inner < _WIDE else _MOST_WIDE_BYTES
    return builder.forms.direct_segments and is_filled and 8 * shape[0] * inner <= most
