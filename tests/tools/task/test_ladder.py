"""Operators without a kernel hold PyTorch's decomposition, if that lowers whole; else PyTorch is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module, check, graph_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.task.capture import capture

X = torch.linspace(-2, 2, 24).reshape(4, 6)
SOME_NAN = torch.where(X.abs() < 0.5, torch.nan, X)


def left(graph: OpGraph, **options: Any) -> list[str]:
    steps = plan(graph, Recipe("cpu"), **options).steps
    return [step.target for step in steps if isinstance(step, TorchCall)]


DECOMPOSED: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "in one round": (lambda x: torch.hstack([x, x * 2]), [X]),
    "in two rounds": (lambda x: torch.nanmean(x, 1), [SOME_NAN]),
    "written in place": (lambda x, y: torch.isclose(x, y, equal_nan=True), [SOME_NAN, SOME_NAN + 1e-9]),
    "with two results": (lambda x: torch.aminmax(x, dim=1), [X]),
    "by primitives": (lambda x: torch.diff(x, n=2, dim=1), [X]),
    "our own": (lambda x: torch.histc(x, 5, -1.5, 2), [X]),
    "our own, bounds from the data": (lambda x: torch.histc(x, 7), [X]),
    "a median of all": (lambda x: (x.median(), torch.nanmedian(x), torch.nanmedian(x, 1)), [SOME_NAN]),
    "a masked scatter": (lambda x, y: x.masked_scatter(x > 0, y), [X, -X.T.contiguous()]),
    "twice in one graph": (lambda x: torch.hstack([x, torch.hstack([x, x])]) + torch.rot90(x).sum(), [X]),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_decompositions_mean_what_the_operator_means(name: str) -> None:
    function, inputs = DECOMPOSED[name]
    check(function, *inputs)
    graph = graph_of(function, *inputs)
    replaced = [op for op in graph.ops if op.instead]
    assert replaced and plan(graph, Recipe("cuda")).steps
    names = [value.name for op in graph.ops for part in [op, *op.instead] for value in part.outputs]
    assert len(names) == len(set(names))


def test_a_graph_with_decompositions_travels_and_keeps_the_operator_s_own_work() -> None:
    graph = graph_of(lambda x: torch.relu(torch.hstack([x, x])), X)
    assert decode(OpGraph, encode(graph)) == graph
    (stacked, _) = graph.ops
    assert [stacked.kind, *(part.kind for part in stacked.instead)] == ["hstack", "cat", "clone"]
    parted = graph.expanded([stacked.name])
    assert parted.ops[-1].reads == [parted.ops[-2].name] and stacked.name not in parted.values
    assert graph.moved_bytes(stacked) == 3 * X.nbytes


def test_what_does_not_lower_whole_is_one_call_of_pytorch() -> None:
    graph = capture(as_module(lambda x: torch.linalg.inv(torch.relu(x)) + 1), [torch.eye(4)])
    assert not any(op.instead for op in graph.ops)
    assert left(graph) == ["aten.linalg_inv.default"]


def test_if_a_part_is_refused_the_whole_operator_is_left_to_pytorch() -> None:
    graph = graph_of(lambda x: torch.relu(torch.hstack([x, x * 2])), X)
    (part,) = (op for op in graph.ops if op.instead)
    assert left(graph) == []
    refused = frozenset({part.instead[0].name})
    assert left(graph, refused=refused) == ["aten.hstack.default"]


def test_a_decomposition_counts_for_each_target_by_itself() -> None:
    graph = graph_of(lambda x: torch.msort(x) + 1, torch.rand(20000))
    calls = {
        target: [step.target for step in plan(graph, Recipe(target)).steps if isinstance(step, TorchCall)]
        for target in ("cpu", "cuda")
    }
    assert calls == {"cpu": [], "cuda": ["aten.msort.default"]}
