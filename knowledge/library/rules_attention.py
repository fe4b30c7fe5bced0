"""Attention given as one operator; attention spelled out is recognised after fusion (attention_pattern)."""

from __future__ import annotations

import math

from foundry.knowledge.library import views
from foundry.knowledge.library.builder import (
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
from foundry.knowledge.library.ir import AttentionKernel, Expr, Load, Named, Store
from foundry.knowledge.opgraph import Op


@rule("scaled_dot_product_attention")
def _attention(builder: Builder, op: Op) -> None:
    query, key, value = (builder.tensor(item) for item in op.args[:3])
    mask = builder.optional(op, 3, "attn_mask")
    if number(op, 4, "dropout_p", 0.0) > 0:
        raise Unsupported("attention with dropout")
    causal = flag(op, 5, "is_causal")
    rows, head = query.shape[-2:]
    columns, value_head = key.shape[-2], value.shape[-1]
    given = argument(op, 6, "scale")
    scale = 1 / math.sqrt(head) if given is None else number(op, 6, "scale")
    if flag(op, 7, "enable_gqa"):
        query, key, value, mask = _grouped(builder, op, query, key, value, mask)
    batch = broadcast(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    loads = []
    for tensor, size in ((query, (rows, head)), (key, (columns, head)), (value, (columns, value_head))):
        in_memory, _ = builder.loaded(tensor, op)
        seen = builder.expand(in_memory, (*batch, *size), op)
        loads.append(builder.loaded(seen, op)[1])
    additive: Expr | None = None
    if mask is not None:
        shown = builder.expand(mask, (*batch, rows, columns), op).expr
        additive = cast(shown, dtype)
        if mask.dtype == "bool":
            additive = apply("where", shown, const(0.0, dtype), const(-math.inf, dtype), dtype=dtype)
    spec = op.outputs[0].spec
    target = builder.buffer(op.outputs[0].name, spec.shape, spec.dtype)
    assert isinstance(target.expr, Load)
    builder.tensors[op.outputs[0].name] = target
    space = (*batch, rows, value_head)
    store = Store(target.expr.buffer, views.identity(space), cast(Named("acc", dtype), spec.dtype))
    builder.emit(
        AttentionKernel(
            name=f"k_{target.expr.buffer}",
            batch=batch,
            rows=rows,
            columns=columns,
            head=head,
            value_head=value_head,
            q=loads[0],
            k=loads[1],
            v=loads[2],
            scale=scale,
            causal=causal,
            mask=additive,
            stores=(store,),
            dtype=dtype,
            ops=(op.name,),
        )
    )


def _grouped(
    builder: Builder, op: Op, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Several query heads to each key head: the group becomes a batch dimension of its own."""
    *lead, heads, rows, head = query.shape
    shared = key.shape[-3]
    if mask is not None and len(mask.shape) > 2 and mask.shape[-3] != 1:
        raise Unsupported("grouped attention with a mask for each head")
    split = builder.reshape(query, (*lead, shared, heads // shared, rows, head), op)

    def spread(tensor: Tensor) -> Tensor:
        return builder.reshape(tensor, (*tensor.shape[:-2], 1, *tensor.shape[-2:]), op)

    if mask is not None and len(mask.shape) > 2:
        mask = spread(mask)
    return split, spread(key), spread(value), mask
