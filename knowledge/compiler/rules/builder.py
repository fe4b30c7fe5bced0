"""State of lowering before fusion: values as expressions over their own points, and kernels appended in order.

Every operator rule reads `Tensor`s and produces one. A tensor is an expression over its shape: usually one load of a
buffer through a view, sometimes an index or a constant that needs no memory. Fusion comes later, on kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import (
    SCALAR_OPS,
    Apply,
    Buffer,
    Const,
    Expr,
    Iota,
    Kernel,
    Load,
    MapKernel,
    Store,
    TorchCall,
    View,
)
from foundry.knowledge.compiler.ir.regions import Region
from foundry.knowledge.compiler.ir.scalar import EIGHT_BITS, EXPENSIVE
from foundry.knowledge.opgraph import Argument, DType, Op, OpGraph, Ref, Value, contiguous_strides
from foundry.knowledge.targets import KernelForms, find_target

Shape = tuple[int, ...]

FLOATS: tuple[DType, ...] = ("float16", "bfloat16", "float32", "float64")
_INTEGERS: tuple[DType, ...] = ("bool", "uint8", "int8", "int16", "int32", "int64")


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which arithmetic on `dtype` runs: float32 for narrow floats, as in PyTorch's own kernels."""
    return "float32" if dtype in ("float16", "bfloat16", *EIGHT_BITS) else dtype


def promote(left: DType, right: DType) -> DType:
    """PyTorch's result dtype for two tensors that both have dimensions."""
    if left == right:
        return left
    if left in FLOATS or right in FLOATS:
        floats = [dtype for dtype in (left, right) if dtype in FLOATS]
        if len(floats) == 1:
            return floats[0]
        return "float32" if set(floats) == {"float16", "bfloat16"} else max(floats, key=FLOATS.index)
    if {left, right} == {"uint8", "int8"}:
        return "int16"
    return max(left, right, key=_INTEGERS.index)


# ---------------------------------------------------------------- expressions


def cast(expr: Expr, dtype: DType) -> Expr:
    """The expression converted to `dtype`; constants are converted at once."""
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, Const):
        return const(expr.value, dtype)
    return Apply("cast", (expr,), dtype)


def const(value: float | int | bool, dtype: DType) -> Const:
    """A constant of the given dtype."""
    if dtype in FLOATS or dtype in EIGHT_BITS:
        return Const(float(value), dtype)
    return Const(bool(value) if dtype == "bool" else int(value), dtype)


def apply(op: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """A scalar operation; the result has the first argument's dtype unless `dtype` says otherwise. Raises ValueError
    for a wrong number of arguments."""
    if len(args) != SCALAR_OPS[op]:
        raise ValueError(f"{op} takes {SCALAR_OPS[op]} arguments")
    return Apply(op, args, dtype or args[0].dtype)


def scalar(op: str, expr: Expr, value: float, *, reverse: bool = False) -> Expr:
    """`op` of an expression and a number of its dtype; with `reverse` the number comes first."""
    number = const(value, expr.dtype)
    return apply(op, number, expr, dtype=expr.dtype) if reverse else apply(op, expr, number)


# ---------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Tensor:
    """A value of the graph: `expr` over the points of `shape`."""

    shape: Shape
    expr: Expr

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self.expr.dtype

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def axis(self, dim: int) -> int:
        """The dimension's non-negative number; 0 for a scalar."""
        return dim % len(self.shape) if self.shape else 0

    @property
    def computed(self) -> Expr:
        """The expression in the dtype that arithmetic runs in."""
        return cast(self.expr, compute_dtype(self.dtype))


Rule = Callable[["Builder", Op], None]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Decorator that registers a lowering rule for ATen operators, by name without overload."""

    def register(function: Rule) -> Rule:
        """Enters the rule for these kinds of operators and returns it."""
        for kind in kinds:
            RULES[kind] = function
        return function

    return register


class Unsupported(Exception):
    """This call of an operator has no lowering; it stays a call of PyTorch."""


def argument(op: Op, index: int, name: str, default: Argument = None) -> Argument:
    """An operator's argument by position or keyword; the tracer leaves out defaults."""
    if len(op.args) > index:
        return op.args[index]
    return op.kwargs.get(name, default)


def number(op: Op, index: int, name: str, default: float | None = None) -> float:
    """A numeric argument. Raises Unsupported if it is something else."""
    found = argument(op, index, name, default)
    if isinstance(found, bool | int | float):
        return found
    raise Unsupported(f"{op.target}: {name} is not a number")


def integer(op: Op, index: int, name: str, default: int | None = None) -> int:
    """A numeric argument as an int. Raises Unsupported if it is not a number."""
    return int(number(op, index, name, default))


def flag(op: Op, index: int, name: str, default: bool = False) -> bool:
    """True if an operator's boolean argument, by index or name, is set; `default` if it is not given."""
    return bool(argument(op, index, name, default))


def integers(op: Op, index: int, name: str, default: Argument = None) -> list[int] | None:
    """A list of ints (a single int counts as one), or None if it was not given. Raises Unsupported if it is
    something else."""
    found = argument(op, index, name, default)
    if found is None:
        return None
    if isinstance(found, int):
        return [int(found)]
    if isinstance(found, list) and all(isinstance(item, int) for item in found):
        return [int(item) for item in found if isinstance(item, int)]
    raise Unsupported(f"{op.target}: {name} is not a list of ints")


def _plain_name(name: str) -> str:
    """A short readable name: `batch_norm` for `_native_batch_norm_legit_functional_out0`."""
    name = re.sub(r"^_*(native_)?", "", name)
    return re.sub(r"_legit(_functional|_no_training|_no_stats)?", "", name).removesuffix("_out0") or "value"


@dataclass(frozen=True)
class Slices:
    """A buffer that a chain of slice writes fills along `axis`. `written`: the indices written since the buffer was
    new."""

    tensor: Tensor
    axis: int
    written: frozenset[int]


@dataclass(frozen=True)
class OwnWrite:
    """A write that may go directly into the module's own tensor `key`. `encloses`: its source is already in that
    place."""

    key: str
    encloses: bool = False


@dataclass
class Builder:
    """The buffers and steps emitted so far, and the tensor of each lowered value."""

    graph: OpGraph
    target: str
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Kernel | TorchCall] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    rewrites: frozenset[str] = frozenset()  # the optional rewrites that are on
    apart: frozenset[str] = frozenset()  # attention operators to lower as product, softmax, product
    applicable: list[str] = field(default_factory=list)  # the optional rewrites that would change something
    regions: Mapping[str, Region] = field(default_factory=dict)  # concatenations that share one buffer, by operator
    shared: dict[str, Tensor] = field(
        default_factory=dict
    )  # their common buffer, by the name of the longest concatenation
    # Its parts that are written: (longest concatenation, start).
    filled: set[tuple[str, int]] = field(default_factory=set)
    slices: dict[str, Slices] = field(default_factory=dict)  # values that slices were written to
    # Writes that may go directly into a tensor of the module.
    in_place: Mapping[str, OwnWrite] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # value -> C identifier
    taken: set[str] = field(default_factory=set)

    @property
    def forms(self) -> KernelForms:
        """The kernel forms and sizes that the target's templates support well."""
        return find_target(self.target).forms

    # ------------------------------------------------ values

    def identifier(self, name: str) -> str:
        """A unique C identifier for a value of the graph."""
        if name not in self.names:
            base = re.sub(r"\W", "_", _plain_name(name))
            candidate = base
            suffix = 1
            while candidate in self.taken:
                candidate = f"{base}_{suffix}"
                suffix += 1
            self.taken.add(candidate)
            self.names[name] = candidate
        return self.names[name]

    def tensor(self, item: Argument) -> Tensor:
        """The tensor an argument refers to. Raises Unsupported if it is no tensor."""
        if not isinstance(item, Ref):
            raise Unsupported("expected a tensor")
        return self.tensors[item.ref]

    def tensor_at(self, op: Op, index: int, name: str) -> Tensor:
        """The tensor argument at a position or keyword. Raises Unsupported if it is no tensor."""
        return self.tensor(argument(op, index, name))

    def optional(self, op: Op, index: int, name: str) -> Tensor | None:
        """The tensor argument at a position or keyword, or None if it was not given."""
        found = argument(op, index, name)
        return None if found is None else self.tensor(found)

    def bind(self, op: Op, tensor: Tensor, output: int = 0) -> None:
        """Makes `tensor`, cast to the output's dtype, the value of an output. Raises Unsupported if the shapes
        differ."""
        value = op.outputs[output]
        if tensor.shape != value.spec.shape:
            raise Unsupported(f"{op.target}: shape {tensor.shape} is not {value.spec.shape}")
        self.tensors[value.name] = replace(tensor, expr=cast(tensor.expr, value.spec.dtype))

    # ------------------------------------------------ buffers

    def leaf(self, value: Value) -> None:
        """Registers an input, a parameter, a buffer of the model or a constant; a constant of one element becomes a
        number."""
        spec = value.spec
        shape, strides = spec.shape, spec.strides
        if value.data is not None:
            if spec.numel == 1:
                self.tensors[value.name] = Tensor(shape, const(value.data[0], spec.dtype))
                return
            strides = contiguous_strides(shape)
        name = self.identifier(value.name)
        data = None if value.data is None else tuple(value.data)
        source = "" if data is not None else value.source
        self.buffers[name] = Buffer(
            name,
            shape,
            strides,
            dtype=spec.dtype,
            role="input" if value.role == "input" else "constant" if value.role == "constant" else "parameter",
            source=source,
            data=data,
        )
        self.tensors[value.name] = Tensor(shape, Load(name, View(0, strides), spec.dtype))

    def buffer(self, name: str, shape: Shape, dtype: DType) -> Tensor:
        """A new contiguous temporary; `name` is made a unique identifier."""
        unique = self.identifier(name)
        suffix = 1
        while unique in self.buffers:
            unique = self.identifier(f"{name}_t{suffix}")
            suffix += 1
        self.buffers[unique] = Buffer(unique, shape, contiguous_strides(shape), dtype, "temporary")
        return Tensor(shape, Load(unique, views.identity(shape), dtype))

    def state_buffer(self, held: Buffer, key: str) -> str:
        """The name of a buffer for an input or a tensor of the module, with its key, that steps change in place."""
        name = self.identifier(f"{held.name}_new")
        self.buffers[name] = replace(held, name=name, role="temporary", source=key)
        return name

    def emit(self, kernel: Kernel | TorchCall) -> None:
        """Appends a step."""
        self.steps.append(kernel)

    def store(self, name: str, shape: Shape, expr: Expr, dtype: DType, op: Op) -> Tensor:
        """`expr` over `shape` stored to a new buffer by a separate map kernel."""
        target = self.buffer(name, shape, dtype)
        assert isinstance(target.expr, Load)
        store = Store(target.expr.buffer, target.expr.view, cast(expr, dtype))
        self.emit(MapKernel(f"k_{target.expr.buffer}", shape, (store,), (op.name,)))
        return target

    def pointwise(self, op: Op, expr: Expr, output: int = 0) -> None:
        """Sets an output to `expr` over its own points: emits one map kernel, or nothing if the expression loads
        nothing."""
        value = op.outputs[output]
        if loads_nothing(expr):
            self.bind(op, Tensor(value.spec.shape, expr), output)
            return
        shape = value.spec.shape
        order = self._memory_order(expr, shape)
        turn, turned = views.permute_map(shape, order)
        stored = self.store(value.name, turned, views.remap(expr, shape, turn, turned), value.spec.dtype, op)
        self.tensors[value.name] = self.permute(stored, [order.index(axis) for axis in range(len(shape))], op)

    def _memory_order(self, expr: Expr, shape: Shape) -> list[int]:
        """The dimension order, outermost first, in which the full-size tensors that `expr` reads lie in memory, if they
        all agree; else the given order.

        A result laid out like its operand can join the kernel that computes the operand.
        """
        orders = set()
        for node in views.nodes(expr):
            if isinstance(node, Load) and self.buffers[node.buffer].numel == math.prod(shape):
                order = views.covering_order(shape, node.view)
                if order is not None:
                    orders.add(order)
        found = orders.pop() if len(orders) == 1 else None
        return list(found if found is not None else range(len(shape)))

    # ------------------------------------------------ views

    def reindex(self, tensor: Tensor, point_map: View, shape: Shape, op: Op) -> Tensor:
        """`tensor` read through a view of its row-major positions. Copies it first if an expression cannot follow
        the view."""
        try:
            return Tensor(shape, views.remap(tensor.expr, tensor.shape, point_map, shape))
        except views.NotAffine:
            copy = self.contiguous(tensor, op)
            return Tensor(shape, views.remap(copy.expr, copy.shape, point_map, shape))

    def reshape(self, tensor: Tensor, shape: Shape, op: Op) -> Tensor:
        """The tensor with the same elements in row-major order and another shape."""
        return self.reindex(tensor, views.identity(shape), shape, op)

    def permute(self, tensor: Tensor, order: Sequence[int], op: Op) -> Tensor:
        """The tensor with its dimensions in the given order."""
        point_map, shape = views.permute_map(tensor.shape, order)
        return self.reindex(tensor, point_map, shape, op)

    def expand(self, tensor: Tensor, shape: Shape, op: Op) -> Tensor:
        """The tensor broadcast to `shape` by PyTorch's rules. Raises Unsupported if it does not broadcast."""
        if tensor.shape == shape:
            return tensor
        missing = len(shape) - len(tensor.shape)
        own = (1,) * missing + tensor.shape
        strides = contiguous_strides(own)
        if missing < 0 or any(have not in (1, want) for have, want in zip(own, shape, strict=True)):
            raise Unsupported(f"{op.target}: {tensor.shape} does not broadcast to {shape}")
        steps = tuple(0 if have == 1 else step for have, step in zip(own, strides, strict=True))
        return self.reindex(tensor, View(0, steps), shape, op)

    def contiguous(self, tensor: Tensor, op: Op, name: str = "") -> Tensor:
        """The tensor as a load of a buffer that holds exactly its elements in row-major order, copied if necessary."""
        expr = tensor.expr
        if isinstance(expr, Load) and views.is_identity(expr.view, tensor.shape):
            return tensor
        return self.store(name or f"{op.name}_copy", tensor.shape, expr, tensor.dtype, op)

    def ensure_load(self, tensor: Tensor, op: Op) -> tuple[Tensor, Load]:
        """The tensor as one load through any view; a computed one is stored to memory first."""
        if isinstance(tensor.expr, Load):
            return tensor, tensor.expr
        copy = self.contiguous(tensor, op)
        assert isinstance(copy.expr, Load)
        return copy, copy.expr


def loads_nothing(expr: Expr) -> bool:
    """True if an expression consists of indices and constants only, and is cheap to compute at each use."""
    return all(
        isinstance(node, Const | Iota) or (isinstance(node, Apply) and node.op not in EXPENSIVE)
        for node in views.nodes(expr)
    )


def broadcast(*shapes: Shape) -> Shape:
    """PyTorch's broadcast of shapes."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*padded, strict=True))
