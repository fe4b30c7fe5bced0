"""Maps that see a product's rows and columns as several dimensions: heads split off, results reordered."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import check, graph_of
from tests.knowledge.compiler.whole import MODEL, outputs_of, wrong_when_emulated
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import AttentionKernel, GemmKernel
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.printers import module_file
from foundry.knowledge.device import Device

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
    "heads": (Linear(51, lambda y: heads(y, 3)), [X]),
    "heads with arithmetic": (Linear(48, lambda y: torch.relu(heads(y, 3) * 0.5 + 1)), [X]),
    "a residual in heads": (lambda x, w, r: heads(x @ w, 3) + r, [X, torch.randn(20, 48), torch.randn(3, 3, 10, 16)]),
    "both results": (Linear(48, lambda y: (y, heads(y, 3))), [X]),
    "windows": (
        Linear(8, lambda y: y.view(2, 3, 4, 2, 6, 8).permute(0, 1, 3, 2, 4, 5).contiguous()),
        [torch.randn(2, 12, 12, 20)],
    ),
    "three in one": (Linear(96, lambda y: y.view(3, 10, 3, 2, 16).permute(2, 0, 3, 1, 4).contiguous()), [X]),
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
    inputs = torch.randn(1, 12, 5, 9), torch.randn(1, 12, 7, 17), (torch.rand(1, 12, 7) > 0.3).float()
    planned = check(outer_product_mean, inputs[0], inputs[1][:, :, :5].contiguous(), inputs[2][..., :5].contiguous())
    product = planned.steps[-1]
    assert len(planned.steps) == 2 and isinstance(product, GemmKernel)
    assert (product.m_sizes, product.n_sizes) == ((5, 9), (5, 17))


@pytest.mark.parametrize(("target", "shortest"), [("cpu", 16), ("cuda", 8)])
def test_stores_of_a_few_elements_side_by_side_stay_a_map(target: Literal["cpu", "cuda"], shortest: int) -> None:
    torch.manual_seed(0)
    for width, steps in ((shortest - 1, 2), (shortest, 1)):
        check(Linear(3 * width, lambda y: heads(y, 3)), X, recipe=Recipe(target), steps=steps)


@pytest.mark.parametrize(("target", "rows", "steps"), [("cpu", 16, 2), ("cuda", 16, 1), ("cuda", 15, 2)])
def test_a_gpu_alone_stores_along_rows(target: Literal["cpu", "cuda"], rows: int, steps: int) -> None:
    torch.manual_seed(0)
    model = Linear(12, lambda y: y.view(3, rows, 3, 4).permute(0, 2, 3, 1).contiguous())
    check(model, torch.randn(3, rows, 20), recipe=Recipe(target), steps=steps)


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


def every_product(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, a: torch.Tensor, mask: torch.Tensor) -> Any:
    y = x @ w
    return heads(y * 0.5, 3) + r, heads(x @ (w + 1), 2), outer_product_mean(a, a + 1, mask)


EVERY = [X, torch.randn(20, 48), torch.randn(3, 3, 10, 16), torch.randn(1, 12, 5, 17), torch.ones(1, 12, 5)]


def candidate(device: Device) -> str:
    printed = print_plan(graph_of(every_product, *EVERY), Recipe(device.target, ieee_only=True), device)
    assert sum(isinstance(step, GemmKernel) and step.is_split for step in printed.plan.steps) == 3
    return module_file(MODEL, [Entry(printed.plan, printed.kernels)], device)


def test_reordered_products_in_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    for got, wanted in zip(outputs_of(candidate(native_device()), EVERY), every_product(*EVERY), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_reordered_products_in_cuda(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    assert not wrong_when_emulated(forks, candidate(H200), EVERY, every_product(*EVERY), tmp_path, 1e-4)
