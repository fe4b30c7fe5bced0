"""Lowers contractions: matrix products in all their forms become one GEMM with the operator's own epilogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import (
    EmitRow,
    Expr,
    GemmKernel,
    Load,
    Named,
    Reduction,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.rules.builder import (
    Builder,
    Tensor,
    Unsupported,
    apply,
    argument,
    broadcast,
    cast,
    compute_dtype,
    integers,
    number,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.grouped import grouped_product
from foundry.knowledge.compiler.rules.pointwise import operand, take
from foundry.knowledge.opgraph import Op, TensorSpec, contiguous_strides

Shape = tuple[int, ...]

# A product with at most this many terms is unrolled for each element: the smallest GEMM tile is 32 x 32 x 16 or
# 64 x 64 x 64. A million 4 x 4 x 4 products by such tiles took 13 times as long as PyTorch (257 ms, H200).
WRITTEN_OUT = 8
SHORT = 16  # most terms that are unrolled if rows or columns are few as well
MANY = 1 << 10  # fewest elements of a result that is unrolled: fewer take no time either way


def product(
    builder: Builder, op: Op, a: Tensor, b: Tensor, shape: Shape, epilogue: Callable[[Expr], Expr] | None = None
) -> None:
    """Binds `op` to a (..., m, k) times b (..., k, n), seen as `shape` (the same elements in row-major order).

    `epilogue` maps the accumulator to the result, both over the row-major points of `shape`.
    """
    value = op.outputs[0]
    dtype = compute_dtype(value.spec.dtype)
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    if _in_memory_order(builder, op, a, b, shape, epilogue=epilogue):
        return
    if b.shape[:-2] == (1,) * (len(b.shape) - 2) or not b.shape[:-2]:
        a, b, batch, m = _rows_of_batch(builder, op, a, b, batch, m=m)
    left = cast(builder.expand(a, (*batch, m, k), op).expr, dtype)
    right = cast(builder.expand(b, (*batch, k, n), op).expr, dtype)
    space = (*batch, m, n)
    finish = epilogue or (lambda accumulator: accumulator)
    if k == 1 or (math.prod(space) >= MANY and k <= (SHORT if min(m, n) <= SHORT else WRITTEN_OUT)):
        elements = builder.reshape(Tensor(space, _written_out(builder, op, a, b, space)), shape, op)
        builder.bind(op, builder.store(value.name, shape, finish(elements.expr), value.spec.dtype, op))
        return
    target = builder.buffer(value.name, value.spec.shape, value.spec.dtype)
    assert isinstance(target.expr, Load)
    buffer = target.expr.buffer
    builder.tensors[value.name] = target
    if m == 1 or n == 1:
        _matrix_vector(builder, op, left, right, sizes=(batch, m, n, k), finish=finish, shape=shape, buffer=buffer)
        return
    result = _respace(finish(Named("acc", dtype)), shape, space)
    builder.emit(
        GemmKernel(
            name=f"k_{buffer}",
            batch=batch,
            m=m,
            n=n,
            k=k,
            a=left,
            b=right,
            stores=(Store(buffer, views.identity(space), cast(result, value.spec.dtype)),),
            dtype=dtype,
            ops=(op.name,),
        )
    )


def _written_out(builder: Builder, op: Op, a: Tensor, b: Tensor, space: Shape) -> Expr:
    """The product's elements over `space`, (*batch, m, n), as k multiplications and additions each."""
    dtype = compute_dtype(op.outputs[0].spec.dtype)

    def factor(side: Tensor, axis: int, place: int) -> Expr:
        """Column or row number `place` of one side, expanded to the result's space."""
        part = take(builder, op, side, axis, start=place, length=1)
        return builder.expand(Tensor(part.shape, cast(part.expr, dtype)), space, op).expr

    terms = [
        apply("mul", factor(a, len(a.shape) - 1, place), factor(b, len(b.shape) - 2, place))
        for place in range(a.shape[-1])
    ]
    return reduce(partial(apply, "add"), terms)


def _in_memory_order(
    builder: Builder, op: Op, a: Tensor, b: Tensor, shape: Shape, epilogue: Callable[[Expr], Expr] | None
) -> bool:
    """Lowers a product whose left operand is transposed in memory, with its rows taken in memory order; True if it did.

    So they stay one long dimension; the result is then a transposed view. False, and nothing lowered, for other
    operands.
    """
    lead = len(a.shape) - 1
    if not isinstance(a.expr, Load) or lead < 2 or len(b.shape) != 2 or shape != (*a.shape[:-1], b.shape[-1]):
        return False
    strides = a.expr.view.strides
    order = sorted(range(lead), key=lambda axis: -strides[axis])
    rows = views.merge_dimensions(tuple(a.shape[axis] for axis in order), [strides[axis] for axis in order])
    if order == list(range(lead)) or len(rows) > 1:
        return False
    turn, inner_shape = views.permute_map(shape, [*order, lead])

    def turned(accumulator: Expr) -> Expr:
        """The epilogue's value (without one, the accumulator) over the rows in memory order."""
        return views.remap(accumulator if epilogue is None else epilogue(accumulator), shape, turn, inner_shape)

    spec = op.outputs[0].spec
    in_order = replace(op.outputs[0], spec=TensorSpec(inner_shape, contiguous_strides(inner_shape), spec.dtype))
    turned_a = builder.permute(a, [*order, lead], op)
    product(builder, replace(op, outputs=[in_order]), turned_a, b, shape=inner_shape, epilogue=turned)
    back = [[*order, lead].index(axis) for axis in range(lead + 1)]
    builder.bind(op, builder.permute(builder.tensors[op.name], back, op))
    return True


def _respace(expr: Expr, shape: Shape, space: Shape) -> Expr:
    """An epilogue written over the result's shape, re-expressed over the kernel's space (both number the same
    elements). Raises Unsupported if it cannot follow."""
    try:
        return views.remap(expr, shape, views.identity(space), space)
    except views.NotAffine:
        raise Unsupported("an addend that does not follow the product's rows") from None


def _rows_of_batch(
    builder: Builder, op: Op, a: Tensor, b: Tensor, batch: Shape, m: int
) -> tuple[Tensor, Tensor, Shape, int]:
    """Merges batch and rows into rows, if one right operand serves the whole batch and the left operand's layout
    allows it. Returns (a, b, batch, m), changed or unchanged."""
    k, n = b.shape[-2:]
    rows = math.prod(batch) * m
    try:
        merged = views.remap(a.expr, a.shape, views.identity((rows, k)), (rows, k))
    except views.NotAffine:
        return a, b, batch, m
    return Tensor((rows, k), merged), builder.reshape(b, (k, n), op), (), rows


def _matrix_vector(
    builder: Builder,
    op: Op,
    left: Expr,
    right: Expr,
    sizes: tuple[Shape, int, int, int],
    finish: Callable[[Expr], Expr],
    shape: Shape,
    buffer: str,
) -> None:
    """Lowers a product with a single row or column to one reduction per row, bound by reading the matrix once."""
    batch, m, n, k = sizes
    outer = (*batch, m, n)
    space = (*outer, k)
    rank = len(batch)
    left_map = View(0, (*contiguous_strides((*batch, m, k))[: rank + 1], 0, 1))
    right_map = View(0, (*contiguous_strides((*batch, k, n))[:rank], 0, 1, n))
    a = views.remap(left, (*batch, m, k), left_map, space)
    b = views.remap(right, (*batch, k, n), right_map, space)
    name = f"{builder.identifier(op.name)}_acc"
    reduction = Reduction(name, "sum", apply("mul", a, b), left.dtype)
    result = _respace(finish(Named(name, left.dtype)), shape, outer)
    row_map = View(0, (*contiguous_strides(outer), 0))
    widened = views.remap(result, outer, row_map, space)
    spec = op.outputs[0].spec
    store = Store(buffer, View(0, (*contiguous_strides(outer), 0)), cast(widened, spec.dtype))
    builder.emit(RowKernel(f"k_{buffer}", outer, (k,), (reduction, EmitRow(store)), (op.name,)))


def _column(builder: Builder, op: Op, tensor: Tensor) -> Tensor:
    """The vector as a matrix of one column."""
    return builder.reshape(tensor, (*tensor.shape, 1), op)


def _transpose(builder: Builder, op: Op, tensor: Tensor) -> Tensor:
    """The tensor with its last two dimensions swapped."""
    rank = len(tensor.shape)
    return builder.permute(tensor, [*range(rank - 2), rank - 1, rank - 2], op)


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "inner", "linalg_matmul")
def _matmul(builder: Builder, op: Op) -> None:
    """Lowers matrix, batched, matrix-vector, dot and inner products to one product; vectors get a dimension of size 1.
    Raises Unsupported for an inner product whose second operand is no matrix."""
    a, b = builder.tensor(op.args[0]), builder.tensor(op.args[1])
    if op.kind == "inner":
        if len(b.shape) != 2 or not a.shape:
            raise Unsupported("an inner product of a number, or of more than two dimensions")
        b = _transpose(builder, op, b)
    if len(a.shape) == 1:
        a = builder.reshape(a, (1, *a.shape), op)
    if len(b.shape) == 1:
        b = _column(builder, op, b)
    if not grouped_product(builder, op, a, op.args[1]):
        product(builder, op, a, b, op.outputs[0].spec.shape)


@rule("linear")
def _linear(builder: Builder, op: Op) -> None:
    """Lowers linear: input weight^T + bias."""
    a, weight, bias = builder.tensor_at(op, 0, "input"), builder.tensor_at(op, 1, "weight"), builder.optional(op, 2, "")
    linear(builder, op, a, weight, bias)


def linear(builder: Builder, op: Op, a: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Binds `op` to a weight^T + bias."""
    shape = op.outputs[0].spec.shape
    if len(a.shape) == 1:
        a = builder.reshape(a, (1, *a.shape), op)
    if len(weight.shape) == 1:
        weight = builder.reshape(weight, (1, *weight.shape), op)
    addend = None if bias is None else builder.expand(bias, shape, op).expr

    def epilogue(accumulator: Expr) -> Expr:
        """The accumulator plus the addend, if there is one."""
        return accumulator if addend is None else apply("add", accumulator, cast(addend, accumulator.dtype))

    product(builder, op, a, b=_transpose(builder, op, weight), shape=shape, epilogue=epilogue)


@rule("addmm", "baddbmm", "addmv")
def _addmm(builder: Builder, op: Op) -> None:
    """Lowers addmm, baddbmm and addmv: beta * input + alpha * (a b)."""
    a, b = builder.tensor(op.args[1]), builder.tensor(op.args[2])
    if op.kind == "addmv":
        b = _column(builder, op, b)
    beta, alpha = number(op, 3, "beta", 1), number(op, 4, "alpha", 1)
    shape = op.outputs[0].spec.shape
    addend = operand(builder, op, op.args[0], compute_dtype(op.outputs[0].spec.dtype))

    def epilogue(accumulator: Expr) -> Expr:
        """alpha * accumulator + beta * addend; without the addend if beta is 0."""
        result = accumulator if alpha == 1 else scalar("mul", accumulator, alpha)
        if beta == 0:
            return result
        return apply("add", addend if beta == 1 else scalar("mul", addend, beta), result)

    product(builder, op, a, b, shape, epilogue=epilogue)


@rule("outer", "ger")
def _outer(builder: Builder, op: Op) -> None:
    """Lowers outer: the product of a column and a row."""
    a, b = builder.tensor(op.args[0]), builder.tensor(op.args[1])
    product(builder, op, _column(builder, op, a), builder.reshape(b, (1, *b.shape), op), op.outputs[0].spec.shape)


@rule("tensordot")
def _tensordot(builder: Builder, op: Op) -> None:
    """Lowers tensordot as a two-operand einsum."""
    a, b = builder.tensor(op.args[0]), builder.tensor(op.args[1])
    left = [a.axis(dim) for dim in integers(op, 2, "dims_self") or []]
    right = [b.axis(dim) for dim in integers(op, 3, "dims_other") or []]
    labels = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(labels) for _ in a.shape]
    second = [next(labels) for _ in b.shape]
    for one, other in zip(left, right, strict=True):
        second[other] = first[one]
    kept = [label for label in first if label not in second] + [label for label in second if label not in first]
    _contract_pair(builder, op, "".join(first), a, second="".join(second), b=b, output="".join(kept))


@rule("einsum")
def _einsum(builder: Builder, op: Op) -> None:
    """Lowers einsum by contracting operands from the left. Each label is a batch, row, column or contracted dimension.
    Raises Unsupported if a term repeats a label."""
    equation, items = op.args[0], op.args[1]
    if not isinstance(equation, str) or not isinstance(items, list):
        raise Unsupported("an einsum without an equation")
    tensors = [builder.tensor(item) for item in items]
    terms, output = _labels(equation.replace(" ", ""), [len(tensor.shape) for tensor in tensors])
    if any(len(set(term)) != len(term) for term in terms):
        raise Unsupported("an einsum of a diagonal")
    if len(terms) == 1:
        _rearrange(builder, op, terms[0], tensors[0], output)
        return
    term, tensor = terms[0], tensors[0]
    for index in range(1, len(terms) - 1):
        later = "".join(terms[index + 1 :]) + output
        kept = "".join(label for label in dict.fromkeys(term + terms[index]) if label in later)
        sizes = dict(zip(term, tensor.shape, strict=True))
        sizes |= dict(zip(terms[index], tensors[index].shape, strict=True))
        shape = tuple(sizes[label] for label in kept)
        spec = TensorSpec(shape, contiguous_strides(shape), op.outputs[0].spec.dtype)
        inner = replace(op, outputs=[replace(op.outputs[0], name=f"{op.name}_{index}", spec=spec)])
        _contract_pair(builder, inner, term, a=tensor, second=terms[index], b=tensors[index], output=kept)
        term = kept
        tensor = builder.tensors[inner.name]
    _contract_pair(builder, op, term, a=tensor, second=terms[-1], b=tensors[-1], output=output)


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """One letter for each dimension of each operand and of the result; an ellipsis gets unused letters."""
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    spare = [letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in equation]
    hidden = max(rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True))
    letters = "".join(spare[:hidden]) if "..." in equation else ""
    full = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        full.append(term.replace("...", letters[len(letters) - count :]))
    if not arrow:
        every = inputs.replace("...", "").replace(",", "")
        output = ("..." if letters else "") + "".join(sorted(set(every)))
        output = "".join(label for label in output if label == "." or every.count(label) == 1)
    return full, output.replace("...", letters)


def _rearrange(builder: Builder, op: Op, term: str, tensor: Tensor, output: str) -> None:
    """Binds an einsum of one operand that only permutes dimensions. Raises Unsupported if it sums."""
    if sorted(term) != sorted(output):
        raise Unsupported("an einsum that sums one operand")
    builder.bind(op, builder.permute(tensor, [term.index(label) for label in output], op))


def _contract_pair(builder: Builder, op: Op, first: str, a: Tensor, second: str, b: Tensor, output: str) -> None:
    """Contracts two labelled operands to the labels of `output` by one batched matrix product. Raises Unsupported
    for broadcast labels."""
    sizes = dict(zip(first, a.shape, strict=True)) | dict(zip(second, b.shape, strict=True))
    shared = [label for label in first if label in second]
    if any(a.shape[first.index(label)] != b.shape[second.index(label)] for label in shared):
        raise Unsupported("an einsum that broadcasts")
    batch = [label for label in output if label in first and label in second]
    rows = [label for label in output if label in first and label not in second]
    columns = [label for label in output if label in second and label not in first]
    summed = [label for label in first if label in second and label not in output]
    if any(label not in output and label not in summed for label in first + second):
        raise Unsupported("an einsum that sums a dimension of one operand alone")

    def arranged(tensor: Tensor, labels: str, groups: list[list[str]]) -> Tensor:
        """The tensor permuted and reshaped to the groups of labels: batch dimensions, then one axis a group."""
        order = [labels.index(label) for group in groups for label in group]
        turned = builder.permute(tensor, order, op)
        lead = [sizes[label] for label in groups[0]]
        shape = (*lead, *(math.prod(sizes[label] for label in group) for group in groups[1:]))
        return builder.reshape(turned, shape, op)

    left = arranged(a, first, [batch, rows, summed])
    right = arranged(b, second, [batch, summed, columns])
    natural = "".join([*batch, *rows, *columns])
    spec = op.outputs[0].spec
    shape = tuple(sizes[label] for label in natural)
    if natural == output:
        product(builder, op, left, right, shape)
        return
    in_order = replace(op.outputs[0], spec=TensorSpec(shape, contiguous_strides(shape), spec.dtype))
    product(builder, replace(op, outputs=[in_order]), left, right, shape)
    plain = builder.tensors[op.name]
    builder.bind(op, builder.permute(plain, [natural.index(label) for label in output], op))


# ---------------------------------------------------------------- cells of recurrent networks


def _gates(builder: Builder, op: Op, tag: str, source: Tensor, weight: int, bias: int, addend: Expr | None) -> Tensor:
    """source weight^T + bias + addend, emitted as an intermediate step of a recurrent cell."""
    right = _transpose(builder, op, builder.tensor(op.args[weight]))
    shape = (*source.shape[:-1], right.shape[-1])
    dtype = op.outputs[0].spec.dtype
    spec = TensorSpec(shape, contiguous_strides(shape), dtype)
    step = replace(op, outputs=[replace(op.outputs[0], name=f"{op.name}_{tag}", spec=spec)])
    given = argument(op, bias, tag)
    shown = builder.expand(builder.tensor(given), shape, op).computed if given is not None else None

    def finish(acc: Expr) -> Expr:
        """The accumulator plus the terms that there are."""
        for term in (shown, addend):
            acc = acc if term is None else apply("add", acc, term)
        return acc

    before = len(builder.steps)
    product(builder, step, source, b=right, shape=shape, epilogue=finish)
    builder.steps[before:] = [replace(item, ops=(op.name,)) for item in builder.steps[before:]]
    return builder.tensors[step.name]


def _parts(builder: Builder, op: Op, gates: Tensor, count: int) -> list[Expr]:
    """The gates split into `count` equal parts along the last dimension."""
    size = gates.shape[-1] // count
    axis = len(gates.shape) - 1
    return [take(builder, op, gates, axis, start=part * size, length=size).computed for part in range(count)]


@rule("lstm_cell")
def _lstm_cell(builder: Builder, op: Op) -> None:
    """Lowers lstm_cell: one step of an LSTM with outputs (hidden, cell state)."""
    given = op.args[1]
    assert isinstance(given, list)
    hidden, memory = (builder.tensor(item) for item in given)
    of_hidden = _gates(builder, op, "hidden", source=hidden, weight=3, bias=5, addend=None)
    gates = _gates(builder, op, "gates", source=builder.tensor(op.args[0]), weight=2, bias=4, addend=of_hidden.computed)
    enters, forgets, new, leaves = _parts(builder, op, gates, 4)
    kept = apply("mul", apply("sigmoid", forgets), memory.computed)
    remembered = apply("add", kept, apply("mul", apply("sigmoid", enters), apply("tanh", new)))
    builder.pointwise(op, remembered, 1)
    seen = builder.tensors[op.outputs[1].name].computed
    builder.pointwise(op, apply("mul", apply("sigmoid", leaves), apply("tanh", seen)), 0)


@rule("gru_cell")
def _gru_cell(builder: Builder, op: Op) -> None:
    """Lowers gru_cell: one step of a GRU."""
    hidden = builder.tensor(op.args[1])
    own = _parts(builder, op, _gates(builder, op, "hidden", source=hidden, weight=3, bias=5, addend=None), 3)
    given = _parts(
        builder, op, _gates(builder, op, "gates", source=builder.tensor(op.args[0]), weight=2, bias=4, addend=None), 3
    )
    resets, updates = (
        apply("sigmoid", apply("add", left, right)) for left, right in zip(given[:2], own[:2], strict=True)
    )
    new = apply("tanh", apply("add", given[2], apply("mul", resets, own[2])))
    builder.pointwise(op, apply("add", apply("mul", apply("sub", hidden.computed, new), updates), new))


@rule("rnn_tanh_cell", "rnn_relu_cell")
def _rnn_cell(builder: Builder, op: Op) -> None:
    """Lowers rnn_tanh_cell and rnn_relu_cell: one step of a plain recurrent layer."""
    of_hidden = _gates(builder, op, "hidden", source=builder.tensor(op.args[1]), weight=3, bias=5, addend=None)
    gates = _gates(builder, op, "gates", source=builder.tensor(op.args[0]), weight=2, bias=4, addend=of_hidden.computed)
    builder.pointwise(op, apply("tanh" if op.kind == "rnn_tanh_cell" else "relu", gates.computed))
