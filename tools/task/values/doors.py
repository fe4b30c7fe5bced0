"""Lets torch.export follow Python that reads values: sizes and numbers become symbols, and `if` takes the side that
computes.

What was assumed is kept with its line: a graph is a hypothesis about forward, and proof decides.
"""

from __future__ import annotations

import builtins
import contextlib
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

MOST_ROUNDS = 256  # rounds of a loop over chosen items; every candidate gets one


@dataclass
class Doors:
    """Python's questions about values in one trace.

    `decisions` are (line, condition, answer), each once. `iterated` are the sizes of tensors that a loop walked.
    """

    file: str
    decisions: dict[tuple[int, bool], str] = field(default_factory=dict)
    iterated: set[str] = field(default_factory=set)
    asked: str | bool = ""  # the function that made the tensor whose truth Python asks for, or its known truth

    @property
    def assumptions(self) -> list[str]:
        """A sentence for each decision."""
        return [text for _, text in sorted(self.decisions.items())]

    def line(self) -> int:
        """The line of the task's file that is running; 0 if it is not on the stack."""
        lines = [frame.lineno for frame in traceback.extract_stack() if frame.filename == self.file]
        return int(lines[-1] or 0) if lines else 0

    def decide(self, node: Any) -> bool:
        """The answer to a condition on values, noted with its line: True for the side that computes."""
        if isinstance(self.asked, bool):
            return self.asked
        answer = self.asked != "eq" and general_answer(node.expr, _flags(node))
        line = self.line()
        side = "true" if answer else "false"
        self.decisions.setdefault((line, answer), f"line {line}: a condition on values is taken as {side}")
        return answer


def general_answer(expression: Any, flags: Collection[Any] = ()) -> bool:
    """True or False: the side of a condition that computes. Sizes are large, flags are set, and no number meets a
    constant.

    `flags` are the symbols that were read from booleans.
    """
    if isinstance(expression, sympy.Not):
        return not general_answer(expression.args[0], flags)
    if isinstance(expression, sympy.And | sympy.Or):
        every = [general_answer(item, flags) for item in expression.args]
        return all(every) if isinstance(expression, sympy.And) else any(every)
    if isinstance(expression, sympy.Eq | sympy.Ne):
        constants = [item for item in expression.args if item.is_number]
        is_flag = constants == [sympy.Integer(1)] and all(item in flags for item in expression.free_symbols)
        return (is_flag or not constants) == isinstance(expression, sympy.Eq)
    if isinstance(expression, sympy.core.relational.Relational):
        large = {symbol: sympy.Integer(1 << 40) for symbol in expression.free_symbols}
        return bool(expression.subs(large) == sympy.true)
    return True


class _Truths(TorchFunctionMode):
    """Notes which comparison made a tensor whose truth Python asks for: `if expert == last` has another usual answer
    than `if mask.any()`."""

    def __init__(self, doors: Doors) -> None:
        """Tells these doors which comparison is asked for its truth."""
        super().__init__()
        self.doors = doors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs a function. Marks a bool result with the function's name, and tells it while Python reads the result."""
        name = getattr(func, "__name__", "")
        named = kwargs or {}
        if name in ("__bool__", "item"):
            self.doors.asked = getattr(args[0], "_made_by", "")
            try:
                return func(*args, **named)
            finally:
                self.doors.asked = ""
        result = func(*args, **named)
        if isinstance(result, torch.Tensor):
            _annotate(result, name.strip("_"), args)
        return result


def _annotate(result: Any, name: str, args: Any) -> None:
    """Notes on a result of PyTorch what is known of it: its maker, and the place of the item that a loop took."""
    known = getattr(args[0], "_place", None) if args else None
    if name in ("nonzero", "argwhere") and args[0].dim() == 1:
        result._is_places = True
    elif known is not None and name in _OF_ONE_ELEMENT:
        result._place = known
    elif result.dtype == torch.bool:
        is_known = known is not None and name in ("eq", "ne") and isinstance(args[1], builtins.int)
        result._made_by = (known == args[1]) == (name == "eq") if is_known else name


_OF_ONE_ELEMENT = frozenset({"getitem", "select", "squeeze", "view", "reshape", "long", "to", "detach"})


@contextlib.contextmanager
def open_doors(model: nn.Module) -> Iterator[Doors]:
    """While it is open, Python that reads values gets symbols and decisions instead of errors."""
    code = getattr(type(model).forward, "__code__", None)
    doors = Doors(str(getattr(code, "co_filename", "")))
    space = getattr(type(model).forward, "__globals__", {})
    guard, walk = SymNode.guard_bool, torch.Tensor.__iter__

    def guard_bool(node: Any, file: str, line: int) -> bool:
        """True or False as the guard says; where that depends on values, as the doors decide."""
        try:
            return bool(guard(node, file, line))
        except GuardOnDataDependentSymNode:
            return doors.decide(node)

    def iterate(tensor: torch.Tensor) -> Iterator[Any]:
        """Iterates over rows as before; over a number of rows that values choose, up to its upper bound.

        Raises RuntimeError without a bound of at most MOST_ROUNDS.
        """
        size = tensor.shape[0] if tensor.dim() else 0
        if not isinstance(size, torch.SymInt) or size.node.has_hint():
            every: Iterator[Any] = walk(tensor)  # type: ignore[no-untyped-call]
            return every
        rounds = upper_bound(size)
        if rounds is None or rounds > MOST_ROUNDS:
            raise RuntimeError(f"a loop over items that values choose has more than {MOST_ROUNDS} rounds")
        doors.iterated.add(str(size.node.expr))
        items = [torch.select(tensor, 0, index) for index in range(rounds)]
        if getattr(tensor, "_is_places", False):
            for index, item in enumerate(items):
                item._place = index
        return iter(items)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(SymNode, "guard_bool", guard_bool))
        patches.enter_context(mock.patch.object(torch.Tensor, "__iter__", iterate))
        patches.enter_context(mock.patch.dict(space, {"int": Integer}))
        patches.enter_context(_Truths(doors))
        yield doors


def _flags(node: Any) -> set[Any]:
    """The symbols of a condition that hold 0 or 1 only."""
    found = set()
    for symbol in node.expr.free_symbols:
        bounds = node.shape_env.var_to_range.get(symbol)
        if bounds is not None and bounds.lower == 0 and bounds.upper == 1:
            found.add(symbol)
    return found


def upper_bound(size: torch.SymInt) -> int | None:
    """The largest value of a size that depends on values; None if it is not known."""
    bounds = size.node.shape_env.bound_sympy(size.node.expr)
    return int(bounds.upper) if bounds.upper.is_number and bounds.upper < sympy.Integer(1 << 31) else None


class _IntegerType(type):
    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, builtins.int | torch.SymInt)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, builtins.int)


class Integer(builtins.int, metaclass=_IntegerType):
    """`int` that keeps symbols: int(lengths[0]) is one."""

    def __new__(cls, value: Any = 0, *args: Any) -> Any:
        """The symbol in place of the integer, if the value has one."""
        number = value.item() if isinstance(value, torch.Tensor) else value
        return number if isinstance(number, torch.SymInt) else builtins.int(number, *args)
