"""The diagonals of a product that its stores need."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.knowledge.compiler.lowering import graph_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.band import Band, needed_band
from foundry.knowledge.compiler.ir.kernels import GemmKernel
from foundry.knowledge.compiler.plan import plan

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
FUNCTIONS: dict[str, tuple[Function, Band]] = {
    "upper": (lambda a, b: torch.triu(a @ b, 2), Band(low=2)),
    "lower, later": (lambda a, b: torch.relu(torch.tril(a @ b) + 1), Band(high=0)),
    "both": (lambda a, b: torch.tril(torch.triu(a @ b, -1), 3), Band(-1, 3)),
    "a mask": (lambda a, b: torch.where(torch.ones(6, 6, dtype=torch.bool).tril(), 0.0, a @ b), Band(low=1)),
    "everything": (lambda a, b: a @ b, Band()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_masked_is_not_needed(name: str) -> None:
    function, band = FUNCTIONS[name]
    planned = plan(graph_of(function, torch.randn(6, 6), torch.randn(6, 6)), Recipe("cuda"))
    (product,) = planned.steps
    assert isinstance(product, GemmKernel) and needed_band(product) == band
