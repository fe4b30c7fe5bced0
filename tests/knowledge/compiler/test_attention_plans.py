"""Plans of attention, however it is written, and of attention that no kernel takes, mean what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module, check, compare, graph_of
from torch import nn
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import (
    AttentionKernel,
    GemmKernel,
    MapKernel,
    RowKernel,
    TorchCall,
)
from foundry.knowledge.compiler.plan import plan

Model = nn.Module | Callable[..., Any]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-2, -1) / 2.0
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
    return torch.matmul(weights, v)


ATTENTION: dict[str, tuple[Model, list[torch.Tensor], bool]] = {
    "operator": (F.scaled_dot_product_attention, [x(2, 3, 5, 4), x(2, 3, 6, 4), x(2, 3, 6, 4)], False),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [x(2, 5, 4)] * 3, True),
    "mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m > -1),
        [x(2, 5, 4), x(2, 5, 4), x(2, 5, 4), x(5, 5).abs()],
        False,
    ),
    "grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [x(2, 4, 5, 3), x(2, 2, 5, 3), x(2, 2, 5, 3)],
        False,
    ),
    "grouped with masks": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True),
        [x(2, 4, 5, 3), x(2, 2, 5, 3), x(2, 2, 5, 3), x(2, 4, 5, 5)],
        False,
    ),
    "written out": (_attention, [x(2, 3, 5, 4), x(2, 3, 5, 4), x(2, 3, 5, 4)], True),
    "additive": (lambda q, k, v, m: ((q @ k.mT) * 0.3 + m).softmax(-1) @ v, [x(2, 5, 4)] * 3 + [x(5, 5)], False),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_one_kernel_however_it_is_written(name: str) -> None:
    model, inputs, causal = ATTENTION[name]
    planned = check(model, *inputs, steps=1)
    assert isinstance(planned.steps[0], AttentionKernel) and planned.steps[0].causal == causal


def _windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Scores lose what lies far away, in two ways, as with linear biases and a sliding window."""
    distance = (2 * torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])[None, :]).abs()
    scores = (q @ k.mT) * 0.5 - slopes * distance
    return torch.softmax(scores.masked_fill(distance > 4, float("-inf")), -1) @ v


def _turned_positions(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax((q * angle.cos() + q.flip(-1) * angle.sin()) @ (k + angle).mT / 2.0, -1)
    return weights @ v


def _in_wide_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / 2.0, -1, dtype=torch.float32).to(q.dtype) @ v


def _mask_before_scale(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT + m) * 0.3 + m.flip(-1), -1) @ v


WRITTEN: dict[str, tuple[Model, list[torch.Tensor], int, bool]] = {
    "window and bias": (_windowed, [x(2, 3, 5, 4), x(2, 3, 9, 4), x(2, 3, 9, 4), x(3, 1, 1)], 1, True),
    "positions turned into q and k": (_turned_positions, [x(2, 5, 4), x(2, 6, 4), x(2, 6, 4), x(1)], 4, True),
    "16 bits, softmax in 32": (_in_wide_softmax, [x(2, 5, 4).bfloat16()] * 3, 1, True),
    "a mask that is scaled": (_mask_before_scale, [x(2, 5, 4)] * 3 + [x(5, 5)], 1, True),
    "a mask of the wrong sign": (
        lambda q, k, v, m: torch.softmax(-(q @ k.mT + m), -1) @ v,
        [x(2, 5, 4)] * 3 + [x(5, 5)],
        3,
        False,
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_attention_as_models_write_it(name: str) -> None:
    """Masks may be nested and computed, what is made of q and k is laid out first, and types change on the way."""
    model, inputs, steps, is_one = WRITTEN[name]
    planned = check(model, *inputs, steps=steps, tolerance=2e-2 if "bits" in name else 1e-5)
    assert isinstance(planned.steps[-1], AttentionKernel) == is_one


def test_heads_that_lie_apart_are_laid_out_first_on_a_gpu() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k / 2.0, -1) @ v.mT

    inputs = [x(2, 5, 4).bfloat16(), x(2, 4, 6).bfloat16(), x(2, 4, 6).bfloat16()]
    graph = graph_of(model, *inputs)
    laid_out, as_they_are = plan(graph, Recipe("cuda")), plan(graph, Recipe("cpu"))
    for planned in (laid_out, as_they_are):
        compare(as_module(model), planned, inputs, 2e-2)
    assert [type(step) for step in laid_out.steps] == [MapKernel, AttentionKernel]
    assert [type(step) for step in as_they_are.steps] == [AttentionKernel]


def _hiding(rows: int, columns: int) -> torch.Tensor:
    """A mask of booleans that hides all of row 1."""
    mask = x(rows, columns) > -0.5
    mask[1] = False
    return mask


sdpa = F.scaled_dot_product_attention
APART: dict[str, tuple[Model, list[torch.Tensor]]] = {
    "operator": (sdpa, [x(2, 3, 5, 4), x(2, 3, 6, 4), x(2, 3, 6, 7)]),
    "causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), [x(2, 5, 4), x(2, 7, 4), x(2, 7, 4)]),
    "a scale": (lambda q, k, v: sdpa(q, k, v, scale=0.7), [x(5, 4), x(7, 4), x(7, 3)]),
    "a row all hidden": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), [x(2, 3, 5, 4)] * 3 + [_hiding(5, 5)]),
    "a mask added": (lambda q, k, v, m: sdpa(q, k, v, attn_mask=m), [x(2, 3, 5, 4)] * 3 + [x(2, 1, 5, 5)]),
    "a NaN": (lambda q, k, v: sdpa(q, k / (k > -0.5), v), [x(2, 5, 4)] * 3),
    "grouped": (
        lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
        [x(2, 4, 5, 3), x(2, 2, 5, 3), x(2, 2, 5, 3)],
    ),
    "keys for the whole batch": (lambda q, k, v: sdpa(q, k, v, is_causal=True), [x(2, 5, 4), x(1, 6, 4), x(1, 6, 4)]),
    "one query": (sdpa, [x(2, 3, 1, 4), x(2, 3, 6, 4), x(2, 3, 6, 4)]),
    "one key": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True), [x(2, 4, 5, 4), x(2, 2, 1, 4), x(2, 2, 1, 4)]),
    "turned": (lambda q, k, v: sdpa(q.mT, k.mT, v.mT).mT.relu(), [x(2, 4, 5)] * 3),
    "bfloat16": (sdpa, [x(2, 3, 5, 4).bfloat16()] * 3),
}


@pytest.mark.parametrize("name", APART)
def test_attention_that_no_kernel_takes_is_two_products_and_a_softmax(name: str) -> None:
    model, inputs = APART[name]
    graph = graph_of(model, *inputs)
    operators = {op.name for op in graph.ops if op.kind == "scaled_dot_product_attention"}
    planned = plan(graph, Recipe("cuda"), apart=frozenset(operators))
    compare(as_module(model), planned, inputs, 1e-2 if name == "bfloat16" else 1e-5)
    assert not any(isinstance(step, TorchCall | AttentionKernel) for step in planned.steps)
    assert operators <= {op for step in planned.steps for op in step.ops}
    weights = [buffer.dtype for key, buffer in planned.buffers.items() if key.endswith("weights")]
    assert weights in ([], ["bfloat16" if name == "bfloat16" else "float32"])


def test_products_around_a_softmax_stay_apart_where_the_attention_is_refused() -> None:
    inputs = [x(2, 5, 4), x(2, 5, 4), x(2, 5, 4)]
    graph = graph_of(_attention, *inputs)
    planned = plan(graph, Recipe("cuda"), apart=frozenset(op.name for op in graph.ops))
    compare(as_module(_attention), planned, inputs)
    assert [type(step) for step in planned.steps] == [GemmKernel, RowKernel, GemmKernel]


def test_attention_stays_apart_when_its_weights_are_returned() -> None:
    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(q @ k.transpose(-2, -1), -1)
        return weights @ v, weights

    check(model, x(2, 5, 4), x(2, 5, 4), x(2, 5, 4), steps=3)
