"""Lowers reductions along dimensions, and softmax: one row kernel each, which fusion joins if their rows agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from foundry.knowledge.compiler.ir.kernels import (
    Emit,
    EmitRow,
    Expr,
    Let,
    Load,
    Named,
    ReduceOp,
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
    const,
    flag,
    integers,
    number,
    rule,
    scalar,
)
from foundry.knowledge.compiler.rules.pointwise import _max_of_two
from foundry.knowledge.opgraph import Argument, DType, Op, Ref, contiguous_strides

Shape = tuple[int, ...]


@dataclass
class Rows:
    """Builds a row kernel for a tensor of `shape` that reduces `dims`. Its expressions are over the outer, then the
    reduced dimensions."""

    builder: Builder
    op: Op
    shape: Shape
    dims: Sequence[int]
    stages: list[Reduction | Let | Emit | EmitRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Works out the order of dimensions, outer then reduced, and the number of reduced elements."""
        rank = len(self.shape)
        self.dims = sorted({dim % rank for dim in self.dims} if rank else set())
        kept = [axis for axis in range(rank) if axis not in self.dims]
        self.order = [*kept, *self.dims]
        self.outer = tuple(self.shape[axis] for axis in kept)
        self.reduced = tuple(self.shape[axis] for axis in self.dims)
        self.count = math.prod(self.reduced)

    def see(self, tensor: Tensor, dtype: DType | None = None) -> Expr:
        """A tensor that broadcasts to the full shape, over outer and reduced dimensions, in its computing dtype."""
        full = self.builder.expand(tensor, self.shape, self.op)
        turned = self.builder.permute(full, self.order, self.op)
        return cast(turned.expr, dtype or compute_dtype(tensor.dtype))

    def per_row(self, tensor: Tensor) -> Expr:
        """A tensor of the outer shape, the same for all elements of a row."""
        column = self.builder.reshape(tensor, self.outer + (1,) * len(self.reduced), self.op)
        return self.builder.expand(column, self.outer + self.reduced, self.op).expr

    def reduce(self, tag: str, kind: ReduceOp, value: Expr, dtype: DType | None = None) -> Expr:
        """Adds a reduction and returns its value; `tag` distinguishes several reductions of one operator."""
        name = f"{self.builder.identifier(self.op.name)}_{tag}"
        result = dtype or value.dtype
        self.stages.append(Reduction(name, kind, value, result))
        return Named(name, result)

    def moments(self, value: Expr) -> tuple[Expr, Expr]:
        """Adds a reduction to mean and biased variance, and returns both."""
        name = f"{self.builder.identifier(self.op.name)}_moments"
        self.stages.append(Reduction(name, "moments", value, value.dtype))
        m2 = Named(f"{name}.m2", value.dtype)
        return Named(f"{name}.mean", value.dtype), scalar("div", m2, float(self.count))

    def let(self, tag: str, value: Expr) -> Expr:
        """Adds a value computed once per row, and returns its name."""
        name = f"{self.builder.identifier(self.op.name)}_{tag}"
        self.stages.append(Let(name, value))
        return Named(name, value.dtype)

    def emit(self, value: Expr, output: int = 0) -> None:
        """Stores an output of the full shape."""
        target = self._buffer(output)
        strides = contiguous_strides(self.shape)
        view = View(0, tuple(strides[axis] for axis in self.order))
        self.stages.append(Emit(Store(target.buffer, view, cast(value, target.dtype))))

    def emit_row(self, value: Expr, output: int = 0) -> None:
        """Stores an output with one element per row, with or without kept dimensions of size 1."""
        target = self._buffer(output)
        self.stages.append(EmitRow(Store(target.buffer, self.row_view(), cast(value, target.dtype))))

    def row_view(self) -> View:
        """The contiguous view of one element per row."""
        return View(0, contiguous_strides(self.outer) + (0,) * len(self.reduced))

    def temporary(self, tag: str, value: Expr) -> Tensor:
        """Stores a value with one element per row, which only later steps of the same operator read."""
        tensor = self.builder.buffer(f"{self.op.name}_{tag}", self.outer, value.dtype)
        assert isinstance(tensor.expr, Load)
        self.stages.append(EmitRow(Store(tensor.expr.buffer, self.row_view(), value)))
        return tensor

    def _buffer(self, output: int) -> Load:
        """Adds a buffer for an output, binds the output to it and returns its load."""
        value = self.op.outputs[output]
        tensor = self.builder.buffer(value.name, value.spec.shape, value.spec.dtype)
        self.builder.tensors[value.name] = tensor
        assert isinstance(tensor.expr, Load)
        return tensor.expr

    def finish(self, tag: str = "") -> None:
        """Emits the kernel."""
        name = f"k_{self.builder.identifier(self.op.name)}" + (f"_{tag}" if tag else "")
        self.builder.emit(RowKernel(name, self.outer, self.reduced, tuple(self.stages), (self.op.name,)))


def is_read(builder: Builder, op: Op, output: int) -> bool:
    """True if a later operator, the caller or a mutation uses this output."""
    graph = builder.graph
    name = op.outputs[output].name
    return name in graph.users or name in graph.output_names or name in graph.mutations.values()


def dims_of(op: Op, index: int, tensor: Tensor, name: str = "dim") -> list[int]:
    """The reduced dimensions; none given means all."""
    found = integers(op, index, name)
    return found or list(range(len(tensor.shape)))


def _source(builder: Builder, op: Op) -> Tensor:
    """The operator's first tensor."""
    return builder.tensor_at(op, 0, "self")


def _overload(op: Op) -> str:
    """The overload's name, such as "dim" in "sum.dim"."""
    return op.target.rpartition(".")[2]


@rule("sum", "mean", "prod", "nansum", "count_nonzero")
def _sum(builder: Builder, op: Op) -> None:
    """Lowers sum, mean, prod and count_nonzero to one row kernel. Raises Unsupported for nansum."""
    if op.kind == "nansum":
        raise Unsupported("nansum")
    source = _source(builder, op)
    named = _overload(op) in ("dim_IntList", "dim", "dim_int", "dim_Dimname") or op.kind == "count_nonzero"
    rows = Rows(builder, op, source.shape, dims_of(op, 1, source) if named else range(len(source.shape)))
    dtype = compute_dtype(op.outputs[0].spec.dtype)
    if op.kind == "count_nonzero":
        zero = const(0, source.dtype)
        value: Expr = cast(apply("ne", rows.see(source, source.dtype), zero, dtype="bool"), "int64")
    else:
        value = rows.see(source, dtype)
    total = rows.reduce("acc", "prod" if op.kind == "prod" else "sum", value, dtype)
    rows.emit_row(scalar("div", total, float(rows.count)) if op.kind == "mean" else total)
    rows.finish()


@rule("amax", "amin")
def _extremum(builder: Builder, op: Op) -> None:
    """Lowers amax and amin."""
    source = _source(builder, op)
    rows = Rows(builder, op, source.shape, dims_of(op, 1, source))
    rows.emit_row(rows.reduce("acc", "max" if op.kind == "amax" else "min", rows.see(source)))
    rows.finish()


@rule("max", "min")
def _max(builder: Builder, op: Op) -> None:
    """Lowers max and min: of two tensors, of everything, or along a dimension with indices."""
    if len(op.args) > 1 and isinstance(op.args[1], Ref):
        _max_of_two(builder, op)
        return
    source = _source(builder, op)
    kind = op.kind
    dims: Sequence[int] = range(len(source.shape)) if argument(op, 1, "dim") is None else dims_of(op, 1, source)
    rows = Rows(builder, op, source.shape, dims)
    value = rows.see(source)
    rows.emit_row(rows.reduce("acc", "max" if kind == "max" else "min", value))
    if len(op.outputs) > 1 and is_read(builder, op, 1):
        rows.emit_row(rows.reduce("index", "argmax" if kind == "max" else "argmin", value, "int64"), 1)
    rows.finish()


@rule("argmax", "argmin")
def _argmax(builder: Builder, op: Op) -> None:
    """Lowers argmax and argmin."""
    source = _source(builder, op)
    given = argument(op, 1, "dim")
    rows = Rows(builder, op, source.shape, range(len(source.shape)) if given is None else dims_of(op, 1, source))
    kind: ReduceOp = "argmax" if op.kind == "argmax" else "argmin"
    rows.emit_row(rows.reduce("acc", kind, rows.see(source), "int64"))
    rows.finish()


@rule("any", "all")
def _any(builder: Builder, op: Op) -> None:
    """Lowers any and all."""
    source = _source(builder, op)
    rows = Rows(builder, op, source.shape, dims_of(op, 1, source))
    value = rows.see(source, source.dtype)
    truth = value if value.dtype == "bool" else apply("ne", value, const(0, value.dtype), dtype="bool")
    rows.emit_row(rows.reduce("acc", "any" if op.kind == "any" else "all", truth, "bool"))
    rows.finish()


@rule("var", "std", "var_mean", "std_mean")
def _var(builder: Builder, op: Op) -> None:
    """Lowers var, std, var_mean and std_mean. Raises Unsupported if the correction is a tensor."""
    source = _source(builder, op)
    overload = _overload(op)
    dims: Sequence[int] = range(len(source.shape))
    correction: Argument = 1
    if overload == "correction":
        dims = dims_of(op, 1, source)
        given = argument(op, 2, "correction")
        correction = 1 if given is None else given
    elif overload == "dim":
        dims = dims_of(op, 1, source)
        correction = int(flag(op, 2, "unbiased", True))
    else:
        correction = int(flag(op, 1, "unbiased", True))
    if not isinstance(correction, bool | int | float):
        raise Unsupported("the correction of a variance is a tensor")
    rows = Rows(builder, op, source.shape, dims)
    value = rows.see(source)
    mean, _ = rows.moments(value)
    m2 = Named(f"{builder.identifier(op.name)}_moments.m2", value.dtype)
    variance = scalar("div", m2, max(float(rows.count) - float(correction), 0.0))
    rows.emit_row(apply("sqrt", variance) if op.kind.startswith("std") else variance)
    if op.kind.endswith("mean"):
        rows.emit_row(mean, 1)
    rows.finish()


@rule("linalg_vector_norm", "norm", "frobenius_norm", "linalg_norm")
def _norm(builder: Builder, op: Op) -> None:
    """Lowers vector norms. Raises Unsupported for matrix norms."""
    source = _source(builder, op)
    if op.kind == "linalg_norm" and argument(op, 1, "ord") is not None:
        raise Unsupported("a matrix norm")
    power = 2.0
    dim_index = 2
    if op.kind == "frobenius_norm":
        dim_index = 1
    else:
        given = argument(op, 1, "ord" if op.kind == "linalg_vector_norm" else "p", 2.0)
        if isinstance(given, str):
            raise Unsupported(f"the norm {given}")
        power = 2.0 if given is None else number(op, 1, "ord" if op.kind == "linalg_vector_norm" else "p", 2.0)
    rows = Rows(builder, op, source.shape, dims_of(op, dim_index, source))
    value = rows.see(source, compute_dtype(op.outputs[0].spec.dtype))
    rows.emit_row(p_norm(rows, value, power))
    rows.finish()


def p_norm(rows: Rows, value: Expr, power: float) -> Expr:
    """The vector norm of order `power` of each row; also orders 0, 1, 2 and infinity."""
    size = apply("abs", value)
    if power == 2:
        return apply("sqrt", rows.reduce("acc", "sum", apply("mul", value, value)))
    if power == 1:
        return rows.reduce("acc", "sum", size)
    if math.isinf(power):
        return rows.reduce("acc", "max" if power > 0 else "min", size)
    if power == 0:
        nonzero = apply("ne", value, const(0, value.dtype), dtype="bool")
        return rows.reduce("acc", "sum", cast(nonzero, value.dtype))
    total = rows.reduce("acc", "sum", scalar("pow", size, power))
    return scalar("pow", total, 1.0 / power)


@rule("logsumexp", "special_logsumexp")
def _logsumexp(builder: Builder, op: Op) -> None:
    """Lowers logsumexp."""
    source = _source(builder, op)
    rows = Rows(builder, op, source.shape, dims_of(op, 1, source))
    rows.emit_row(rows.reduce("acc", "logsumexp", rows.see(source, compute_dtype(op.outputs[0].spec.dtype))))
    rows.finish()


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "special_softmax", "special_log_softmax", "softmin")
def _softmax(builder: Builder, op: Op) -> None:
    """Lowers softmax, log_softmax and softmin."""
    source = _source(builder, op)
    rows = Rows(builder, op, source.shape, [int(number(op, 1, "dim"))])
    value = rows.see(source, compute_dtype(op.outputs[0].spec.dtype))
    if op.kind == "softmin":
        value = apply("neg", value)
    rows.emit(log_softmax(rows, value) if "log" in op.kind else softmax(rows, value))
    rows.finish()


def softmax(rows: Rows, value: Expr) -> Expr:
    """exp(x - max) / sum, the form that is exact even if the sum's logarithm is large."""
    largest = rows.reduce("max", "max", value)
    shifted = apply("exp", apply("sub", value, largest))
    return apply("div", shifted, rows.reduce("sum", "sum", shifted))


def log_softmax(rows: Rows, value: Expr) -> Expr:
    """x - max - log(sum(exp(x - max)))."""
    largest = rows.reduce("max", "max", value)
    shifted = apply("sub", value, largest)
    total = rows.reduce("sum", "sum", apply("exp", shifted))
    return apply("sub", shifted, rows.let("log", apply("log", total)))


@rule("cosine_similarity")
def _cosine_similarity(builder: Builder, op: Op) -> None:
    """Lowers cosine_similarity."""
    first, second = builder.tensor_at(op, 0, "x1"), builder.tensor_at(op, 1, "x2")
    dim = int(number(op, 2, "dim", 1))
    eps = number(op, 3, "eps", 1e-8)
    rows = pair_rows(builder, op, first, second, dim)
    rows.emit_row(cosine(rows, rows.see(first), rows.see(second), eps))
    rows.finish()


def pair_rows(builder: Builder, op: Op, first: Tensor, second: Tensor, dim: int) -> Rows:
    """Rows over the broadcast shape of two tensors."""
    return Rows(builder, op, broadcast(first.shape, second.shape), [dim])


def cosine(rows: Rows, left: Expr, right: Expr, eps: float, tag: str = "") -> Expr:
    """The cosine of each pair of rows; each norm is clamped to at least eps, as in PyTorch."""
    product = rows.reduce(f"dot{tag}", "sum", apply("mul", left, right))
    norms = [
        scalar("maximum", apply("sqrt", rows.reduce(f"norm{index}{tag}", "sum", apply("mul", side, side))), eps)
        for index, side in enumerate((left, right))
    ]
    return apply("div", product, apply("mul", *norms))


@rule("pairwise_distance")
def _pairwise_distance(builder: Builder, op: Op) -> None:
    """Lowers pairwise_distance."""
    first, second = builder.tensor_at(op, 0, "x1"), builder.tensor_at(op, 1, "x2")
    power, eps = number(op, 2, "p", 2), number(op, 3, "eps", 1e-6)
    rows = pair_rows(builder, op, first, second, -1)
    difference = scalar("add", apply("sub", rows.see(first), rows.see(second)), eps)
    rows.emit_row(p_norm(rows, difference, power))
    rows.finish()


@rule("cdist")
def _cdist(builder: Builder, op: Op) -> None:
    """Lowers cdist: the distance of every row of one matrix from every row of another, by differences in each of
    PyTorch's compute_modes. Distances by a matrix product lose precision for close rows of large numbers. Raises
    Unsupported for rows without elements."""
    first, second = builder.tensor_at(op, 0, "x1"), builder.tensor_at(op, 1, "x2")
    batch, own, other = broadcast(first.shape[:-2], second.shape[:-2]), first.shape[-2], second.shape[-2]
    features = first.shape[-1]
    if not features:
        raise Unsupported("the distance of nothing")
    left = builder.reshape(first, (*first.shape[:-1], 1, features), op)
    right = builder.reshape(second, (*second.shape[:-2], 1, *second.shape[-2:]), op)
    rows = Rows(builder, op, (*batch, own, other, features), [-1])
    rows.emit_row(p_norm(rows, apply("sub", rows.see(left), rows.see(right)), number(op, 2, "p", 2.0)))
    rows.finish()
