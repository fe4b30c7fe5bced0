"""A depthwise convolution on the CPU keeps its input's layout: channels contiguous, as PyTorch does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module, compare, graph_of
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import ConvKernel
from foundry.knowledge.compiler.plan import plan


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


WEIGHT = torch.randn(8, 1, 3, 3)
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], tuple[int, ...]]] = {
    "an image": (lambda a, w: F.conv2d(a, w, padding=1, groups=8).relu(), [image(2, 8, 5, 6), WEIGHT], (240, 1, 48, 8)),
    "a sequence": (
        lambda a, w: F.silu(F.conv1d(a.mT, w, padding=1, groups=8)).mT,
        [torch.randn(2, 7, 8), torch.randn(8, 1, 3)],
        (56, 8, 1),
    ),
    "what is added lies so, too": (
        lambda a, w, b: a + F.conv2d(a, w, b, padding=1, groups=8),
        [image(2, 8, 5, 6), WEIGHT, torch.randn(8)],
        (240, 1, 48, 8),
    ),
    "rows of pixels": (
        lambda a, w: F.conv2d(a, w, groups=8).flatten(2),
        [image(2, 8, 5, 6), WEIGHT],
        (96, 1, 8),
    ),
    "channels before pixels": (
        lambda a, w: F.conv2d(a, w, groups=8),
        [torch.randn(2, 8, 5, 6), WEIGHT],
        (96, 12, 4, 1),
    ),
    "one image": (lambda a, w: F.conv2d(a, w, groups=8), [image(1, 8, 5, 6)[0], WEIGHT], (12, 4, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_depthwise_results_lie_as_their_inputs(name: str) -> None:
    model, inputs, strides = CASES[name]
    planned = plan(graph_of(model, *inputs), Recipe("cpu"))
    compare(as_module(model), planned, inputs)
    assert sum(isinstance(step, ConvKernel) for step in planned.steps) == 1
    assert planned.outputs[0].strides == strides


def test_a_gpu_stores_channels_before_pixels() -> None:
    model, inputs, _ = CASES["an image"]
    planned = plan(graph_of(model, *inputs), Recipe("cuda"))
    compare(as_module(model), planned, inputs)
    assert planned.outputs[0].strides == (240, 30, 6, 1)
