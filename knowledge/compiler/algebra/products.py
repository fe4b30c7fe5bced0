"""Sums and means over a matrix product's rows or columns, taken before it, and products with a diagonal matrix.

sum_n (a b)[m, n] = sum_k a[m, k] (sum_n b[k, n]) and sum_m (a b)[m, n] = sum_k (sum_m a[m, k]) b[k, n]: the sums are
exchanged, so one operand is added up first and the product has one column or one row. A weight is added up once for
all calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foundry.knowledge.compiler.algebra.chain import Chain, chains_above, follow, reduced_term
from foundry.knowledge.compiler.algebra.editor import Editor, Shape
from foundry.knowledge.opgraph import Argument, Op, OpGraph, Ref

_PLAIN = frozenset({"mm", "bmm", "matmul"})


@dataclass(frozen=True)
class Total:
    """A sum or mean of `source` along axes."""

    kind: str  # "sum" | "mean"
    source: Ref
    axes: tuple[int, ...]
    keeps: bool  # true if the axes stay with size 1


def total_of(editor: Editor, op: Op) -> Total | None:
    """The operator as a sum or mean of floating-point numbers along axes; None if it is no such operator."""
    if not op.args or not isinstance(op.args[0], Ref) or op.kwargs:
        return None
    source = op.args[0]
    spec = editor.spec(source)
    rank = len(spec.shape)
    if spec.dtype != op.outputs[0].spec.dtype or not spec.dtype.startswith(("float", "bfloat")) or not spec.shape:
        return None
    if op.kind.startswith("adaptive_avg_pool") and set(op.outputs[0].spec.shape[-int(op.kind[-2]) :]) == {1}:
        return Total("mean", source, tuple(range(rank - int(op.kind[-2]), rank)), True)
    if op.kind not in ("sum", "mean") or len(op.args) > 3:
        return None
    dims = op.args[1] if len(op.args) > 1 else None
    listed = dims if isinstance(dims, list) else [dims] if isinstance(dims, int) else []
    axes = tuple(sorted({item % rank for item in listed if isinstance(item, int)})) or tuple(range(rank))
    return Total(op.kind, source, axes, len(op.args) > 2 and bool(op.args[2]))


def finish_total(editor: Editor, total: Total, chain: Chain, value: Ref, done: set[int]) -> OpGraph:
    """The graph in which `value`, the chain's start reduced along `done`, has passed the chain and the other axes."""
    value = follow(editor, chain, value, reduced_term(editor, total.kind, done))
    rest = [axis for axis in total.axes if axis not in done]
    return editor.put(editor.reduce(value, total.kind, rest))


# ---------------------------------------------------------------- products


@dataclass(frozen=True)
class Product:
    """A matrix product: left (..., m, k) times right (..., k, n). If `is_linear`, right is stored as (n, k), like
    nn.Linear's."""

    left: Ref
    right: Ref
    bias: Ref | None
    is_linear: bool


def product_of(editor: Editor, op: Op) -> Product | None:
    """The operator as a matrix product of two operands, perhaps with a bias; None if it is no product."""
    if op.kwargs or not all(isinstance(item, Ref) for item in op.args):
        return None
    refs = [item for item in op.args if isinstance(item, Ref)]
    if op.kind == "linear" and len(editor.shape(refs[0])) > 1 and len(editor.shape(refs[1])) == 2:
        return Product(refs[0], refs[1], refs[2] if len(refs) > 2 else None, True)
    if op.kind == "addmm":
        return Product(refs[1], refs[2], refs[0], False)
    if op.kind in _PLAIN and all(len(editor.shape(item)) > 1 for item in refs):
        return Product(refs[0], refs[1], None, False)
    return None


def total_of_product(graph: OpGraph, op: Op) -> OpGraph | None:
    """Adds up an operand before the product; None if that does not apply.

    Less work: m, n and k are larger than 1, and only the total is read.
    """
    editor = Editor(graph, op)
    total = total_of(editor, op)
    if total is None:
        return None
    rank = len(editor.shape(total.source))
    for chain in chains_above(editor, total.source, total.axes):
        product = product_of(editor, chain.anchor)
        if product is None or len(editor.shape(chain.start)) != rank:
            continue
        if rank - 1 in total.axes and editor.shape(chain.start)[-1] > 1:
            return _over_columns(editor, total, chain, product)
        rows = {axis for axis in total.axes if axis < rank - 1 and _is_row_axis(editor, product, axis, rank)}
        if rows:
            return _over_rows(editor, total, chain, product, rows)
    return None


def _is_row_axis(editor: Editor, product: Product, axis: int, rank: int) -> bool:
    """True if an axis of the result belongs to the left operand alone."""
    left, right = editor.shape(product.left), editor.shape(product.right)
    if len(left) != rank or left[axis] == 1:
        return False
    if product.bias is not None and not product.is_linear and len(editor.shape(product.bias)) > 1:
        return False
    own = axis - (rank - len(right))
    return axis == rank - 2 or product.is_linear or own < 0 or right[own] == 1


def _over_columns(editor: Editor, total: Total, chain: Chain, product: Product) -> OpGraph:
    """The graph with one column for all. A 16-bit weight is added up, and multiplied, in float32."""
    axis = 0 if product.is_linear else len(editor.shape(product.right)) - 2 + 1
    last = len(editor.shape(chain.start)) - 1
    column = editor.reduce(editor.widen(product.right), total.kind, [axis])
    bias: Ref | None = None
    if product.bias is not None:
        own = len(editor.shape(product.bias)) - 1
        count = editor.shape(chain.start)[-1] if editor.shape(product.bias)[own] == 1 and total.kind == "sum" else 1
        bias = editor.times(editor.reduce(editor.widen(product.bias), total.kind, [own]), count)
    value = _multiply(editor, product, editor.widen(product.left), column, bias)
    value = editor.cast(value, editor.spec(chain.start).dtype)
    return finish_total(editor, total, chain, value, {last})


def _over_rows(editor: Editor, total: Total, chain: Chain, product: Product, rows: set[int]) -> OpGraph:
    """The graph with one row for all; the bias is the same for every row."""
    row = editor.reduce(product.left, total.kind, sorted(rows))
    bias = product.bias
    if bias is not None and total.kind == "sum":
        bias = editor.times(bias, math.prod(editor.shape(product.left)[axis] for axis in rows))
    value = _multiply(editor, product, row, product.right, bias)
    return finish_total(editor, total, chain, value, rows)


def _multiply(editor: Editor, product: Product, left: Ref, right: Ref, bias: Ref | None) -> Ref:
    """Adds the product of these operands as an operator of the same form, linear or matmul, and its bias."""
    one, other = editor.shape(left), editor.shape(right)
    columns = other[0] if product.is_linear else other[-1]
    lead = one[:-1] if product.is_linear else _lead(one, other)
    shape: Shape = (*lead, columns)
    flops = 2 * math.prod(shape) * one[-1]
    operands: list[Argument] = [left, right]
    if product.is_linear:
        return editor.emit("aten.linear.default", [*operands, bias], shape, editor.spec(left).dtype, flops)
    value = editor.emit("aten.matmul.default", operands, shape, editor.spec(left).dtype, flops)
    return value if bias is None else editor.emit("aten.add.Tensor", [value, bias], shape, editor.spec(left).dtype)


def _lead(one: Shape, other: Shape) -> Shape:
    """The batch and row sizes of a product of two shapes."""
    rank = max(len(one), len(other))
    padded = [(1,) * (rank - len(item)) + item for item in (one, other)]
    return (*(max(a, b) for a, b in zip(padded[0][:-2], padded[1][:-2], strict=True)), one[-2])


# ---------------------------------------------------------------- diagonal operands


def product_with_diagonal(graph: OpGraph, op: Op) -> OpGraph | None:
    """Scales rows or columns instead of multiplying by a diagonal matrix; None if that does not apply.

    diag(a) b = a[:, None] * b and b diag(a) = b * a.
    """
    editor = Editor(graph, op)
    product = product_of(editor, op)
    if product is None or product.bias is not None or product.is_linear:
        return None
    spec = op.outputs[0].spec
    for at, item in enumerate((product.left, product.right)):
        other = product.right if at == 0 else product.left
        vector = _diagonal(editor, item)
        if vector is None:
            continue
        factor = editor.view(vector, (editor.shape(vector)[0], 1)) if at == 0 else vector
        return editor.put(editor.emit("aten.mul.Tensor", [other, factor], spec.shape, spec.dtype))
    return None


def _diagonal(editor: Editor, item: Ref) -> Ref | None:
    """The vector on the diagonal of a matrix made by `diag`; None if it was made otherwise."""
    maker = editor.graph.producers.get(item.ref)
    if maker is None or maker.kind not in ("diag", "diag_embed") or maker.kwargs or len(editor.shape(item)) != 2:
        return None
    source, *numbers = maker.args
    plain = not numbers or numbers == [0] or (maker.kind == "diag_embed" and numbers in ([0, -2, -1], [0, 0, 1]))
    is_vector = isinstance(source, Ref) and len(editor.shape(source)) == 1
    return source if plain and is_vector and isinstance(source, Ref) else None
