"""Recurrent layers as plans: captured from torch.nn, compared with it step by step on plain tensors."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import check, compare, graph_of
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import RecurrentKernel, TorchCall
from foundry.knowledge.compiler.plan import plan


class Layers(nn.Module):
    """nn.LSTM, nn.GRU or nn.RNN; `returned` says which of output and states forward gives out."""

    def __init__(self, kind: str, returned: tuple[int, ...] = (0, 1, 2), **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = getattr(nn, kind)(5, 7, **settings)
        self.returned = returned

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = states if len(states) > 1 else states[0] if states else None
        y, last = self.layers(x, given)
        found = (y, *(last if isinstance(last, tuple) else (last,)))
        return tuple(found[index] for index in self.returned if index < len(found))


def states(kind: str, rows: int) -> list[torch.Tensor]:
    return [torch.randn(rows, 3, 7) for _ in range(2 if kind == "LSTM" else 1)]


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("LSTM", {"num_layers": 3}),
    "lstm, both ways": ("LSTM", {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "lstm without bias": ("LSTM", {"bias": False}),
    "gru": ("GRU", {"num_layers": 3, "batch_first": True}),
    "gru, both ways": ("GRU", {"num_layers": 2, "bidirectional": True}),
    "gru without bias": ("GRU", {"num_layers": 2, "bias": False}),
    "rnn": ("RNN", {"num_layers": 2}),
    "rnn with relu": ("RNN", {"nonlinearity": "relu", "bidirectional": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_recurrent_layers_need_no_call_of_torch(name: str) -> None:
    kind, settings = CASES[name]
    layers = settings.get("num_layers", 1)
    model, rows = Layers(kind, **settings), layers * (2 if settings.get("bidirectional") else 1)
    inputs = [torch.randn(3, 3, 5), *states(kind, rows)]
    graph = graph_of(model, *inputs)
    for recipe, stacked in ((Recipe("cpu"), False), (Recipe("cuda"), "bidirectional" not in settings)):
        planned = plan(graph, recipe)
        compare(model, planned, inputs)
        assert not any(isinstance(step, TorchCall) for step in planned.steps)
        kernels = [step for step in planned.steps if isinstance(step, RecurrentKernel)]
        assert len(kernels) == (1 if stacked else layers)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_one_step_of_one_sequence_from_zeros(kind: str) -> None:
    check(Layers(kind, num_layers=2), torch.randn(1, 1, 5), recipe=Recipe("cuda"))


def test_learning_the_shapes_of_many_steps_takes_no_longer() -> None:
    """PyTorch would walk 2000 steps of fake tensors, in several seconds."""

    def used_s(steps: int) -> float:
        start = time.process_time()
        graph = graph_of(Layers("GRU"), torch.randn(steps, 1, 5))
        assert [op.kind for op in graph.ops] == ["zeros", "gru"] and graph.ops[1].outputs[0].spec.shape == (steps, 1, 7)
        return time.process_time() - start

    used_s(2)  # what PyTorch imports for its first graph
    few_s, many_s = used_s(2), used_s(2000)
    assert many_s < few_s + 1.5


def test_states_that_nobody_reads_are_not_kept() -> None:
    for returned, wanted in (((0,), ""), ((1,), "h"), ((2,), "c")):
        planned = check(Layers("LSTM", returned, num_layers=2), torch.randn(4, 3, 5), recipe=Recipe("cuda"))
        (kernel,) = (step for step in planned.steps if isinstance(step, RecurrentKernel))
        assert (bool(kernel.stores), bool(kernel.last_h), bool(kernel.last_c)) == (
            not wanted,
            wanted == "h",
            wanted == "c",
        )


def test_projected_states_are_left_to_torch() -> None:
    check(Layers("LSTM", proj_size=3), torch.randn(4, 3, 5), calls=["lstm"])
