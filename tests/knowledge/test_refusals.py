"""One table of what each failed gate proves; "cheating" is proven by observed behaviour only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import foundry
from foundry.knowledge.candidate import Gate, Outcome
from foundry.knowledge.cards import cards
from foundry.knowledge.reasons import GRAVITY, OF_GATES, OF_REASONS, Reason, ReasonKind, Refusal, gravest, refusal_of
from foundry.knowledge.thought import Failure
from foundry.tools.audit.policies import _REFUSED
from foundry.tools.grade.host.sanitizing import CHECKS
from foundry.tools.protocol.orders import IN_ITS_PROCESS

ROOT = Path(next(iter(foundry.__path__)))
# Gates of which the name is made elsewhere, and gates of correctness, whose verdict says itself what is wrong.
PASSED_ON = {
    "'builds' if verdict.outcome == 'compile_error' else 'runs'",
    "check", "distribution.name",
    "failed.gate", "failed.gate or GRADIENTS", "failed.gate or OTHER_MODE", "failed.gate or OTHER_STRIDES",
    "failed.gate or PROCESS_EVENTS", "gate", "gate.gate", "name", "question.gate", "step", "where",
}  # fmt: skip
OF_VERDICTS = {"builds", "runs", "task can prove something", "unwritten shared memory"}
FOLDERS = ("tools/audit", "tools/grade", "tools/protocol")


def named_gates() -> Iterator[tuple[str, ast.expr, dict[str, str]]]:
    """(file, the expression that names a gate, the file's constants and those of the orders) of every gate."""
    orders = _constants(ast.parse((ROOT / "tools/protocol/orders.py").read_text()))
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")] + [ROOT / "knowledge/ruling.py"]
    shared = {key: value for path in files for key, value in _constants(ast.parse(path.read_text())).items()}
    for path in files:
        tree = ast.parse(path.read_text())
        known = {**shared, **orders, **_constants(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("Gate", "make_gate", "_failing", "answer_gate", "_left_gate") and node.args:
                    yield path.name, node.args[0], known
                for keyword in node.keywords:
                    if node.func.id == "RunnerFailed" and keyword.arg == "gate":
                        yield path.name, keyword.value, known


def _constants(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[name.id] = value.value
    return found


def test_every_gate_has_a_class() -> None:
    missing, seen = set[str](), set[str]()
    for path, name, known in named_gates():
        if isinstance(name, ast.Constant):
            text = str(name.value)
        elif isinstance(name, ast.Name) and name.id in known:
            text = known[name.id]
        elif isinstance(name, ast.JoinedStr) or ast.unparse(name) in PASSED_ON:
            continue
        else:
            missing.add(f"{path}: {ast.unparse(name)}")
            continue
        seen.add(text)
        if text not in OF_GATES and text not in OF_VERDICTS:
            missing.add(f"{path}: {text}")
    assert not missing
    assert len(seen) > 30
    others = {gate for _, gate, _ in _REFUSED.values()} | set(CHECKS) | set(IN_ITS_PROCESS)
    assert others <= OF_GATES.keys()


def test_every_reason_and_every_word_is_known() -> None:
    assert OF_REASONS.keys() == set(ReasonKind)
    assert set(OF_GATES.values()) | set(OF_REASONS.values()) == set(GRAVITY) == set(get_args(Refusal))
    assert set(GRAVITY) <= set(get_args(Outcome)) and set(GRAVITY) <= set(get_args(Failure))
    assert set(get_args(Failure)) <= cards().keys()


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("symbols (kernel.so)", "not_allowed"),
        ("provenance (time)", "not_allowed"),
        ("as given: computed anew", "cheating"),
        ("computed anew (ROWS=7)", "cheating"),
        ("threads and processes", "cheating"),
        ("clock", "not_judged"),
        ("a gate of another version", "not_judged"),
    ],
)
def test_a_gate_is_found_by_its_name(name: str, refusal: Refusal) -> None:
    assert refusal_of(name) == refusal == Gate(name, False, "why").refusal


def test_reasons_say_more_than_the_name_and_the_gravest_counts() -> None:
    prying = Gate("process events", False, "", (Reason(ReasonKind.CONDUCT, "x"), Reason(ReasonKind.PRIES, "y")))
    text = Gate("process events", False, "", (Reason(ReasonKind.CONDUCT, "runs Python from a text"),))
    died = Gate("other clocks", False, "", (Reason(ReasonKind.UNDECIDED, "the process died"),))
    assert [gate.refusal for gate in (prying, text, died)] == ["cheating", "not_allowed", "not_judged"]
    assert gravest(["not_judged", "cheating", "not_allowed"]) == "cheating" and gravest([]) == "not_judged"
