"""A line of the task whose Python read the same value for every question is named, and strict refuses the label."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tools.audit.candidates import LAUNCH, candidate
from tests.tools.audit.candidates import TASK as SOFTMAX

from foundry.knowledge.candidate import Baseline, Gate, Verdict
from foundry.knowledge.task import Policy
from foundry.tools.audit.policies import policy_gates
from foundry.tools.grade.host.answers import declared_labels
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.orders import DECISION, ONE_SIDED
from foundry.tools.protocol.rules import AS_GIVEN, DISTRIBUTIONS
from foundry.tools.task.file import read_task
from foundry.tools.verify.verdict_lines import verdict_lines
from foundry.tools.verify.verify import verify_in

RETURN = "return torch.softmax(x * self.scale, dim=1)"

TASK = """
import torch
from helper import is_small

STEPS = torch.tensor([1, 2, 3])


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(64))

    def forward(self, x, lengths):
        if bool((x * self.scale).sum() > 0):
            x = x + 1
        if (lengths < 1000).all():
            x = x * self.scale
        for step in STEPS.tolist():
            x = x * step
        x = x + torch.arange(lengths.max()).sum()
        if is_small(lengths):
            x = x - 1
        best = x.topk(3).indices
        return torch.stack([row[:length].sum(0) for row, length in zip(x, lengths)]) + 0 * x.gather(1, best)[:, 0]


def get_inputs():
    return [torch.randn(8, 64), torch.full((8,), 64)]
"""
HELPER = "def is_small(lengths):\n    return int(lengths.max()) < 10**6\n"


@pytest.fixture
def case(tmp_path: Path) -> Case:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "task.py").write_text(TASK)
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    return made


def line_of(text: str) -> str:
    return str(next(number for number, line in enumerate(TASK.splitlines(), 1) if text in line))


def test_a_line_is_one_sided_until_a_question_takes_the_other_side(case: Case) -> None:
    """Constants are no decision, and a line of another file has that file's name."""
    path = case.task.path
    case.trial(AS_GIVEN, 5).inputs.close()
    first = case.decisions.one_sided(path)
    lines = ("self.scale).sum", "< 1000", "arange", "row[:length]")
    assert set(first) == {"helper.py:2", *map(line_of, lines)}
    assert case.decisions.reads and case.decisions.has_routes
    for item in DISTRIBUTIONS:
        if case.suits(item) and item.pattern in ("positive", "negative", "short lengths", "uneven lengths"):
            case.trial(item, 7).inputs.close()
    assert case.decisions.one_sided(path) == {line_of("< 1000"): "True"}


def test_code_that_does_not_bear_to_be_watched_is_judged_all_the_same(tmp_path: Path) -> None:
    watched = (
        "        if torch.overrides._get_current_function_mode_stack():\n            raise ValueError('watched')\n"
    )
    text = TASK.replace("from helper import is_small\n", "").replace("is_small(lengths)", "int(lengths.max()) < 10**6")
    (tmp_path / "task.py").write_text(text.replace("        best =", f"{watched}        best ="))
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    made.trial(AS_GIVEN, 5).inputs.close()
    assert made.decisions.has_run and not made.decisions.reads


def test_it_is_a_label_that_strict_refuses_and_the_report_says_in_words() -> None:
    gates = [
        Gate(f"{DECISION} {line}", True, f"{ONE_SIDED} Python read True there for every question") for line in "6789"
    ]
    label, *others = declared_labels(Baseline(5.0, 0.0, []), Verdict("correct", "final", tuple(gates)))
    assert label == "one-sided:6" and len(others) == 3
    assert [gate.gate for gate in policy_gates({label}, "strict", "ieee")] == ["decisions"]
    assert not policy_gates({label}, "fair", "ieee")
    many = tuple(gates * 2)
    assert declared_labels(Baseline(5.0, 0.0, []), Verdict("correct", "final", many)) == ["one-sided:8 lines"]
    assert not declared_labels(Baseline(5.0, 0.0, []), Verdict("wrong_result", "final", many))


@pytest.mark.slow  # whole proofs
@pytest.mark.parametrize("policy", ["fair", "strict"])
async def test_a_proof_names_the_line(policy: Policy, zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        SOFTMAX.replace(RETURN, f"if x.abs().max() < 0:\n            return x\n        {RETURN}")
    )
    task = read_task(tmp_path / "task.py")
    bench = await open_workbench(task, describe("cpu"), tmp_path / "bench", seed=1, zygote=zygote)
    try:
        report = await verify_in(bench, task, candidate(LAUNCH), policy, "full")
    finally:
        await bench.aclose()
    assert "one-sided:11" in report.labels
    assert ("decisions" in [gate.gate for gate in report.reasons]) == (policy == "strict")
    words = "  decision in line 11: one-sided: Python read False there for every question"
    assert words in verdict_lines(report.to_json())
