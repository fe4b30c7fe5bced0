"""Integer expressions of a launch table: `ceil_div(x_d0, ROWS)`. They are data; nothing of them is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

from foundry.knowledge import syntax
from foundry.knowledge.errors import CannotLower

LONGEST = 300  # characters of an expression
LARGEST = 2**62  # largest absolute value

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "min": min,
    "max": max,
    "ceil_div": lambda value, by: -(-value // by),
}


def evaluate(text: str, names: Mapping[str, int]) -> int:
    """The value of an expression; a condition is 1 or 0. Raises CannotLower that says what is wrong."""
    if len(text) > LONGEST:
        raise CannotLower(f"the expression {text[:40]!r}... is longer than {LONGEST} characters")
    try:
        tree = syntax.parse(text.strip()).body
        if len(tree) != 1 or not isinstance(tree[0], ast.Expr):
            raise CannotLower(f"{text!r} is no expression")
        return _value(tree[0].value, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError) as error:
        raise CannotLower(f"{text!r} cannot be read: {error}") from error
    except ZeroDivisionError:
        raise CannotLower(f"{text!r} divides by zero") from None
    except _Unknown as error:
        known = ", ".join(sorted(names)[:40])
        raise CannotLower(f"{text!r}: {error}; known: {known}; + - * // % min max ceil_div and comparisons") from None


class _Unknown(Exception):
    """A part of an expression has no value."""


def _value(node: ast.expr, names: Mapping[str, int]) -> int:
    """The value of a node; raises _Unknown beyond LARGEST."""
    found = _compute(node, names)
    if abs(found) > LARGEST:
        raise _Unknown("a value is too large")
    return found


def _compute(node: ast.expr, names: Mapping[str, int]) -> int:
    """The value of an expression of integers, names, arithmetic, comparisons and a few functions. Raises _Unknown."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, names)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.BoolOp):
        values = [bool(_value(part, names)) for part in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and all(type(sign) in _COMPARE for sign in node.ops):
        sides = [_value(part, names) for part in (node.left, *node.comparators)]
        steps = zip(node.ops, sides, sides[1:], strict=False)
        return int(all(_COMPARE[type(sign)](left, right) for sign, left, right in steps))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.args:
        return int(_FUNCTIONS[node.func.id](*(_value(part, names) for part in node.args)))
    raise _Unknown(f"{ast.unparse(node)} has no value")
