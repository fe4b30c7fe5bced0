"""Products that a recipe wants accurate, on the CUDA emulator, which rounds operands as TF32 does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.forking import Forks
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import graph_of
from tests.knowledge.compiler.whole import MODEL, wrong_when_emulated

from foundry.knowledge.candidate import Recipe, Unrounded
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.lower import print_plan, seeds
from foundry.knowledge.compiler.printers import module_file

FLOAT32 = 2e-5  # of elements near 1: far from a TF32 product's 1e-3


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = F.linear(x, w).reshape(2, 21, 3, 2, 16).permute(2, 0, 3, 1, 4)
    weights = torch.einsum("ngid,ngjd->ngij", q * 0.25, k).softmax(-1)
    return torch.einsum("ngij,ngjd->ngid", weights, v)


def filters(wave: torch.Tensor, bank: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    return F.conv1d(wave, bank, padding="same").square().mean(-1).log() @ basis


def groups(x: torch.Tensor, dilated: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    return x + F.conv1d(torch.tanh(F.conv1d(x, dilated, dilation=2, padding=2, groups=2)), mix)


CASES: dict[str, tuple[Any, list[torch.Tensor]]] = {
    "attention": (attention, [drawn(2, 21, 32), drawn(96, 32) / 5]),
    "filters": (filters, [drawn(2, 1, 300), drawn(20, 1, 31) / 5, drawn(20, 13) / 4]),
    "groups": (groups, [drawn(2, 32, 48), drawn(32, 16, 3) / 7, drawn(32, 32, 1) / 5]),
}


@pytest.mark.parametrize("name", CASES)
def test_accurate_kernels_are_as_accurate_as_float32_and_others_are_not(
    forks: Forks, tmp_path: Path, name: str
) -> None:
    model, inputs = CASES[name]
    graph = graph_of(lambda *given: (model(*given),), *inputs)
    wanted = [model(*(item.double() for item in inputs)).float()]
    products = tuple(op.name for op in graph.ops)
    for recipe, is_near in ((seeds(graph, H200, Unrounded(products=products))[0], True), (Recipe("cuda"), False)):
        printed = print_plan(graph, recipe, H200)
        text = module_file(MODEL, [Entry(printed.plan, printed.kernels)], H200)
        folder = tmp_path / str(is_near)
        folder.mkdir()
        assert (not wrong_when_emulated(forks, text, inputs, wanted, folder, FLOAT32)) == is_near
