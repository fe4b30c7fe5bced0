"""Maps that see a product's rows and columns as several dimensions: heads split off, results reordered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from tests.knowledge.library.lowering import check
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.library.ir.kernels import AttentionKernel, GemmKernel

Function = Callable[..., Any]


def heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.view(*x.shape[:2], count, -1).transpose(1, 2).contiguous()


class Linear(nn.Module):
    def __init__(self, columns: int, finish: Function) -> None:
        super().__init__()
        self.linear = nn.Linear(20, columns)
        self.finish = finish

    def forward(self, x: torch.Tensor) -> Any:
        return self.finish(self.linear(x))


def outer_product_mean(a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    count = torch.einsum("bsi,bsj->bij", mask, mask)
    return torch.einsum("bsic,bsjd->bijcd", a, b) / (count[..., None, None] + 0.5)


X = torch.randn(3, 10, 20)
JOINED: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "heads": (Linear(33, lambda y: heads(y, 3)), [X]),
    "heads with arithmetic": (Linear(48, lambda y: torch.relu(heads(y, 3) * 0.5 + 1)), [X]),
    "a residual in heads": (lambda x, w, r: heads(x @ w, 3) + r, [X, torch.randn(20, 48), torch.randn(3, 3, 10, 16)]),
    "heads transposed": (Linear(12, lambda y: y.view(3, 10, 3, 4).permute(0, 2, 3, 1).contiguous()), [X]),
    "both results": (Linear(48, lambda y: (y, heads(y, 3))), [X]),
    "windows": (
        Linear(8, lambda y: y.view(2, 3, 4, 2, 6, 8).permute(0, 1, 3, 2, 4, 5).contiguous()),
        [torch.randn(2, 12, 12, 20)],
    ),
    "three in one": (Linear(72, lambda y: y.view(3, 10, 3, 2, 12).permute(2, 0, 3, 1, 4).contiguous()), [X]),
    "a batch of heads": (
        lambda a, b: torch.bmm(a, b).view(3, 2, 5, 9).transpose(1, 2).contiguous(),
        [torch.randn(6, 5, 7), torch.randn(6, 7, 9)],
    ),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", JOINED)
def test_copies_that_reorder_a_product_join_its_stores(name: str, target: Literal["cpu", "cuda"]) -> None:
    torch.manual_seed(0)
    model, inputs = JOINED[name]
    check(model, *inputs, recipe=Recipe(target), steps=1)


def test_an_outer_product_is_divided_by_a_count_where_it_is_made() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1, 12, 5, 9), torch.randn(1, 12, 7, 11), (torch.rand(1, 12, 7) > 0.3).float()
    planned = check(outer_product_mean, inputs[0], inputs[1][:, :, :5].contiguous(), inputs[2][..., :5].contiguous())
    product = planned.steps[-1]
    assert len(planned.steps) == 2 and isinstance(product, GemmKernel)
    assert (product.m_sizes, product.n_sizes) == ((5, 9), (5, 11))


def test_stores_of_a_few_elements_side_by_side_stay_a_map() -> None:
    check(Linear(12, lambda y: heads(y, 3)), X, steps=2)


def test_a_product_of_an_attention_keeps_its_place_in_it() -> None:
    torch.manual_seed(0)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result = torch.softmax(q @ k.mT * 0.3, -1) @ v
        return result.view(2, 3, 10, 2, 8).permute(0, 3, 1, 2, 4).contiguous()

    planned = check(attend, *(torch.randn(2, 3, 10, 16) for _ in range(3)), steps=2)
    assert isinstance(planned.steps[0], AttentionKernel)


def test_a_result_that_is_reordered_is_also_reduced() -> None:
    torch.manual_seed(0)
    check(Linear(48, lambda y: (heads(y, 3), y.sum(-1))), X, recipe=Recipe("cuda"))
