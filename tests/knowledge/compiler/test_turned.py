"""Row kernels whose matrices lie both ways in memory, on a GPU: what lies across is turned by a map of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module, compare, graph_of
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.fusion import turned
from foundry.knowledge.compiler.ir.kernels import ConvKernel, MapKernel, RowKernel
from foundry.knowledge.compiler.plan import plan

Case = tuple[Callable[..., Any], list[torch.Tensor], list[type]]


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A gate that lies across beside values that lie along."""
    y = F.silu(a.mT) * b
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)


CASES: dict[str, Case] = {
    "an input across": (_gated, [x(2, 6, 5), x(2, 5, 6)], [MapKernel, RowKernel]),
    "a result across": (
        lambda a: F.layer_norm(a, (6,)).mT.contiguous(),
        [x(2, 5, 6)],
        [RowKernel, MapKernel],
    ),
    "an input across, its result along": (
        lambda a: F.layer_norm(a.permute(0, 2, 3, 1), (6,)).contiguous(),
        [x(2, 6, 3, 5)],
        [MapKernel, RowKernel],
    ),
    "planes that lie apart": (
        lambda a, w: F.conv1d(a.mT, w, padding=1, groups=6).relu(),
        [x(2, 5, 6), x(6, 1, 4)],
        [MapKernel, ConvKernel],
    ),
    "all of it across": (lambda a: F.softmax(a, 1), [x(2, 6, 5)], [RowKernel]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_lies_across_is_turned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, kinds = CASES[name]
    torch.manual_seed(0)
    monkeypatch.setattr(turned, "TURNED_LEAST", 1)
    monkeypatch.setattr(turned, "APART_LEAST", 2)
    planned = plan(graph_of(model, *inputs), Recipe("cuda"))
    compare(as_module(model), planned, inputs)
    assert [type(step) for step in planned.steps] == kinds


def test_small_ones_and_those_of_a_cpu_stay_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, _ = CASES["an input across"]
    graph = graph_of(model, *inputs)
    assert len(plan(graph, Recipe("cuda")).steps) == 1
    monkeypatch.setattr(turned, "TURNED_LEAST", 1)
    assert len(plan(graph, Recipe("cpu")).steps) == 1
