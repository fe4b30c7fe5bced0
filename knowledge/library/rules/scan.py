"""Running sums, products and extrema along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from foundry.knowledge.library.ir import views
from foundry.knowledge.library.ir.kernels import Expr, Gather, Iota, Load, Named, ScanKernel, Store, View
from foundry.knowledge.library.rules.builder import Builder, Unsupported, cast, compute_dtype, number, rule
from foundry.knowledge.library.rules.reduce import is_read
from foundry.knowledge.opgraph import Op, contiguous_strides

_OPERATION: dict[str, Literal["sum", "prod", "max", "min", "logsumexp"]] = {
    "cumsum": "sum",
    "cumprod": "prod",
    "cummax": "max",
    "cummin": "min",
    "logcumsumexp": "logsumexp",
}


def _backwards(expr: Expr) -> bool:
    """Whether every load walks the last dimension from its end: the input was flipped."""
    steps = [node.view.strides[-1] for node in views.nodes(expr) if isinstance(node, Load | Gather)]
    return bool(steps) and all(step <= 0 for step in steps) and any(step < 0 for step in steps)


@rule(*_OPERATION)
def _scan(builder: Builder, op: Op) -> None:
    source = builder.tensor_at(op, 0, "self")
    if not source.shape:
        builder.bind(op, source)
        return
    if len(op.outputs) > 1 and is_read(builder, op, 1):
        raise Unsupported("the positions of running extrema")
    axis = source.axis(int(number(op, 1, "dim")))
    rank = len(source.shape)
    order = [*(dim for dim in range(rank) if dim != axis), axis]
    shape = tuple(source.shape[dim] for dim in order)
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    value = cast(builder.permute(source, order, op).expr, dtype)
    reverse = _backwards(value)
    if reverse:
        value = _flip(value, shape)
    spec = op.outputs[0].spec
    target = builder.buffer(op.outputs[0].name, spec.shape, spec.dtype)
    assert isinstance(target.expr, Load)
    strides = contiguous_strides(spec.shape)
    view = View(0, tuple(strides[dim] for dim in order))
    store = Store(target.expr.buffer, view, cast(Named("acc", dtype), spec.dtype))
    name = f"k_{target.expr.buffer}"
    builder.emit(ScanKernel(name, shape, _OPERATION[op.kind], value, (store,), dtype, reverse, False, (op.name,)))
    if not reverse:
        builder.tensors[op.outputs[0].name] = target
        return
    turned = View((source.shape[axis] - 1) * strides[axis], (*strides[:axis], -strides[axis], *strides[axis + 1 :]))
    load = Load(target.expr.buffer, turned, spec.dtype)
    builder.tensors[op.outputs[0].name] = replace(target, expr=load)


def _flip(expr: Expr, shape: tuple[int, ...]) -> Expr:
    """The expression with the last dimension walked the other way."""
    last = shape[-1] - 1

    def leaf(node: Load | Gather | Iota) -> Expr:
        step = node.view.strides[-1]
        return replace(node, view=View(node.view.offset + last * step, (*node.view.strides[:-1], -step)))

    return views.rebuild(expr, leaf)
