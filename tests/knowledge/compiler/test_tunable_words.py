"""Every tunable of both targets has words: a number says where it is declared what it counts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch
from tests.knowledge.compiler.cuda import conv_cases, recurrence_cases, window_cases
from tests.knowledge.compiler.cuda.attention_cases import ATTENTION
from tests.knowledge.compiler.cuda.cases import H200
from tests.knowledge.compiler.lowering import graph_of
from tests.knowledge.compiler.test_operators import BAGS, MANY, ORDERED
from tests.knowledge.compiler.test_plan import CONVOLUTIONS, POOLS, PRODUCTS, ROWS, SCANS

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.ir.kernels import Kernel, Plan, TorchCall, Tunable
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.compiler.printers import print_kernel
from foundry.knowledge.compiler.schedule.tuning import Aspect
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.step_words import SWITCH, setting_words

COMPILER = Path(__file__).parents[3] / "knowledge/compiler"
ASPECTS = get_args(Aspect)
CPU = Device("cpu", "a CPU", "x86-64-v4", 8, 32 << 20, 64, 64 << 30)
CUDA_CASES = (
    *(window_cases.CASES, window_cases.SIXTEEN_BIT, window_cases.STAYING, ATTENTION, recurrence_cases.CASES),
    *(conv_cases.CONVOLUTIONS, conv_cases.CONVOLUTIONS_SIXTEEN_BIT),
)
LARGE = {"large output": (lambda a: a + 1, [torch.zeros(1 << 22)])}
GRAPHS = (LARGE, BAGS, MANY, ORDERED, CONVOLUTIONS, POOLS, PRODUCTS, ROWS, SCANS)
MOST_VARIANTS = 12  # settings that one kernel is printed with


@dataclass(frozen=True)
class Declared:
    """A tunable as its module declares it; `name` is "" where a table's reader gives it."""

    place: str
    name: str
    meaning: str
    is_number: bool

    @property
    def words(self) -> str:
        """The tunable with a value, for instance `unroll 2 vectors`; "" if a number says no unit."""
        unit = Tunable(self.name, (2, 3), 2, "tile", self.meaning).unit if self.is_number else ""
        is_switch = self.is_number and self.meaning.startswith("1")
        return "" if self.is_number and not unit and not is_switch else setting_words(self.name, 2, unit)


def _text(node: ast.expr, constants: list[tuple[int, str, str]]) -> str:
    """A string that stands there, or the one that its name was last given before."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    known = [text for line, name, text in constants if isinstance(node, ast.Name) and name == node.id]
    before = [text for line, name, text in constants if name == getattr(node, "id", "") and line <= node.lineno]
    return (before or known or [""])[-1]


def _constants(tree: ast.Module) -> list[tuple[int, str, str]]:
    """(line, name, text) of every string that a name is given, the last one where there are several."""
    found: list[tuple[int, str, str]] = []
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        target, value = node.targets[0], node.value
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts, strict=False)]
        for name, given in pairs:
            constants = [item.value for item in ast.walk(given) if isinstance(item, ast.Constant)]
            texts = [text for text in constants if isinstance(text, str)]
            found += [(node.lineno, name.id, texts[-1])] if isinstance(name, ast.Name) and texts else []
    return sorted(found)


def _is_aspect(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ASPECTS


def _is_told(node: ast.expr) -> bool:
    """True for a pair of an aspect and a meaning."""
    if not isinstance(node, ast.Tuple) or len(node.elts) != 2 or not _is_aspect(node.elts[0]):
        return False
    meaning = node.elts[1]
    return isinstance(meaning, ast.Name) or (isinstance(meaning, ast.Constant) and " " in str(meaning.value))


def _declared(path: Path) -> Iterator[Declared]:
    """The declarations of a module: calls with an aspect and a meaning, and tables of both by name."""
    tree = ast.parse(path.read_text())
    constants, place = _constants(tree), str(path.relative_to(COMPILER))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and len(node.args) == 5 and _is_aspect(node.args[3]):
            kind = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            meaning = _text(node.args[4], constants)
            yield Declared(f"{place}:{node.lineno}", _text(node.args[0], constants), meaning, kind == "number")
        names = dict(zip(node.values, node.keys, strict=True)) if isinstance(node, ast.Dict) else {}
        for value, name in names.items():
            if name is not None and isinstance(value, ast.Tuple) and _is_told(value):
                yield Declared(f"{place}:{value.lineno}", _text(name, constants), _text(value.elts[1], constants), True)
        if isinstance(node, ast.Tuple) and _is_told(node):
            yield Declared(f"{place}:{node.lineno}", "", _text(node.elts[1], constants), True)


def declarations() -> list[Declared]:
    return [found for path in sorted(COMPILER.rglob("*.py")) for found in _declared(path)]


def test_every_declared_tunable_has_words() -> None:
    found = declarations()
    assert len(found) > 120 and len({one.name for one in found}) > 50
    wordless = [f"{one.place} {one.name}: {one.meaning!r}" for one in found if not one.meaning or not one.words]
    assert not wordless, "begin the meaning with what the number counts (UNITS in ir/printed.py):\n" + "\n".join(
        wordless
    )


def test_a_number_without_a_unit_is_found() -> None:
    assert not Declared("here", "spread", "how far values lie apart", True).words
    assert Declared("here", "spread", "rows between two values", True).words == "spread 2 rows"
    assert Declared("here", "order", "which operand stays", False).words == "order 2"


def _variants(kernel: Kernel, planned: Plan, device: Device, choices: Mapping[str, Choice]) -> Iterator[Tunable]:
    """The tunables of a kernel as it is, and with each word that another template or code path goes by."""
    waiting, seen = [dict(choices)], list[dict[str, Choice]]()
    while waiting and len(seen) < MOST_VARIANTS:
        chosen = waiting.pop(0)
        seen.append(chosen)
        try:
            printed = print_kernel(kernel, planned, device, chosen)
        except CannotLower:
            continue
        yield from printed.tunables
        for item in printed.tunables if len(chosen) == len(choices) else ():
            waiting += [{**chosen, item.name: value} for value in item.values if isinstance(value, str)]


def _printed() -> Iterator[Tunable]:
    """The tunables of many kernels on both targets."""
    for cases in CUDA_CASES:
        for make in cases.values():
            torch.manual_seed(1)
            case = make()
            yield from _variants(case.kernel, case.plan(), H200, case.choices)
            yield from _variants(case.kernel, case.plan(), CPU, {})
    for table in GRAPHS:
        for model, inputs, *_ in cast(Any, table).values():
            for device in (CPU, H200):
                planned = plan(graph_of(model, *inputs), Recipe(device.target))
                for kernel in planned.steps:
                    if not isinstance(kernel, TorchCall):
                        yield from _variants(kernel, planned, device, {})


@pytest.mark.slow
def test_every_tunable_that_a_printer_offers_has_words() -> None:
    found = list(_printed())
    wordless = {item.name: item.meaning for item in found if isinstance(item.values[0], int) and not item.unit}
    assert not wordless
    assert {item.name for item in found if item.unit == SWITCH} >= {"stream", "in_turn", "lazy", "stay"}
    never = {one.name for one in declarations() if one.name} - {item.name for item in found}
    assert not never, "no kernel here has them: add a case that does"
