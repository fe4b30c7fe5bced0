"""Products as accurate as PyTorch's: where it does not use TF32 though it may, the first kernels do not either."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import graph_of
from tests.mixed_arithmetic import TASKS
from torch import nn

from foundry.knowledge.candidate import ACCURATE, Baseline, Unrounded
from foundry.knowledge.compiler.ir.kernels import Tunable
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.compiler.moves import apply, moves
from foundry.knowledge.compiler.seeds import more_accurate
from foundry.knowledge.opgraph import OpGraph, ProductRun, product_size, unrounded_products

TASK = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"


def graph_of_task(name: str) -> OpGraph:
    space: dict[str, Any] = {}
    exec(TASKS[name], space)
    return graph_of(space["Model"](), *space["get_inputs"]())


def rounded(graph: OpGraph, unrounded: Unrounded) -> list[list[str]]:
    """The kernels in TF32 of each first recipe, in order."""
    recipes = seeds(graph, H200, unrounded)
    return [list(lower([graph], one, task_source=TASK, device=H200).recipe.rounded) for one in recipes]


@pytest.mark.parametrize("name", TASKS)
def test_where_pytorch_rounds_no_product_no_first_kernel_does(name: str) -> None:
    graph = graph_of_task(name)
    every = Baseline(1.0, 0.0, [], is_ieee=True).unrounded_in(graph)
    assert len(every.products) == sum(1 for op in graph.ops if product_size(op.kind, op.flops, 1))
    assert not any(rounded(graph, every))
    assert any(rounded(graph, Unrounded())), "a test of nothing"


def test_where_pytorch_rounds_some_products_the_faster_recipe_comes_second() -> None:
    graph = graph_of_task("groups")
    mixed = rounded(graph, Unrounded(products=("conv1d",)))
    assert mixed[:2] == [["k_conv1d_1"], ["k_conv1d", "k_conv1d_1"]]
    others = [kernels for kernels in mixed if "k_conv1d" in kernels]
    assert len(others) == 1, "only one first recipe tries what PyTorch does not do"


def test_a_pointwise_convolution_in_planes_has_an_accurate_variant() -> None:
    """It had TF32 alone, and no first recipe and no move led away from it."""
    layer = nn.Conv2d(64, 64, 1)
    graph = graph_of(layer, torch.randn(16, 64, 128, 128))
    start = lower([graph], seeds(graph, H200)[0], task_source=TASK, device=H200)
    assert start.recipe.choices["k_conv2d"]["algorithm"] == "planes" and start.recipe.rounded == ("k_conv2d",)
    wanted = [move for move in moves(start) if move.aspect == "precision" and move.value in ACCURATE]
    assert wanted
    for move in wanted:
        child = lower([graph], apply(start.recipe, move), task_source=TASK, device=H200)
        assert child.recipe.rounded == () and child.recipe.choices["k_conv2d"]["precision"] == move.value
    assert [] in rounded(graph, Unrounded())


def test_what_is_accurate_already_is_not_made_less_so() -> None:
    """Attention that gives zeros for rows without keys is accurate by default, and its second value is TF32."""
    precision = Tunable("precision", ("tf32x3", "tf32", "ieee"), "tf32x3", "precision", "")
    assert more_accurate(precision) is None
    assert more_accurate(replace(precision, values=("half", "half3", "tf32", "ieee"), default="half")) == "half3"
    assert more_accurate(replace(precision, values=("bfloat16", "ieee"), default="bfloat16")) == "ieee"
    assert more_accurate(Tunable("tile", (1, 2), 1, "tile", "")) is None


def test_products_are_found_by_their_size() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return F.linear(x, w, b) @ w[:, :8].relu()

    graph = graph_of(Two(), torch.randn(5, 8), torch.randn(6, 8), torch.randn(6))
    large, small = ProductRun(30, 8, True), ProductRun(40, 6, False)
    assert unrounded_products(graph, (large, small)) == ("matmul",)
    assert unrounded_products(graph, (large, large)) == ()
    assert unrounded_products(graph, (large, replace(large, is_rounded=False))) == ("linear", "matmul")
    assert unrounded_products(graph, ()) == ()


def test_integers_and_doubles_have_no_tf32() -> None:
    graph = graph_of(lambda a: a @ a, torch.randn(4, 4, dtype=torch.float64))
    assert unrounded_products(graph, (ProductRun(16, 4, False),)) == ()
