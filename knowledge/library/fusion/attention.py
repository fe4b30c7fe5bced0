"""Recognises softmax(q k^T) v that is written as separate products, once fusion has reduced it to three kernels."""

from __future__ import annotations

import math
from dataclasses import replace

from foundry.knowledge.library.ir import views
from foundry.knowledge.library.ir.access import loaded_names
from foundry.knowledge.library.ir.kernels import (
    Apply,
    AttentionKernel,
    Const,
    Emit,
    Expr,
    GemmKernel,
    Iota,
    Load,
    Named,
    Reduction,
    RowKernel,
    View,
)

Shape = tuple[int, ...]


def join_attention(scores: GemmKernel, softmax: RowKernel, product: GemmKernel) -> AttentionKernel | None:
    """One kernel that replaces the three; None if they are not an attention."""
    value = _softmax_argument(softmax)
    if value is None or len(scores.stores) != 1 or scores.batch != product.batch or not scores.batch:
        return None
    batch, rows, columns = scores.batch, scores.m, scores.n
    space = (*batch, rows, columns)
    stage = softmax.stages[-1]
    assert isinstance(stage, Emit)
    whole = product.a
    fits = (
        math.prod(softmax.outer) == math.prod(batch) * rows
        and math.prod(softmax.reduced) == columns
        and (product.m, product.k) == (rows, columns)
        and isinstance(whole, Load)
        and whole.buffer == stage.store.buffer
        and views.is_identity(whole.view, space)
        and views.is_identity(stage.store.view, softmax.outer + softmax.reduced)
        and views.is_identity(scores.stores[0].view, space)
    )
    if not fits:
        return None
    try:
        value = views.remap(value, softmax.outer + softmax.reduced, views.identity(space), space)
    except views.NotAffine:
        return None
    opened = _unpack_scores(value, scores.stores[0].buffer, scores.stores[0].value, space)
    operands = _operands(scores, product)
    if opened is None or operands is None:
        return None
    (factor, causal, mask), (q, k, v, scale) = opened, operands
    return AttentionKernel(
        name=scores.name,
        batch=batch,
        rows=rows,
        columns=columns,
        head=scores.k,
        value_head=product.n,
        q=q,
        k=k,
        v=v,
        scale=factor * scale,
        causal=causal,
        mask=mask,
        stores=product.stores,
        dtype=product.dtype,
        ops=scores.ops + softmax.ops + product.ops,
        empty_rows="nan",
    )


def _softmax_argument(kernel: RowKernel) -> Expr | None:
    """x, if the kernel computes exactly exp(x - max) / sum; else None."""
    if len(kernel.stages) != 3:
        return None
    largest, total, emit = kernel.stages
    if not (isinstance(largest, Reduction) and isinstance(total, Reduction) and isinstance(emit, Emit)):
        return None
    if (largest.op, total.op) != ("max", "sum"):
        return None
    value, result = total.value, emit.store.value
    while isinstance(result, Apply) and result.op == "cast":
        result = result.args[0]
    quotient = isinstance(result, Apply) and result.op == "div" and result.args[1] == Named(total.name, total.dtype)
    shifted = isinstance(value, Apply) and value.op == "exp" and isinstance(value.args[0], Apply)
    if not (quotient and shifted):
        return None
    assert isinstance(result, Apply) and isinstance(value, Apply)
    difference = value.args[0]
    assert isinstance(difference, Apply)
    if result.args[0] != value or difference.op != "sub":
        return None
    if difference.args != (largest.value, Named(largest.name, largest.dtype)):
        return None
    return largest.value


def _unpack_scores(value: Expr, buffer: str, stored: Expr, space: Shape) -> tuple[float, bool, Expr | None] | None:
    """(scale, causal, additive mask) of a softmax argument that is a scaled and masked accumulator, else None."""
    scale = 1.0
    mask: Expr | None = None
    causal = False
    node = value
    while True:
        if isinstance(node, Named) and node.name == "acc":
            return scale, causal, mask
        if isinstance(node, Load) and node.buffer == buffer:
            if not views.is_identity(node.view, space):
                return None
            node = stored
        elif isinstance(node, Apply) and node.op == "cast":
            node = node.args[0]
        elif isinstance(node, Apply) and node.op in ("mul", "div") and isinstance(node.args[1], Const):
            number = float(node.args[1].value)
            scale *= number if node.op == "mul" else 1.0 / number
            node = node.args[0]
        elif isinstance(node, Apply) and node.op in ("where", "add") and scale == 1.0 and mask is None and not causal:
            parts = _split_mask(node, buffer)
            if parts is None:
                return None
            node, mask = parts
            causal = _is_causal(mask, len(space) - 2)
            mask = None if causal else mask
        else:
            return None


def _is_scores(expr: Expr, buffer: str) -> bool:
    return buffer in loaded_names(expr) or any(
        isinstance(node, Named) and node.name == "acc" for node in views.nodes(expr)
    )


def _split_mask(node: Apply, buffer: str) -> tuple[Expr, Expr] | None:
    """(scores, additive mask) of `scores + mask`, or of `where(mask, -inf, scores)` either way round."""
    if node.op == "add":
        sides = [argument for argument in node.args if not _is_scores(argument, buffer)]
        rest = [argument for argument in node.args if _is_scores(argument, buffer)]
        return (rest[0], sides[0]) if len(rest) == 1 else None
    condition, chosen, other = node.args
    hidden, zero = Const(-math.inf, node.dtype), Const(0.0, node.dtype)
    if _is_scores(condition, buffer):
        return None
    if chosen == hidden:
        return other, Apply("where", (condition, hidden, zero), node.dtype)
    if other == hidden:
        return chosen, Apply("where", (condition, zero, hidden), node.dtype)
    return None


def _is_causal(mask: Expr | None, row: int) -> bool:
    """Whether an additive mask is -inf exactly where the column is beyond the row."""
    if not (isinstance(mask, Apply) and mask.op == "where"):
        return False
    condition, chosen, other = mask.args
    while isinstance(condition, Apply) and condition.op == "cast":
        condition = condition.args[0]
    hidden_where_true = isinstance(chosen, Const) and chosen.value == -math.inf
    hidden_where_false = isinstance(other, Const) and other.value == -math.inf
    if not (isinstance(condition, Apply) and isinstance(condition.args[0], Iota)):
        return False
    bound = condition.args[1]
    if not isinstance(bound, Const) or len(condition.args) != 2:
        return False
    distance = condition.args[0]
    lead = distance.view.strides[:row]
    if any(lead) or distance.view.strides[row:] != (-1, 1):
        return False
    limit = int(bound.value) - distance.view.offset  # of column - row
    beyond = {"ge": (limit, True), "gt": (limit + 1, True), "lt": (limit, False), "le": (limit + 1, False)}
    if condition.op not in beyond:
        return False
    first, true_beyond = beyond[condition.op]
    return first == 1 and (hidden_where_true if true_beyond else hidden_where_false)


def _operands(scores: GemmKernel, product: GemmKernel) -> tuple[Load, Load, Load, float] | None:
    """q, k (as columns x head) and v as loads, and the number that scaled q or k before the product."""
    scale = 1.0
    loads: list[Load] = []
    for operand in (scores.a, scores.b, product.b):
        node = operand
        while isinstance(node, Apply) and node.op in ("mul", "div", "cast"):
            if node.op != "cast":
                number = node.args[1]
                if not isinstance(number, Const) or operand is product.b:
                    return None
                scale *= float(number.value) if node.op == "mul" else 1.0 / float(number.value)
            node = node.args[0]
        if not isinstance(node, Load):
            return None
        loads.append(node)
    q, k, v = loads
    strides = k.view.strides
    turned = View(k.view.offset, (*strides[:-2], strides[-1], strides[-2]))
    return q, replace(k, view=turned), v, scale
