"""Models whose Python reads values: the graph that is captured from one input is right for routings, lengths and masks
that it never saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import compare
from tests.tools.task.values import models
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.compiler.ir.kernels import GroupedKernel, TorchCall
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.task.capture import CannotCapture, capture


def graph_of(model: nn.Module, inputs: Sequence[Any]) -> OpGraph:
    graph = capture(model, inputs)
    assert graph.tracer == "values" and decode(OpGraph, encode(graph)) == graph
    return graph


def agrees(model: nn.Module, graph: OpGraph, *others: Sequence[Any]) -> int:
    """Compares the graph's plan with PyTorch on other inputs; the number of its grouped products."""
    planned = plan(graph, Recipe("cpu"))
    assert not [step.target for step in planned.steps if isinstance(step, TorchCall)]
    for inputs in others:
        compare(model, planned, inputs)
    return sum(isinstance(step, GroupedKernel) for step in planned.steps)


@pytest.mark.parametrize(("kind", "products"), [("ByWhere", 2), ("ByHits", 2), ("ByModules", 2), ("ByAny", 0)])
def test_experts(kind: str, products: int) -> None:
    torch.manual_seed(0)
    model = getattr(models, kind)()
    graph = graph_of(model, models.routed("random"))
    routings = [models.routed(kind) for kind in ("random", "one", "few", "random")]
    assert agrees(model, graph, *routings) == products
    if products:
        assert len(graph.ops) < 40  # one round for all of them


def test_segments_between_offsets() -> None:
    model = models.Offsets()
    graph = graph_of(model, [torch.randn(10, models.WIDTH), torch.tensor([0, 3, 7, 10])])
    cases = ([0, 0, 4, 10], [0, 10, 10, 10], [2, 3, 5, 8])
    agrees(model, graph, *([torch.randn(10, models.WIDTH), torch.tensor(case)] for case in cases))


def test_sequences_of_other_lengths() -> None:
    model = models.Lengths()
    graph = graph_of(model, [torch.randn(3, 7, 5), torch.tensor([7, 2, 4])])
    agrees(model, graph, *([torch.randn(3, 7, 5), torch.tensor(case)] for case in ([1, 1, 7], [5, 6, 2])))


def test_reductions_of_what_a_mask_keeps() -> None:
    model = models.Loss()
    graph = graph_of(model, [torch.randn(6, 5), torch.tensor([0, -1, 2, 3, -1, 1])])
    cases = ([0, 0, 0, 0, 0, 0], [-1, -1, 4, -1, -1, -1])
    agrees(model, graph, *([torch.randn(6, 5), torch.tensor(case)] for case in cases))


class Stops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            grown = torch.nn.functional.max_pool1d(x[None], 3, 1, 1)[0]
            if not (grown > x).any():
                break
            x = torch.maximum(x, grown)
        return x


def test_a_loop_that_ends_early_has_all_its_rounds_and_says_so() -> None:
    model = Stops()
    graph = graph_of(model, [torch.randn(2, 9)])
    line = Stops.forward.__code__.co_firstlineno + 3
    assert graph.assumptions == [f"line {line}: a condition on values is taken as true"]
    agrees(model, graph, [torch.zeros(2, 9)], [torch.randn(2, 9).sort().values])


def test_numbers_that_are_read_stay_tensors() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * x.sum().item() + x.argmax().item()

    model = Model()
    agrees(model, graph_of(model, [torch.randn(3, 4)]), [torch.randn(3, 4)], [torch.zeros(3, 4)])


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "a sort": (lambda x: x[x[:, 0] > 0].sort(0).values.sum(0), "calls sort along rows that values choose"),
    "its size": (lambda x: x[x[:, 0] > 0], "returns a tensor whose size depends on values"),
    "two sides": (lambda x: x + 1 if x.sum() > 0 else x - 1, "gives another answer for other inputs"),
    "a place": (lambda x: x[x[:, 0] > 0][0].sum(), "by its place among chosen rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_fixed_size_is_refused_with_its_reason(case: str) -> None:
    function, why = REFUSED[case]

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    with pytest.raises(CannotCapture, match=why):
        capture(Model(), [torch.randn(6, 4)])
