"""Recognises softmax(q k^T) v written as separate products, after fusion has reduced it to product, row kernel,
product, and replaces the three by one AttentionKernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import loaded_names
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    AttentionKernel,
    Buffer,
    Const,
    Emit,
    Expr,
    GemmKernel,
    Iota,
    Load,
    MapKernel,
    Named,
    Reduction,
    RowKernel,
    Store,
)
from foundry.knowledge.opgraph import DType

Shape = tuple[int, ...]
_WIDE: DType = "float32"  # the dtype in which masks are added
_NARROW = ("float16", "bfloat16")


def join_attention(scores: GemmKernel, softmax: RowKernel, product: GemmKernel) -> AttentionKernel | None:
    """The one kernel that replaces the three: `scores` (q k^T), `softmax` over its rows, and `product`
    (probabilities times v). None if they do not form an attention."""
    value = _softmax_argument(softmax)
    if value is None or len(scores.stores) != 1 or scores.batch != product.batch or not scores.batch:
        return None
    if scores.is_split or product.is_split:
        return None
    batch, rows, columns = scores.batch, scores.m, scores.n
    space = (*batch, rows, columns)
    stage = softmax.stages[-1]
    assert isinstance(stage, Emit)
    whole = _without_casts(product.a)
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
    (factor, mask), (q, k, v, scale) = opened, operands
    causal = _is_causal(mask, len(batch))
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
        mask=None if causal else mask,
        stores=product.stores,
        dtype=product.dtype,
        ops=scores.ops + softmax.ops + product.ops,
        empty_rows="nan",
    )


def _without_casts(expr: Expr) -> Expr:
    """The expression inside any outer casts."""
    while isinstance(expr, Apply) and expr.op == "cast":
        expr = expr.args[0]
    return expr


def _softmax_argument(kernel: RowKernel) -> Expr | None:
    """x, if the row kernel computes exactly exp(x - max(x)) / sum; else None."""
    if len(kernel.stages) != 3:
        return None
    largest, total, emit = kernel.stages
    if not (isinstance(largest, Reduction) and isinstance(total, Reduction) and isinstance(emit, Emit)):
        return None
    if (largest.op, total.op) != ("max", "sum"):
        return None
    value = total.value
    result = _without_casts(emit.store.value)
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


def _unpack_scores(node: Expr, buffer: str, stored: Expr, space: Shape) -> tuple[float, Expr | None] | None:
    """(scale, additive mask) if the softmax argument `node` is the product's accumulator, scaled and masked; else None.

    `buffer` holds the stored scores, `stored` is the expression stored there, `space` its shape.
    """
    if isinstance(node, Named) and node.name == "acc":
        return 1.0, None
    if isinstance(node, Load) and node.buffer == buffer:
        return _unpack_scores(stored, buffer, stored, space) if views.is_identity(node.view, space) else None
    if not isinstance(node, Apply):
        return None
    inside = [argument for argument in node.args if _is_scores(argument, buffer)]
    found = _unpack_scores(inside[0], buffer, stored, space) if len(inside) == 1 else None
    if found is None or node.op == "cast":
        return found
    scale, mask = found
    if node.op in ("mul", "div") and node.args[0] is inside[0] and isinstance(node.args[1], Const):
        factor = float(node.args[1].value) if node.op == "mul" else 1.0 / float(node.args[1].value)
        scaled = None if mask is None else Apply("mul", (mask, Const(factor, _WIDE)), _WIDE)
        return (scale * factor, scaled) if factor > 0 or mask is None else None
    if node.op == "where" and node.args[0] is not inside[0]:
        rest = Const(0.0, _WIDE) if mask is None else mask
        hidden = Const(-math.inf, _WIDE)
        others = [argument for argument in node.args[1:] if argument is not inside[0]]
        if [other for other in others if not (isinstance(other, Const) and other.value == -math.inf)]:
            return None
        chosen = (rest, hidden) if node.args[1] is inside[0] else (hidden, rest)
        return scale, Apply("where", (node.args[0], *chosen), _WIDE)
    if node.op == "add" or (node.op == "sub" and node.args[0] is inside[0]):
        added = node.args[1] if node.args[0] is inside[0] else node.args[0]
        added = added if added.dtype == _WIDE else Apply("cast", (added,), _WIDE)
        if mask is None:
            return scale, added if node.op == "add" else Apply("neg", (added,), _WIDE)
        return scale, Apply(node.op, (mask, added), _WIDE)
    return None


def _is_scores(expr: Expr, buffer: str) -> bool:
    """True if the expression reads the scores: the buffer that holds them, or the accumulator "acc" itself."""
    return buffer in loaded_names(expr) or any(
        isinstance(node, Named) and node.name == "acc" for node in views.nodes(expr)
    )


def _is_causal(mask: Expr | None, row: int) -> bool:
    """True if an additive mask is -inf exactly at columns beyond the row (axis `row` of the mask's shape)."""
    if not (isinstance(mask, Apply) and mask.op == "where"):
        return False
    condition, chosen, other = _without_casts(mask.args[0]), *mask.args[1:]
    if not all(isinstance(side, Const) for side in (chosen, other)):
        return False
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
    limit = int(bound.value) - distance.view.offset  # the bound on column - row
    beyond = {"ge": (limit, True), "gt": (limit + 1, True), "lt": (limit, False), "le": (limit + 1, False)}
    if condition.op not in beyond:
        return False
    first, true_beyond = beyond[condition.op]
    return first == 1 and (hidden_where_true if true_beyond else hidden_where_false)


def load_operands(
    scores: GemmKernel, product: GemmKernel, buffers: Mapping[str, Buffer], *, in_order: bool
) -> tuple[list[tuple[Buffer, MapKernel]], GemmKernel, GemmKernel]:
    """Makes every operand of the two products a plain load. An operand that is computed (q and k after a rotary
    position embedding) gets a buffer and a map that fills it.

    Returns the (buffer, map) pairs and the two changed products. `in_order`: 16-bit operands whose last dimension is
    not contiguous in memory are copied too.
    """
    sides = [_unscaled(operand) for operand in (scores.a, scores.b, product.b)]
    narrow = [node.dtype for node, _ in sides if isinstance(node, Load) and node.dtype in _NARROW]
    dtype = narrow[0] if narrow else scores.dtype
    made: list[tuple[Buffer, MapKernel]] = []

    def loaded(operand: Expr, node: Expr, scale: float, shape: Shape, part: str) -> Expr:
        """The operand as a load that attention can stream: as it is, or stored by a new map before it, in `made`."""
        is_apart = in_order and isinstance(node, Load) and node.dtype in _NARROW and node.view.strides[-1] != 1
        if (isinstance(node, Load) and not is_apart) or scores.n < scores.k:
            return operand
        name = f"{scores.name.removeprefix('k_')}_{part}"
        if name in buffers:
            return operand
        view = views.identity(shape)
        store = Store(name, view, Apply("cast", (node,), dtype))
        buffer = Buffer(name, shape, view.strides, dtype, "temporary")
        made.append((buffer, MapKernel(f"k_{name}", shape, (store,), scores.ops)))
        return Apply("mul", (Load(name, view, dtype), Const(scale, scores.dtype)), scores.dtype)

    (q, q_scale), (k, k_scale), (v, v_scale) = sides
    across = (*scores.batch, scores.n, scores.k)
    a = loaded(scores.a, q, q_scale, (*scores.batch, scores.m, scores.k), "q")
    b = loaded(_turned(scores.b), _turned(k), k_scale, across, "k")
    value = loaded(product.b, v, v_scale, (*product.batch, product.k, product.n), "v")
    return made, replace(scores, a=a, b=_turned(b)), replace(product, b=value)


def _turned(expr: Expr) -> Expr:
    """The expression with its last two dimensions swapped."""
    return views.map_views(expr, views.swap_last)


def _unscaled(operand: Expr) -> tuple[Expr, float]:
    """The expression inside casts and constant factors, and the product of these factors."""
    scale = 1.0
    node = operand
    while isinstance(node, Apply) and node.op in ("mul", "div", "cast"):
        if node.op != "cast":
            number = node.args[1]
            if not isinstance(number, Const):
                break
            scale *= float(number.value) if node.op == "mul" else 1.0 / float(number.value)
        node = node.args[0]
    return node, scale


def _operands(scores: GemmKernel, product: GemmKernel) -> tuple[Load, Load, Load, float] | None:
    """q, k (as columns x head) and v as loads, and the factor that scaled q or k before the product. None if one is
    computed, or v is scaled."""
    (q, q_scale), (k, k_scale), (v, v_scale) = (_unscaled(side) for side in (scores.a, scores.b, product.b))
    if not (isinstance(q, Load) and isinstance(k, Load) and isinstance(v, Load)) or v_scale != 1.0:
        return None
    turned = _turned(k)
    assert isinstance(turned, Load)
    return q, turned, v, q_scale * k_scale
