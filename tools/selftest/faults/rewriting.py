"""Rewriting of kernels' scalar expressions at chosen places. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import expressions, rewritten, stores_of, tail_of
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    Emit,
    EmitRow,
    Expr,
    Gather,
    Iota,
    Kernel,
    Let,
    Load,
    Named,
    Plan,
    Reduction,
    RowKernel,
    Store,
    TorchCall,
    View,
)
from foundry.knowledge.opgraph import DType

Shape = tuple[int, ...]
_SQUASHING = frozenset({"tanh", "sigmoid", "erf", "sin", "cos", "softsign", "hardsigmoid"})


@dataclass(frozen=True)
class KernelExpression:
    """One expression of a kernel.

    `what` names it; `space` is the iteration shape (elements) that the views of its leaves index; `put(expr)` is the
    kernel with this expression replaced.
    """

    what: str
    kind: str  # "store", "let", the operation of a reduction ("sum", "max"), "value" of a scan or a product
    expr: Expr
    space: Shape
    put: Callable[[Expr], Kernel]


def places(kernel: Kernel) -> Iterator[KernelExpression]:
    """Every expression of a kernel; operands of convolutions and attention are no expressions."""
    found = list(expressions(kernel))
    kinds = _kinds(kernel)
    for at, (expr, space) in enumerate(found):
        what, kind = kinds[at]
        yield KernelExpression(f"{kernel.name}, {what}", kind, expr, space, _putting(kernel, at))


def _kinds(kernel: Kernel) -> list[tuple[str, str]]:
    """(description, kind) of each expression, in the order of `expressions`: inputs, stores, a reduction epilogue."""
    inputs: list[tuple[str, str]] = []
    after: list[tuple[str, str]] = []
    if isinstance(kernel, RowKernel):
        inputs = [_stage_kind(stage) for stage in kernel.stages if isinstance(stage, Reduction | Let)]
        stores = [stage.store for stage in kernel.stages if isinstance(stage, Emit | EmitRow)]
    else:
        stores = list(kernel.stores)
        tail = tail_of(kernel)
        after = [("what is reduced", "value"), *map(_stage_kind, tail.stages)] if tail else []
    missing = len(list(expressions(kernel))) - len(inputs) - len(stores) - len(after)
    inputs += [(f"operand {at}", "value") for at in range(missing)]
    return [*inputs, *[(f"store of {store.buffer}", "store") for store in stores], *after]


def _stage_kind(stage: Reduction | Let | Emit | EmitRow) -> tuple[str, str]:
    """(description, kind) of a stage of a row kernel."""
    if isinstance(stage, Reduction):
        return f"{stage.op} {stage.name}", stage.op
    return (f"row value {stage.name}", "let") if isinstance(stage, Let) else (f"store of {stage.store.buffer}", "store")


def _putting(kernel: Kernel, wanted: int) -> Callable[[Expr], Kernel]:
    """A function that gives the kernel with its `wanted`-th expression (inputs, then stores) replaced."""

    def put(new: Expr) -> Kernel:
        """The kernel with expression number `wanted` replaced by `new`."""
        if isinstance(kernel, RowKernel):
            return _in_row(kernel, wanted, new)
        count = -1

        def visit(expr: Expr, _: Shape) -> Expr:
            """Counts expressions and replaces the wanted one."""
            nonlocal count
            count += 1
            return new if count == order[wanted] else expr

        # `rewritten` visits a store before the operands of a scan, a pool or a product, `expressions` after them
        order = _visiting_order(kernel)
        return rewritten(kernel, visit)

    return put


def _visiting_order(kernel: Kernel) -> list[int]:
    """Position in the visits of `rewritten` of each expression, in the order of `expressions`."""
    seen: list[Expr] = []

    def note(expr: Expr, _: Shape) -> Expr:
        """Appends the expression to those seen and returns it unchanged."""
        seen.append(expr)
        return expr

    rewritten(kernel, note)
    taken: set[int] = set()
    order = []
    for expr, _ in expressions(kernel):
        at = next(index for index, item in enumerate(seen) if item is expr and index not in taken)
        taken.add(at)
        order.append(at)
    return order


def _in_row(kernel: RowKernel, wanted: int, new: Expr) -> RowKernel:
    """The row kernel with its `wanted`-th expression replaced."""
    inputs = [at for at, stage in enumerate(kernel.stages) if not isinstance(stage, Emit | EmitRow)]
    emits = [at for at, stage in enumerate(kernel.stages) if isinstance(stage, Emit | EmitRow)]
    at = [*inputs, *emits][wanted]
    stage = kernel.stages[at]
    changed = (
        replace(stage, store=replace(stage.store, value=new))
        if isinstance(stage, Emit | EmitRow)
        else replace(stage, value=new)
    )
    return replace(kernel, stages=(*kernel.stages[:at], changed, *kernel.stages[at + 1 :]))


def nodes(expr: Expr) -> list[Expr]:
    """Every distinct node of an expression by value, parents first."""
    found: list[Expr] = []
    for node in views.nodes(expr):
        if node not in found:
            found.append(node)
    return found


def replace_node(expr: Expr, old: Expr, new: Expr) -> Expr:
    """`expr` with every node equal to `old` replaced by `new`."""
    memo: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        """The node rewritten; a shared node only once."""
        if id(node) not in memo:
            memo[id(node)] = changed(node)
        return memo[id(node)]

    def changed(node: Expr) -> Expr:
        """`new` if the node equals `old`, else the node with its operands rewritten."""
        if node == old:
            return new
        if isinstance(node, Apply):
            return replace(node, args=tuple(visit(argument) for argument in node.args))
        if isinstance(node, Gather):
            return replace(node, index=visit(node.index))
        return node

    return visit(expr)


def everywhere(kernel: Kernel, old: Expr, new: Expr) -> Kernel:
    """The kernel with a node replaced in all its expressions."""
    return rewritten(kernel, lambda expr, _: replace_node(expr, old, new))


def round_to(expr: Expr, dtype: DType) -> Expr:
    """`expr` rounded to `dtype` and back to its own dtype."""
    return Apply("cast", (Apply("cast", (expr,), dtype),), expr.dtype)


def unless_last(expr: Expr, space: Shape, dim: int, otherwise: float) -> Expr:
    """`expr`, but `otherwise` at the last index of a dimension."""
    strides = tuple(int(at == dim) for at in range(len(space)))
    inside = Apply("lt", (Iota(View(0, strides)), Const(space[dim] - 1, "int64")), "bool")
    neutral = Const(otherwise if expr.dtype.startswith(("float", "bfloat")) else int(otherwise), expr.dtype)
    return Apply("where", (inside, expr, neutral), expr.dtype)


def size(expr: Expr) -> int:
    """Number of nodes of an expression."""
    return sum(1 for _ in views.nodes(expr))


def stores_with(kernel: Kernel, at: int, change: Callable[[Store], Store]) -> Kernel:
    """The kernel with store number `at` replaced by what `change` makes of it."""
    if isinstance(kernel, RowKernel):
        stages = list(kernel.stages)
        emits = [index for index, stage in enumerate(stages) if isinstance(stage, Emit | EmitRow)]
        stage = stages[emits[at]]
        assert isinstance(stage, Emit | EmitRow)
        stages[emits[at]] = replace(stage, store=change(stage.store))
        return replace(kernel, stages=tuple(stages))
    stores = list(kernel.stores)
    stores[at] = change(stores[at])
    return replace(kernel, stores=tuple(stores))


def loads(expr: Expr) -> list[Load]:
    """Distinct loads of an expression."""
    return [node for node in nodes(expr) if isinstance(node, Load)]


def is_bounded(expr: Expr, plan: Plan) -> bool:
    """True if a value is too small for exp to overflow, because it was normalised or squashed before."""
    for node in nodes(expr):
        if isinstance(node, Named) or (isinstance(node, Apply) and node.op in _SQUASHING):
            return True
        if isinstance(node, Load):
            kernels = [step for step in plan.steps if not isinstance(step, TorchCall)]
            stored = [store.value for step in kernels for store in stores_of(step) if store.buffer == node.buffer]
            if any(is_bounded(value, plan) for value in stored if not _is_sum(value)):
                return True
    return False


def _is_sum(value: Expr) -> bool:
    """True for the result of a product or a scan: it is as large as its operands make it."""
    return any(isinstance(node, Named) and node.name == "acc" for node in nodes(value))
