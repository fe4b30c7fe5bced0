"""Removes operators that change nothing or are constant, and merges numbers of neighbouring operators."""

from __future__ import annotations

from foundry.knowledge.compiler.algebra.editor import FLOATS, Editor, numbers
from foundry.knowledge.opgraph import Argument, Op, OpGraph, Ref

_SAME = frozenset({"sum", "mean", "prod", "amax", "amin", "max", "min", "logsumexp", "cumsum", "cumprod"})
_ONES = frozenset({"softmax", "_softmax"})
_ZEROS = frozenset({"log_softmax", "_log_softmax"})
_VIEWS = frozenset({"view", "reshape", "unsqueeze", "squeeze", "detach", "alias", "clone"})
_IDEMPOTENT = frozenset({"relu", "abs", "floor", "ceil", "round", "trunc", "sign"})
_LARGEST = 1e30  # largest factor that neighbours may join to: float32 holds it and its inverse
_BOUNDS = {"relu": (0.0, None), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0), "clamp": (None, None)}


def single_element(graph: OpGraph, op: Op) -> OpGraph | None:
    """Replaces operators over one element; None if that does not apply.

    A sum, mean, maximum or log-sum-exp of one number is that number, its softmax is 1, and a number minus itself is
    0. (Not for infinities, whose softmax and difference are NaN.)
    """
    editor = Editor(graph, op)
    source = op.args[0] if op.args else None
    if not isinstance(source, Ref) or op.outputs[0].spec.dtype not in FLOATS:
        return None
    if op.kind in ("sub", "subtract") and len(op.args) == 2 and not op.kwargs:
        other = op.args[1]
        if isinstance(other, Ref) and _root(editor, source) == _root(editor, other):
            same = editor.shape(source) == editor.shape(other) == op.outputs[0].spec.shape
            return _fill(editor, 0.0) if same else None
        return None
    if any(editor.is_read(value.name) for value in op.outputs[1:]) or not _one_each(editor, op, source):
        return None
    if op.kind in _SAME:
        return editor.put(source)
    if op.kind in _ONES | _ZEROS:
        return _fill(editor, 1.0 if op.kind in _ONES else 0.0)
    return None


def _root(editor: Editor, item: Ref) -> str:
    """The value behind views of it."""
    maker = editor.graph.producers.get(item.ref)
    while maker is not None and maker.kind in _VIEWS and isinstance(maker.args[0], Ref):
        item = maker.args[0]
        maker = editor.graph.producers.get(item.ref)
    return item.ref


def _one_each(editor: Editor, op: Op, source: Ref) -> bool:
    """True if the operator reduces single elements, along axes of size 1."""
    shape = editor.shape(source)
    if op.kind not in _SAME | _ONES | _ZEROS or editor.spec(source).dtype != op.outputs[0].spec.dtype:
        return False
    given = op.args[1] if len(op.args) > 1 else None
    if isinstance(given, Ref) or not shape:
        return False
    listed = given if isinstance(given, list) and given else [given] if isinstance(given, int) else range(len(shape))
    return all(isinstance(axis, int) and shape[axis] == 1 for axis in listed)


def _fill(editor: Editor, number: float) -> OpGraph:
    """The graph with a constant in place of the operator."""
    spec = editor.op.outputs[0].spec
    return editor.put(editor.emit("aten.full.default", [numbers(spec.shape), number], spec.shape, spec.dtype, 0))


# ---------------------------------------------------------------- constants


def fold_constants(graph: OpGraph, op: Op) -> OpGraph | None:
    """Merges numbers of neighbouring operators and drops operators that change nothing; None if that does not apply.

    Examples: x * 1, x + 0, dropout in evaluation, x * a * b, x + a + b, relu(relu(x)), clamp(clamp(x)). At most one
    rounding less.
    """
    editor = Editor(graph, op)
    source = op.args[0] if op.args else None
    spec = op.outputs[0].spec
    if not isinstance(source, Ref) or op.kwargs or spec.dtype not in FLOATS or editor.spec(source) != spec:
        return None
    if _is_neutral(op):
        return editor.put(source)
    maker = editor.graph.producers.get(source.ref)
    if maker is None or maker.kwargs or not maker.args or not isinstance(maker.args[0], Ref):
        return None
    inner = maker.args[0]
    if editor.spec(inner) != spec:
        return None
    if op.kind in _IDEMPOTENT and maker.kind == op.kind:
        return editor.put(source)
    joined = _joined(maker, op)
    if joined is None or not editor.only_reader(source.ref):
        return None
    return editor.put(editor.emit(joined[0], [inner, *joined[1]], spec.shape, spec.dtype))


def _number(op: Op) -> float | None:
    """The number that is an operator's second operand, or None."""
    found = op.args[1] if len(op.args) == 2 else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _is_neutral(op: Op) -> bool:
    """True if the operator changes nothing."""
    if op.kind == "dropout":
        return len(op.args) == 3 and op.args[2] is False
    number = _number(op)
    return (op.kind in ("mul", "div") and number == 1) or (op.kind in ("add", "sub") and number == 0)


def _joined(first: Op, second: Op) -> tuple[str, list[Argument]] | None:
    """(target, arguments after the tensor) of one operator equal to both in a row: factors or divisors, terms or
    differences, bounds. None otherwise, and for factors that are 0 or join beyond _LARGEST."""
    one, other = _number(first), _number(second)
    kinds = {first.kind, second.kind}
    if one is not None and other is not None and kinds <= {"mul", "div"} and one * other:
        factors = [number if op.kind == "mul" else 1 / number for op, number in ((first, one), (second, other))]
        product = factors[0] * factors[1]
        return ("aten.mul.Tensor", [product]) if 1 / _LARGEST < abs(product) < _LARGEST else None
    if one is not None and other is not None and kinds <= {"add", "sub"}:
        terms = [number if op.kind == "add" else -number for op, number in ((first, one), (second, other))]
        return "aten.add.Tensor", [terms[0] + terms[1]]
    inner, outer = _bounds(first), _bounds(second)
    if inner is None or outer is None:
        return None
    low, high = (_clamp(bound, outer) for bound in inner)
    low = outer[0] if low is None else low
    high = outer[1] if high is None else high
    return "aten.clamp.default", [low, high]


def _clamp(number: float | None, bounds: tuple[float | None, float | None]) -> float | None:
    """The number limited to bounds, either of which may be missing; None stays None."""
    low, high = bounds
    if number is None:
        return None
    number = number if low is None else max(number, low)
    return number if high is None else min(number, high)


def _bounds(op: Op) -> tuple[float | None, float | None] | None:
    """(lower, upper) bounds between which an operator clamps; None if it does not clamp."""
    if op.kind not in _BOUNDS:
        return None
    given = list(op.args[1:3])
    if any(item is not None and (isinstance(item, bool) or not isinstance(item, int | float)) for item in given):
        return None
    found = [item if isinstance(item, int | float) else None for item in given]
    low, high = _BOUNDS[op.kind]
    if op.kind in ("clamp", "hardtanh"):
        low = found[0] if found else low
        high = found[1] if len(found) > 1 else high
    return None if low is not None and high is not None and low > high else (low, high)
