"""Faults in the scalar expressions of the kernels: epilogues, row values, sums, operands. Free of torch.

Left out, because they change only rounding: changes inside a maximum that keeps exp from overflowing (softmax does
not depend on its value), and the precision of such a maximum.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from foundry.knowledge.compiler.ir.access import rewritten, stores_of
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    Expr,
    Gather,
    Kernel,
    Load,
    Named,
    Plan,
    Reduction,
    RowKernel,
    TorchCall,
    View,
)
from foundry.knowledge.opgraph import DType
from foundry.tools.selftest.faults.fault import Family, Fault, PlantableFault
from foundry.tools.selftest.faults.original import Original
from foundry.tools.selftest.faults.rewriting import (
    KernelExpression,
    everywhere,
    is_bounded,
    loads,
    nodes,
    places,
    replace_node,
    round_to,
    size,
    unless_last,
)

Found = tuple[Family, str, str, Kernel]  # family, what, where, the faulty kernel

_NEUTRAL = frozenset({"max", "min", "argmax", "argmin", "any", "all", "logsumexp"})  # reductions other than sums
_FUNCTIONS = frozenset(
    {
        "relu",
        "gelu",
        "gelu_tanh",
        "silu",
        "tanh",
        "sigmoid",
        "exp",
        "sqrt",
        "rsqrt",
        "square",
        "softplus",
        "mish",
        "log",
    }
)
_OTHER: dict[str, str] = {
    "add": "sub",
    "sub": "add",
    "mul": "add",
    "div": "mul",
    "maximum": "minimum",
    "minimum": "maximum",
    "exp": "exp2",
    "log": "log1p",
    "gelu": "gelu_tanh",
    "gelu_tanh": "gelu",
    "silu": "sigmoid",
    "sigmoid": "hardsigmoid",
    "tanh": "softsign",
    "relu": "abs",
    "lt": "le",
    "le": "lt",
    "gt": "ge",
    "ge": "gt",
}
_EPSILON_BELOW = 1e-3  # a smaller constant that is added counts as an epsilon
_SIXTEEN: tuple[tuple[DType, str], ...] = (("bfloat16", "bfloat16"), ("float16", "half precision"))
_MAX_NODES = 200  # nodes of an expression; larger ones take too long to search


def faults(original: Original) -> Iterator[PlantableFault]:
    """Every fault in a scalar expression of the kernels of the first captured shape."""
    for step, kernel, plan in original.kernels(0):
        if any(size(place.expr) > _MAX_NODES for place in places(kernel)):
            continue
        for family, what, where, faulty in _find(kernel, plan):
            yield PlantableFault(Fault(family, what, where), _maker(original, step, faulty))


def _maker(original: Original, step: int, faulty: Kernel) -> Callable[[], str]:
    """A function that makes the candidate's text with step `step` of its first graph replaced by the faulty kernel."""
    return lambda: original.with_kernel(0, step, faulty)


def _find(kernel: Kernel, plan: Plan) -> Iterator[Found]:
    """Faults in all expressions of one kernel, each with the faulty kernel."""
    for place in places(kernel):
        if place.kind in _NEUTRAL:
            continue
        for node in nodes(place.expr):
            if isinstance(node, Apply):
                for family, what, new in _in_apply(node, place, plan):
                    yield family, what, place.what, place.put(replace_node(place.expr, node, new))
        yield from _last_elements(place)
    yield from _of_loads(kernel, plan)
    yield from _of_named(kernel, plan)
    yield from _drop_stabilisation(kernel, plan)


# ---------------------------------------------------------------- operations


def _in_apply(node: Apply, place: KernelExpression, plan: Plan) -> Iterator[tuple[Family, str, Expr]]:
    """Yields (family, description, wrong expression) for faults of one operation.

    Left out, other numbers, exchanged operands, another operator, an untested condition.
    """
    yield from _drop(node, plan)
    yield from _numbers(node, place)
    yield from _exchange(node)
    if node.op in _OTHER and not _is_epsilon(node):
        changed = _as(_OTHER[node.op], node)
        yield "wrong operator", f"{_OTHER[node.op]} stands where {node.op} belongs", changed
    if node.op == "where":
        for index, name in ((1, "first"), (2, "second")):
            if _is_value(node.args[index]):
                yield "missing bounds check", f"a condition is not tested: always its {name} value", node.args[index]


def _as(op: str, node: Apply) -> Apply:
    """The node with another operator on the same arguments."""
    return replace(node, op=op)


def _is_value(expr: Expr) -> bool:
    """True for all expressions but constants."""
    return not isinstance(expr, Const)


def _drop(node: Apply, plan: Plan) -> Iterator[tuple[Family, str, Expr]]:
    """Faults that leave an operation out and keep its main operand."""
    if node.op in _FUNCTIONS and node.args[0].dtype == node.dtype:
        yield "dropped operator", f"{node.op} is left out", node.args[0]
    if node.op not in ("add", "sub", "mul", "div") or _is_epsilon(node) or _is_neutral(node):
        return
    kept, other = _main(node)
    if kept.dtype != node.dtype:
        return
    family: Family = "dropped operator"
    if isinstance(other, Load) and plan.buffers[other.buffer].role == "parameter":
        family = "dropped affine parameter"
    if isinstance(other, Const) and node.op == "div":
        family = "wrong reduction" if isinstance(kept, Named) else family
    yield family, f"{node.op} {_words(other)} is left out", kept


def _main(node: Apply) -> tuple[Expr, Expr]:
    """(operand that carries the computation, other operand)."""
    first, second = node.args
    if node.op in ("add", "mul") and size(second) > size(first):
        return second, first
    return first, second


def _is_neutral(node: Apply) -> bool:
    """True for x + 0 and x * 1: leaving them out changes nothing."""
    unit = 0 if node.op in ("add", "sub") else 1
    return any(isinstance(item, Const) and item.value == unit for item in node.args)


def _words(expr: Expr) -> str:
    """A short text for an expression: its number, buffer, name or operator."""
    match expr:
        case Const():
            return f"{expr.value:.6g}"
        case Load() | Gather():
            return expr.buffer
        case Named():
            return expr.name
        case Apply():
            return f"{expr.op}(...)"
    return "a position"


def _is_epsilon(node: Apply) -> bool:
    """True if an operation adds a small constant."""
    return node.op == "add" and any(
        isinstance(item, Const) and isinstance(item.value, float) and 0 < abs(item.value) < _EPSILON_BELOW
        for item in node.args
    )


def _numbers(node: Apply, place: KernelExpression) -> Iterator[tuple[Family, str, Expr]]:
    """Faults that change a constant; a changed division by the number of elements is a wrong count."""
    if node.dtype not in ("float32", "float64", "float16", "bfloat16"):
        return
    if _is_epsilon(node):
        kept, epsilon = _main(node)
        yield "wrong constant", f"the epsilon {_words(epsilon)} is left out", kept
        return
    if node.op not in ("add", "sub", "mul", "div"):
        return
    for index, item in enumerate(node.args):
        if not isinstance(item, Const) or not math.isfinite(item.value) or not item.value:
            continue
        is_count = node.op == "div" and index == 1 and item.value >= 2 and float(item.value).is_integer()
        if is_count and isinstance(node.args[0], Named):
            value = item.value - 1
            family = "wrong reduction"
        else:
            value = item.value * 1.01
            family = "wrong constant"
        args = (*node.args[:index], replace(item, value=value), *node.args[index + 1 :])
        yield family, f"{node.op} with {value:.7g} instead of {item.value:.7g}", replace(node, args=args)  # type: ignore[misc]


def _exchange(node: Apply) -> Iterator[tuple[Family, str, Expr]]:
    """Faults that swap two operations: f(x + c) -> f(x) + c, and x * a + b -> (x + b) * a."""
    inner = next((item for item in node.args if isinstance(item, Apply)), None)
    if inner is None or inner.op not in ("add", "sub", "mul", "div") or inner.dtype != node.dtype:
        return
    kept, other = _main(inner)
    if kept is not inner.args[0] and inner.op in ("sub", "div"):
        return
    if node.op in _FUNCTIONS and len(node.args) == 1:
        is_scaling = inner.op in ("mul", "div")
        if node.op in ("relu",) and is_scaling and isinstance(other, Const) and float(other.value) > 0:
            return
        yield (
            "swapped order",
            f"{node.op} is applied before {inner.op} {_words(other)} instead of after it",
            replace(inner, args=(replace(node, args=(kept,)), other)),
        )
    if node.op == "add" and inner.op == "mul":
        addend = node.args[1] if node.args[0] is inner else node.args[0]
        yield (
            "swapped order",
            f"add {_words(addend)} comes before mul {_words(other)} instead of after it",
            replace(inner, args=(replace(node, args=(kept, addend)), other)),
        )


# ---------------------------------------------------------------- leaves


def _last_elements(place: KernelExpression) -> Iterator[Found]:
    """Faults that leave out the last index of a dimension in a store (zeros there) or a sum."""
    if place.expr.dtype == "bool":
        return
    space = place.space
    if place.kind == "store":
        for dim in (len(space) - 1, 0):
            if len(space) > dim >= 0 and space[dim] > 1 and _varies(place, dim):
                what = f"the last of {space[dim]} along dimension {dim} is stored as zero"
                yield "missing last element", what, place.what, place.put(unless_last(place.expr, space, dim, 0.0))
    elif place.kind in ("sum", "value") and space and space[-1] > 1:
        what = f"the last of {space[-1]} along dimension {len(space) - 1} counts as zero"
        yield "missing last element", what, place.what, place.put(unless_last(place.expr, space, len(space) - 1, 0.0))


def _varies(place: KernelExpression, dim: int) -> bool:
    """True if a store's value differs along a dimension: a store once a row does not along the reduced ones."""
    return any(load.view.strides[dim] for load in loads(place.expr)) or any(
        isinstance(node, Named) and node.name == "acc" for node in nodes(place.expr)
    )


def _of_loads(kernel: Kernel, plan: Plan) -> Iterator[Found]:
    """Faults of each distinct load of a kernel, planted wherever the kernel uses it."""
    seen: list[Load] = []
    for place in places(kernel):
        for load in loads(place.expr):
            if load in seen:
                continue
            seen.append(load)
            where = f"{kernel.name}, load of {load.buffer}"
            if load.dtype == "float32" and not _is_count(load, plan):
                for dtype, words in _SIXTEEN:
                    changed = everywhere(kernel, load, round_to(load, dtype))
                    yield "lower precision", f"{load.buffer} is rounded to {words}", where, changed
            for family, what, new in _indices(load, place.space):
                yield family, what, where, everywhere(kernel, load, new)
        for node in nodes(place.expr):
            if isinstance(node, Gather):
                index = Apply("add", (node.index, Const(1, node.index.dtype)), node.index.dtype)
                what = f"the gathered position in {node.buffer} is one too far"
                yield "off by one", what, place.what, everywhere(kernel, node, replace(node, index=index))


def _indices(load: Load, space: tuple[int, ...]) -> Iterator[tuple[Family, str, Load]]:
    """Faults in the view of a load: shifted by one, transposed, or along another dimension."""
    strides = load.view.strides
    moving = [dim for dim, stride in enumerate(strides) if stride and space[dim] > 1]
    if not moving:
        return
    for dim in dict.fromkeys((moving[-1], moving[0])):
        shifted = replace(load, view=View(load.view.offset + strides[dim], strides))
        yield "off by one", f"{load.buffer} is read one further along dimension {dim}", shifted
    if len(moving) > 1:
        forgotten = tuple(0 if dim == moving[0] else stride for dim, stride in enumerate(strides))
        what = f"the index of dimension {moving[0]} is forgotten in reads of {load.buffer}"
        yield "wrong axis", what, replace(load, view=View(load.view.offset, forgotten))
    for one, other in itertools.pairwise(moving):
        if space[one] == space[other]:
            turned = list(strides)
            turned[one], turned[other] = turned[other], turned[one]
            what = f"{load.buffer} is read transposed in dimensions {one} and {other}"
            yield "wrong axis", what, replace(load, view=View(load.view.offset, tuple(turned)))
    still = [dim for dim, stride in enumerate(strides) if not stride and space[dim] > 1]
    if len(moving) == 1 and len(still) >= 1 and space[still[0]] <= space[moving[0]]:
        turned = [0] * len(strides)
        turned[still[0]] = strides[moving[0]]
        what = f"{load.buffer} runs along dimension {still[0]} instead of {moving[0]}"
        yield "wrong axis", what, replace(load, view=View(load.view.offset, tuple(turned)))


def _of_named(kernel: Kernel, plan: Plan) -> Iterator[Found]:
    """Faults that round values the kernel computed itself to 16 bits at their uses."""
    stabilising = _maxima(kernel) | _counts(kernel, plan)
    seen: list[Expr] = []
    for place in places(kernel):
        for node in nodes(place.expr):
            if not isinstance(node, Named) or node.dtype != "float32" or node in seen or node.name in stabilising:
                continue
            seen.append(node)
            for dtype, words in _SIXTEEN:
                what = f"{node.name} is rounded to {words}"
                yield (
                    "lower precision",
                    what,
                    f"{kernel.name}, value {node.name}",
                    everywhere(kernel, node, round_to(node, dtype)),
                )


def _is_count(expr: Expr, plan: Plan) -> bool:
    """True if a value is always 0 or 1 (a mean counts elements so). Rounding changes neither it nor a sum of a few."""
    match expr:
        case Const():
            return expr.value in (0, 1)
        case Apply(op="where"):
            return all(_is_count(item, plan) for item in expr.args[1:])
        case Load():
            kernels = [step for step in plan.steps if not isinstance(step, TorchCall)]
            stored = [store.value for step in kernels for store in stores_of(step) if store.buffer == expr.buffer]
            return bool(stored) and all(_is_count(value, plan) for value in stored)
    return False


def _counts(kernel: Kernel, plan: Plan) -> set[str]:
    """Names of the kernel's sums of zeros and ones."""
    if not isinstance(kernel, RowKernel):
        return set()
    sums = [stage for stage in kernel.stages if isinstance(stage, Reduction) and stage.op == "sum"]
    return {stage.name for stage in sums if _is_count(stage.value, plan)}


def _maxima(kernel: Kernel) -> set[str]:
    """Names of the kernel's maxima and minima."""
    if not isinstance(kernel, RowKernel):
        return set()
    reductions = [stage for stage in kernel.stages if isinstance(stage, Reduction)]
    return {stage.name for stage in reductions if stage.op in ("max", "min")}


def _drop_stabilisation(kernel: Kernel, plan: Plan) -> Iterator[Found]:
    """Faults that compute exp(x) for exp(x - max), unless x is bounded, as after a normalisation."""
    maxima = _maxima(kernel)

    def visit(expr: Expr, _: tuple[int, ...]) -> Expr:
        """The expression with a subtraction of a row's maximum replaced by its first operand, unless that is
        bounded."""
        for node in nodes(expr):
            if isinstance(node, Apply) and node.op == "sub" and not is_bounded(node.args[0], plan):
                subtracted = node.args[1]
                if isinstance(subtracted, Named) and subtracted.name in maxima:
                    expr = replace_node(expr, node, node.args[0])
        return expr

    plain = rewritten(kernel, visit)
    if plain != kernel:
        yield "missing stabilisation", "the maximum is not subtracted before exp", kernel.name, plain
