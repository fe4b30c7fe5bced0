"""How large a task's inputs are, read from its file: nothing is run, so what a file works out may stay unknown."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from foundry.knowledge.syntax import parse

MAKERS = frozenset({"empty", "full", "normal", "ones", "rand", "randint", "randn", "zeros"})  # PyTorch's functions
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
}
LARGEST = 1 << 48  # elements: what is more is no size

Known = dict[str, Any]


def input_elements(source: str) -> int | None:
    """The elements of the tensors that `get_inputs` makes; None where that cannot be read."""
    try:
        module = parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    known: Known = {}
    found: list[int | None] = []
    for node in module.body:
        _assign(node, known)
        if isinstance(node, ast.FunctionDef) and node.name == "get_inputs":
            found = [_elements(call, known) for call in _makers(node, known)]
    total = sum(count for count in found if count is not None)
    return total if total and None not in found else None


def _makers(function: ast.FunctionDef, known: Known) -> Iterator[ast.Call]:
    """Yields the calls in a function that make tensors; notes its assignments in `known` first."""
    for statement in function.body:
        _assign(statement, known)
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS:
            yield node


def _assign(node: ast.stmt, known: Known) -> None:
    """Notes the values that `x = 4` or `x, y = 4, 4` gives to names; ignores other statements."""
    if not isinstance(node, ast.Assign):
        return
    value = _value(node.value, known)
    for target in node.targets:
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value if isinstance(target, ast.Tuple) and isinstance(value, tuple) else [value] * len(names)
        known.update({name.id: one for name, one in zip(names, values, strict=False) if isinstance(name, ast.Name)})


def _elements(call: ast.Call, known: Known) -> int | None:
    """The count of elements that a call like randn(2, N) or randint(0, 9, (2, N)) makes; None if unknown."""
    values: list[Any] = []
    for argument in call.args:
        value = _value(argument, known)
        values += value if isinstance(argument, ast.Starred) and value is not None else [value]
    values += [_value(word.value, known) for word in call.keywords if word.arg == "size"]
    shapes = [value for value in values if isinstance(value, tuple)]
    if not shapes and None in values:
        return None
    count = 1
    for size in shapes[-1] if shapes else values:
        count *= size if isinstance(size, int) and 0 <= size <= LARGEST else 0
    return count if 0 < count <= LARGEST else None


def _value(node: ast.expr, known: Known) -> Any:
    """The integer, or tuple of integers, that an expression of known names gives; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Starred):
        return _value(node.value, known)
    if isinstance(node, ast.Tuple | ast.List):
        return _flat([_value(item, known) for item in node.elts])
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _value(node.left, known), _value(node.right, known)
        if isinstance(left, int) and isinstance(right, int) and 0 <= right <= LARGEST and abs(left) <= LARGEST:
            is_shift = isinstance(node.op, ast.LShift)
            is_defined = right <= 48 if is_shift else right > 0 or not isinstance(node.op, ast.FloorDiv)
            return _ARITHMETIC[type(node.op)](left, right) if is_defined else None
    return None


def _flat(values: list[Any]) -> tuple[int, ...] | None:
    """One tuple of all values, tuples among them spliced in; None if one is not known."""
    found: list[int] = []
    for value in values:
        if value is None:
            return None
        found += value if isinstance(value, tuple) else [value]
    return tuple(found)
