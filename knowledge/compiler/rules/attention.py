"""Lowers scaled_dot_product_attention. Attention written as separate operators is recognised after fusion
(fusion/attention.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, Expr, Iota, Load, Named, Store, View
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
    number,
    rule,
)
from foundry.knowledge.compiler.rules.contract import product
from foundry.knowledge.compiler.rules.reduce import Rows
from foundry.knowledge.opgraph import DType, Op, TensorSpec, contiguous_strides


@dataclass(frozen=True)
class _Call:
    """One call of the operator. Shapes: query (..., rows, head), key (..., columns, head), value (..., columns,
    value head). `mask` is added to the scores, over (*batch, rows, columns)."""

    query: Tensor
    key: Tensor
    value: Tensor
    batch: tuple[int, ...]
    scale: float
    causal: bool
    mask: Expr | None
    dtype: DType

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of the scores: (*batch, rows, columns)."""
        return (*self.batch, self.query.shape[-2], self.key.shape[-2])


@rule("scaled_dot_product_attention")
def _attention(builder: Builder, op: Op) -> None:
    """Lowers scaled_dot_product_attention to one attention kernel, or to three kernels if the recipe asks for that."""
    call = _read(builder, op)
    if op.name in builder.apart:
        _three_kernels(builder, op, call)
    else:
        _one_kernel(builder, op, call)


def _read(builder: Builder, op: Op) -> _Call:
    """The call's operands, scale and additive mask. Raises Unsupported for dropout."""
    query, key, value = (builder.tensor(item) for item in op.args[:3])
    mask = builder.optional(op, 3, "attn_mask")
    if number(op, 4, "dropout_p", 0.0) > 0:
        raise Unsupported("attention with dropout")
    given = argument(op, 6, "scale")
    scale = 1 / math.sqrt(query.shape[-1]) if given is None else number(op, 6, "scale")
    if flag(op, 7, "enable_gqa"):
        query, key, value, mask = _group_heads(builder, op, query, key, value, mask=mask)
    batch = broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    additive: Expr | None = None
    if mask is not None:
        shown = builder.expand(mask, (*batch, query.shape[-2], key.shape[-2]), op).expr
        additive = cast(shown, dtype)
        if mask.dtype == "bool":
            additive = apply("where", shown, const(0.0, dtype), const(-math.inf, dtype), dtype=dtype)
    return _Call(query, key, value, batch, scale, causal=flag(op, 5, "is_causal"), mask=additive, dtype=dtype)


def _one_kernel(builder: Builder, op: Op, call: _Call) -> None:
    """Emits one AttentionKernel for the call; operands are stored first if they are not in memory."""
    loads = []
    for tensor in (call.query, call.key, call.value):
        in_memory, _ = builder.ensure_load(tensor, op)
        seen = builder.expand(in_memory, (*call.batch, *tensor.shape[-2:]), op)
        loads.append(builder.ensure_load(seen, op)[1])
    spec = op.outputs[0].spec
    target = builder.buffer(op.outputs[0].name, spec.shape, spec.dtype)
    assert isinstance(target.expr, Load)
    builder.tensors[op.outputs[0].name] = target
    *_, rows, columns = call.scores
    space = (*call.batch, rows, call.value.shape[-1])
    store = Store(target.expr.buffer, views.identity(space), cast(Named("acc", call.dtype), spec.dtype))
    builder.emit(
        AttentionKernel(
            name=f"k_{target.expr.buffer}",
            batch=call.batch,
            rows=rows,
            columns=columns,
            head=call.query.shape[-1],
            value_head=call.value.shape[-1],
            q=loads[0],
            k=loads[1],
            v=loads[2],
            scale=call.scale,
            causal=call.causal,
            mask=call.mask,
            stores=(store,),
            dtype=call.dtype,
            ops=(op.name,),
        )
    )


def _three_kernels(builder: Builder, op: Op, call: _Call) -> None:
    """Emits scores, softmax, and product with the values as three kernels through memory: possible for heads of any
    size."""
    begin, rank = len(builder.steps), len(call.batch)
    query, key, value = (
        builder.expand(tensor, (*call.batch, *tensor.shape[-2:]), op) for tensor in (call.query, call.key, call.value)
    )
    turned = builder.permute(key, [*range(rank), rank + 1, rank], op)

    def masked(score: Expr) -> Expr:
        """The scaled score plus the mask, -inf behind the diagonal if causal."""
        score = apply("mul", score, const(call.scale, call.dtype))
        if call.mask is not None:
            score = apply("add", score, call.mask)
        if call.causal:
            distance = Iota(View(0, (*(0 for _ in call.batch), -1, 1)), "int64")  # column - row
            hidden = apply("gt", distance, const(0, "int64"), dtype="bool")
            score = apply("where", hidden, const(-math.inf, call.dtype), score, dtype=call.dtype)
        return score

    first = _inner(op, "scores", call.scores, call.dtype)
    product(builder, first, query, b=turned, shape=call.scores, epilogue=masked)
    # Weights are rounded to the dtype of the values, so that both products multiply the same dtype.
    rows = Rows(builder, _inner(op, "weights", call.scores, op.outputs[0].spec.dtype), call.scores, [-1])
    rows.emit(_weights(rows, rows.see(builder.tensors[first.name])))
    rows.finish()
    shape = (*call.scores[:-1], value.shape[-1])
    last = _inner(op, "values", shape, op.outputs[0].spec.dtype)
    product(builder, last, builder.tensors[rows.op.name], value, shape)
    builder.bind(op, builder.reshape(builder.tensors[last.name], op.outputs[0].spec.shape, op))
    builder.steps[begin:] = [replace(step, ops=(op.name,)) for step in builder.steps[begin:]]


def _weights(rows: Rows, score: Expr) -> Expr:
    """The softmax of a row of scores; zeros for a fully masked row, as PyTorch's operator gives."""
    largest = rows.reduce("max", "max", score)
    empty = apply("eq", largest, const(-math.inf, score.dtype), dtype="bool")
    top = rows.let("top", apply("where", empty, const(0.0, score.dtype), largest, dtype=score.dtype))
    weight = apply("exp", apply("sub", score, top))
    total = rows.reduce("sum", "sum", weight)
    whole = rows.let("whole", apply("where", empty, const(1.0, score.dtype), total, dtype=score.dtype))
    return apply("div", weight, whole)


def _inner(op: Op, tag: str, shape: tuple[int, ...], dtype: DType) -> Op:
    """The operator with one output, the intermediate result `tag` of the given shape and dtype."""
    spec = TensorSpec(shape, contiguous_strides(shape), dtype)
    return replace(op, outputs=[replace(op.outputs[0], name=f"{op.name}_{tag}", spec=spec)])


def _group_heads(
    builder: Builder, op: Op, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Grouped-query attention (several query heads per key head): the tensors with the group as a batch dimension of
    its own."""
    *lead, heads, rows, head = query.shape
    shared = key.shape[-3]
    split = builder.reshape(query, (*lead, shared, heads // shared, rows, head), op)

    def spread(tensor: Tensor) -> Tensor:
        """The tensor with an axis of size 1 before its last two."""
        return builder.reshape(tensor, (*tensor.shape[:-2], 1, *tensor.shape[-2:]), op)

    if mask is not None and len(mask.shape) > 2:
        each = (shared, heads // shared) if mask.shape[-3] == heads else (1, 1)
        mask = builder.reshape(mask, (*mask.shape[:-3], *each, *mask.shape[-2:]), op)
    return split, spread(key), spread(value), mask
