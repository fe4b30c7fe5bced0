"""Lowers running sums, products and extrema along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import Expr, Gather, Iota, Load, Named, ScanKernel, Store, View
from foundry.knowledge.compiler.rules.builder import (
    FLOATS,
    Builder,
    Tensor,
    apply,
    cast,
    compute_dtype,
    const,
    number,
    rule,
)
from foundry.knowledge.compiler.rules.reduce import is_read
from foundry.knowledge.opgraph import Op, contiguous_strides

_OPERATION: dict[str, Literal["sum", "prod", "max", "min", "logsumexp"]] = {
    "cumsum": "sum",
    "cumprod": "prod",
    "cummax": "max",
    "cummin": "min",
    "logcumsumexp": "logsumexp",
}


_POSITIONS = (1 << 32) - 1  # mask of the key's bits that hold the position


def _backwards(expr: Expr) -> bool:
    """True if every load reads the last dimension from its end: the input was flipped."""
    steps = [node.view.strides[-1] for node in views.nodes(expr) if isinstance(node, Load | Gather)]
    return bool(steps) and all(step <= 0 for step in steps) and any(step < 0 for step in steps)


@rule(*_OPERATION)
def _scan(builder: Builder, op: Op) -> None:
    """Lowers cumsum, cumprod, cummax, cummin and logcumsumexp to a scan kernel; positions too, if they are read."""
    source = builder.tensor_at(op, 0, "self")
    if not source.shape:
        builder.bind(op, source)
        if len(op.outputs) > 1:
            builder.bind(op, Tensor((), const(0, "int64")), 1)
        return
    has_positions = len(op.outputs) > 1 and is_read(builder, op, 1)
    axis = source.axis(int(number(op, 1, "dim")))
    rank = len(source.shape)
    order = [*(dim for dim in range(rank) if dim != axis), axis]
    shape = tuple(source.shape[dim] for dim in order)
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    value = cast(builder.permute(source, order, op).expr, dtype)
    reverse = _backwards(value) and not has_positions
    if reverse:
        value = _flip(value, shape)
    spec = op.outputs[0].spec
    target = builder.buffer(op.outputs[0].name, spec.shape, spec.dtype)
    assert isinstance(target.expr, Load)
    strides = contiguous_strides(spec.shape)
    view = View(0, tuple(strides[dim] for dim in order))
    if has_positions and dtype == "float32":
        _with_positions(builder, op, shape, value, buffer=target.expr.buffer, stored=view)
        builder.tensors[op.outputs[0].name] = target
        return
    store = Store(target.expr.buffer, view, cast(Named("acc", dtype), spec.dtype))
    name = f"k_{target.expr.buffer}"
    builder.emit(
        ScanKernel(
            name,
            shape,
            op=_OPERATION[op.kind],
            value=value,
            stores=(store,),
            dtype=dtype,
            reverse=reverse,
            exclusive=False,
            ops=(op.name,),
        )
    )
    if has_positions:
        _positions(builder, op, shape, value, running=Load(store.buffer, view, spec.dtype), stored=view)
    if not reverse:
        builder.tensors[op.outputs[0].name] = target
        return
    turned = View((source.shape[axis] - 1) * strides[axis], (*strides[:axis], -strides[axis], *strides[axis + 1 :]))
    load = Load(target.expr.buffer, turned, spec.dtype)
    builder.tensors[op.outputs[0].name] = replace(target, expr=load)


def _with_positions(builder: Builder, op: Op, shape: tuple[int, ...], value: Expr, buffer: str, stored: View) -> None:
    """Emits running extrema and their positions as one scan of int64 keys, with the value in the high bits and its
    position below. Among equal values the last counts, and NaN is more extreme than all."""
    is_maximum = op.kind == "cummax"
    acc = Named("acc", "int64")
    place = Iota(View(0, (*(0,) * (len(shape) - 1), 1)), "int64")
    key = apply("order_key", value if is_maximum else apply("neg", value, dtype="float32"), dtype="int64")
    found = apply("of_order_key", acc, dtype="float32")
    found = cast(found if is_maximum else apply("neg", found, dtype="float32"), op.outputs[0].spec.dtype)
    positions = builder.buffer(op.outputs[1].name, op.outputs[1].spec.shape, op.outputs[1].spec.dtype)
    assert isinstance(positions.expr, Load)
    builder.tensors[op.outputs[1].name] = positions
    where = apply("bit_and", acc, const(_POSITIONS, "int64"), dtype="int64")
    stores = (Store(buffer, stored, found), Store(positions.expr.buffer, stored, where))
    both = apply("bit_or", key, place, dtype="int64")
    builder.emit(
        ScanKernel(
            f"k_{buffer}",
            shape,
            op="max",
            value=both,
            stores=stores,
            dtype="int64",
            reverse=False,
            exclusive=False,
            ops=(op.name,),
        )
    )


def _positions(builder: Builder, op: Op, shape: tuple[int, ...], value: Expr, running: Load, stored: View) -> None:
    """Emits the positions of running extrema: the last position so far whose element equals the running extremum.
    NaN is more extreme than all."""
    spec = op.outputs[1].spec
    target = builder.buffer(op.outputs[1].name, spec.shape, spec.dtype)
    assert isinstance(target.expr, Load)
    builder.tensors[op.outputs[1].name] = target
    place = Iota(View(0, (*(0,) * (len(shape) - 1), 1)), "int64")
    is_new = apply("eq", value, cast(running, value.dtype), dtype="bool")
    if value.dtype in FLOATS:
        is_new = apply("logical_or", is_new, apply("isnan", value, dtype="bool"), dtype="bool")
    position = apply("where", is_new, place, const(-1, "int64"), dtype="int64")
    store = Store(target.expr.buffer, stored, Named("acc", "int64"))
    name = f"k_{target.expr.buffer}"
    builder.emit(
        ScanKernel(
            name,
            shape,
            op="max",
            value=position,
            stores=(store,),
            dtype="int64",
            reverse=False,
            exclusive=False,
            ops=(op.name,),
        )
    )


def _flip(expr: Expr, shape: tuple[int, ...]) -> Expr:
    """The expression with the last dimension reversed."""
    last = shape[-1] - 1

    def leaf(node: views.Leaf) -> Expr:
        """The leaf read from the other end along its last dimension."""
        step = node.view.strides[-1]
        return replace(node, view=View(node.view.offset + last * step, (*node.view.strides[:-1], -step)))

    return views.rebuild(expr, leaf)
