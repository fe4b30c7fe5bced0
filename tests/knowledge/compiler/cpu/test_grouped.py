"""Grouped products on the CPU: each row times the matrix that an index chooses for it."""

from __future__ import annotations

import pytest
import torch
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.lowering import check, graph_of
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import GroupedKernel, Plan
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.printers import module_file

ITEMS, GROUPS, IN, OUT = 37, 5, 200, 50
MODEL = """import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(5, 200, 50))
"""


class Chosen(nn.Module):
    """Two products in turn: a parameter's matrices, then matrices of an input, transposed after the choice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(GROUPS, IN, OUT))

    def forward(self, x: torch.Tensor, other: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(torch.bmm(x[:, None], self.weight[index]) + 1)
        return torch.bmm(first, other[index].transpose(1, 2))[:, 0] * x.sum(1, keepdim=True)


def inputs(index: torch.Tensor) -> list[torch.Tensor]:
    return [torch.randn(ITEMS, IN), torch.randn(GROUPS, 33, OUT), index]


def groups_of(plan: Plan) -> list[GroupedKernel]:
    return [step for step in plan.steps if isinstance(step, GroupedKernel)]


def test_the_plan_sorts_once_and_copies_no_matrix() -> None:
    plan = check(Chosen(), *inputs(torch.randint(0, GROUPS, (ITEMS,))), tolerance=1e-4)
    one, two = groups_of(plan)
    assert one.order == two.order and one.constant_b and not two.constant_b
    assert max(buffer.numel for buffer in plan.buffers.values()) == GROUPS * IN * OUT


@pytest.mark.parametrize("choices", [{}, {"tile": "4x1", "block_rows": 4, "block_panels": 1}])
def test_every_routing(choices: dict[str, str | int]) -> None:
    torch.manual_seed(0)
    model = Chosen()
    device = native_device()
    graph = graph_of(model, *inputs(torch.randint(0, GROUPS, (ITEMS,))))
    plan = print_plan(graph, Recipe("cpu"), device).plan
    recipe = Recipe("cpu", choices={kernel.name: choices for kernel in groups_of(plan)})
    printed = print_plan(graph, recipe, device)
    space: dict[str, type[nn.Module]] = {}
    exec(compile(module_file(MODEL, [Entry(printed.plan, printed.kernels)], device), "candidate.py", "exec"), space)
    fast = space["ModelNew"]()
    fast.load_state_dict(model.state_dict())
    ragged = torch.tensor([0] * 30 + [2, 4, 4, 4, 2, 4, 0])
    for index in (torch.randint(0, GROUPS, (ITEMS,)), torch.full((ITEMS,), 3), ragged, ragged - GROUPS):
        given = inputs(index)
        with torch.no_grad():
            torch.testing.assert_close(fast(*given), model(*given), rtol=1e-3, atol=1e-3)
