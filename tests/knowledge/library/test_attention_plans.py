"""Plans of attention, however it is written, and of attention that no kernel takes, mean what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.library.lowering import as_module, check, compare, graph_of
from torch import nn
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.library.ir.kernels import AttentionKernel, GemmKernel, RowKernel, TorchCall
from foundry.knowledge.library.plan import plan

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
