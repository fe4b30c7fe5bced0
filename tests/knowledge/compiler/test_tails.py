"""Reductions after products and convolutions become tails of the kernels that make them, as PyTorch means them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module, check, graph_of
from torch import nn
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.fusion import tails
from foundry.knowledge.compiler.ir.access import tail_of
from foundry.knowledge.compiler.ir.kernels import ConvKernel, GemmKernel, Plan
from foundry.knowledge.compiler.plan import plan

CUDA = Recipe("cuda", rewrites=("reduce-with-result",))
Model = nn.Module | Callable[..., Any]


class Then(nn.Module):
    """A layer, and what follows it."""

    def __init__(self, layer: nn.Module, after: Callable[[torch.Tensor], Any], *more: nn.Module) -> None:
        super().__init__()
        self.layer, self.after, self.more = layer, after, nn.ModuleList(more)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.layer(x)
        for module in self.more:
            x = module(x)
        return self.after(x)


@pytest.fixture(autouse=True)
def _seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(tails, "_LONG_ROW_BYTES", 0)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def linear(after: Callable[[torch.Tensor], Any], *more: nn.Module) -> tuple[Model, list[torch.Tensor]]:
    return Then(nn.Linear(10, 24), after, *more), [x(6, 10)]


def conv(after: Callable[[torch.Tensor], Any], *more: nn.Module) -> tuple[Model, list[torch.Tensor]]:
    return Then(nn.Conv2d(3, 8, 3), after, *more), [x(2, 3, 7, 9)]


def same(y: torch.Tensor) -> torch.Tensor:
    return y


# What follows, and how many kernels run.
MIXES: dict[str, tuple[tuple[Model, list[torch.Tensor]], int]] = {
    "sum of a row": (linear(lambda y: y.sigmoid().sum(1, keepdim=True)), 1),
    "logsumexp of a row": (linear(lambda y: F.leaky_relu(torch.logsumexp(y * 0.5, 1))), 1),
    "largest of a row": (linear(lambda y: y.max(1).values - y.min(1).values), 1),
    "largest of a row and its place": (linear(lambda y: y.argmax(1)), 1),
    "softmax of a row": (linear(lambda y: F.softmax(F.gelu(y), 1)), 2),
    "norm of a row": (linear(torch.relu, nn.LayerNorm(24)), 2),
    "groups of a row": (linear(torch.relu, nn.GroupNorm(3, 24)), 2),
    "the result is needed too": (linear(lambda y: (y, y.mean(1))), 1),
    "batched": (((lambda a, b: torch.logsumexp(a @ b, -1)), [x(2, 3, 5, 7), x(2, 3, 7, 12)]), 1),
    "least of the channels": (conv(lambda y: y.min(1, keepdim=True).values.tanh()), 1),
    "softmax of the channels": (conv(lambda y: F.softmax(y * 2, 1)), 1),
    "logsumexp of the channels": (conv(lambda y: F.hardswish(torch.logsumexp(y, 1, keepdim=True))), 1),
    "mean of the positions": (conv(lambda y: F.gelu(y).mean((2, 3))), 1),
    "pooled to one": (conv(lambda y: F.gelu(F.adaptive_avg_pool2d(y, 1))), 1),
    "group norm": (conv(torch.tanh, nn.GroupNorm(4, 8)), 2),
    "instance norm": (conv(lambda y: y / 2, nn.InstanceNorm2d(8)), 2),
    "training batch norm": (conv(torch.relu, nn.BatchNorm2d(8, track_running_stats=False)), 2),
    "batch norm, pooled": (conv(lambda y: F.max_pool2d(y, 3, 2), nn.BatchNorm2d(8, track_running_stats=False)), 2),
    "group norm, pooled": (conv(lambda y: F.avg_pool2d(y, 2), nn.GroupNorm(2, 8)), 2),
    "mean of all of an image": (conv(lambda y: y.mean((1, 2, 3))), 1),
    "pooled by windows": (conv(lambda y: F.max_pool2d(y.tanh(), 2).sigmoid()), 1),
    "means of windows": (conv(lambda y: F.avg_pool2d(y, (2, 1)) + 1), 1),
    "group norm and mean": (conv(lambda y: y.mean((1, 2, 3)), nn.Hardswish(), nn.GroupNorm(2, 8)), 2),
}


FEW = ("logsumexp of a row", "groups of a row", "softmax of the channels", "group norm and mean", "means of windows")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in MIXES]
)
def test_a_reduction_is_made_with_the_result(name: str) -> None:
    (model, inputs), steps = MIXES[name]
    planned = check(model, *inputs, recipe=CUDA)
    assert tailed(planned) == 1, [type(step).__name__ for step in planned.steps]
    assert len(planned.steps) == steps, [getattr(step, "name", "") for step in planned.steps]
    if steps == 1 and "needed too" not in name:
        (kernel,) = planned.steps
        assert isinstance(kernel, GemmKernel | ConvKernel) and not kernel.stores, "what is only reduced is stored"


def tailed(planned: Plan) -> int:
    return sum(tail_of(step) is not None for step in planned.steps)


def test_a_result_kept_in_memory_is_reduced_by_a_kernel_of_its_own() -> None:
    model, inputs = conv(same, nn.GroupNorm(4, 8))
    graph = graph_of(as_module(model), *inputs)
    fused = plan(graph, CUDA)
    (name,) = fused.fused
    apart = check(model, *inputs, recipe=Recipe("cuda", rewrites=CUDA.rewrites, materialise=(name,)))
    assert tailed(fused) == 1
    assert tailed(apart) == 0
    assert apart.materialised == (name,)


def test_what_was_slower_on_the_measured_machine_is_left_to_the_search() -> None:
    by_default = {
        "sum of a row": True,
        "softmax of a row": False,
        "least of the channels": True,
        "pooled by windows": False,
    }
    for name, is_made_with_it in by_default.items():
        (model, inputs), _ = MIXES[name]
        planned = plan(graph_of(as_module(model), *inputs), Recipe("cuda"))
        assert tailed(planned) == is_made_with_it, name
        assert (CUDA.rewrites[0] in planned.rewrites) == (not is_made_with_it), name
