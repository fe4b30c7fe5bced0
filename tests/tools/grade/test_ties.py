"""Equal elements may come in any order: a kernel that sorts is not refused for keeping the one in which they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tools.grade import asking

from foundry.knowledge.candidate import Build
from foundry.knowledge.errors import TaskError
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.questions.freedom.ties import InOrder, in_orders, may_order
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn


class NAME(nn.Module):
    def forward(self, x):
        p = torch.softmax(x, -1)
        ordered, places = ORDERED
        kept = torch.where(ordered.cumsum(-1) - ordered < 0.9, ordered, 0.0)
        return torch.zeros_like(p).scatter(-1, places, kept / kept.sum(-1, keepdim=True))


def get_inputs():
    return [torch.randn(16, 3000)]
"""
DEFAULT = "p.sort(-1, descending=True)"


def test_equal_elements_keep_their_order() -> None:
    x = torch.randint(0, 4, (3, 500), generator=torch.Generator().manual_seed(1)).float()
    values, places = torch.sort(x, dim=1, descending=True, stable=True)
    with InOrder():
        found = [torch.sort(x, dim=1, descending=True), torch.topk(x, 20, 1), torch.topk(x, 2, 0, largest=False)]
        assert torch.equal(torch.argsort(x, dim=1, descending=True), places)
    assert torch.equal(found[0][0], values) and torch.equal(found[0][1], places)
    assert torch.equal(found[1][0], values[:, :20]) and torch.equal(found[1][1], places[:, :20])
    assert torch.equal(found[2][1], torch.sort(x, dim=0, stable=True).indices[:2])
    with InOrder(turned=True):
        turned, back = torch.sort(x, dim=1, descending=True)
    assert torch.equal(turned, values) and torch.equal(x.gather(1, back), values)
    same = values[:, 1:] == values[:, :-1]
    assert bool((places[:, 1:] > places[:, :-1])[same].all()) and bool((back[:, 1:] < back[:, :-1])[same].all())
    assert may_order(TASK.replace("ORDERED", DEFAULT)) and may_order("x.topk(3)") and not may_order("x.softmax(-1)")


@pytest.mark.parametrize("problem", [torch.OutOfMemoryError("no memory"), TaskError("forward failed")])
def test_a_reference_that_cannot_run_in_another_order_is_judged_by_as_it_ran(problem: Exception) -> None:
    """A sort that keeps the order may need more memory than there is: the question is asked all the same."""

    def run() -> list[torch.Tensor]:
        raise problem

    assert list(in_orders(run)) == []


@pytest.mark.parametrize(
    ("ordered", "is_right"),
    [
        ("torch.sort(p, dim=-1, descending=True, stable=True)", True),
        ("(lambda v, i: (v.flip(-1), i.flip(-1)))(*torch.sort(p, dim=-1, stable=True))", True),
        ("torch.sort(p.half(), dim=-1, descending=True)", False),
        ("torch.sort(x, dim=-1, descending=True)", False),
    ],
)
def test_which_of_equal_elements_are_chosen_is_nobodys_mistake(
    ordered: str, is_right: bool, zygote: Zygote, tmp_path: Path
) -> None:
    """A softmax makes equal elements of different ones."""
    (tmp_path / "nucleus.py").write_text(TASK.replace("NAME", "Model").replace("ORDERED", DEFAULT))
    task = read_task(tmp_path / "nucleus.py")
    grader = Grader(task, describe("cpu"), tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    try:
        text = TASK.replace("NAME", "ModelNew").replace("ORDERED", ordered)
        found = asking.verify(grader, text, Build(True, 0.0), "full", grader.baseline())
    finally:
        grader.close()
    assert (found.outcome == "correct") == is_right, found.evidence
