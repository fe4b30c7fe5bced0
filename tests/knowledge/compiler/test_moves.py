"""Moves, their application, crossover and seeds: what the search does with a lowered candidate."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import graph_of
from torch import nn

from foundry.knowledge.candidate import Recipe, Unrounded
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.moves import apply, moves
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.thought import Move

DEVICE = Device("cpu", "test", "x86-64", 2, 32 << 20, 32, 8 << 30)
TASK = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Linear(72, 16))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(a) * 2, -1)


@pytest.fixture(scope="module")
def graph() -> OpGraph:
    return graph_of(Net().eval(), torch.randn(2, 3, 3, 3))


@pytest.fixture(scope="module")
def lowered(graph: OpGraph) -> Lowered:
    return lower([graph], Recipe("cpu"), task_source=TASK, device=DEVICE)


def of_kind(lowered: Lowered, kind: str) -> list[Move]:
    return [move for move in moves(lowered) if move.kind == kind]


def test_the_recipe_of_a_candidate_is_complete_and_gives_the_same_candidate(graph: OpGraph, lowered: Lowered) -> None:
    assert set(lowered.recipe.choices) == {kernel.name for kernel in lowered.kernels}
    for kernel in lowered.kernels:
        assert set(kernel.choices) >= {tunable.name for tunable in kernel.tunables}
    again = lower([graph], lowered.recipe, task_source=TASK, device=DEVICE)
    assert again.source == lowered.source and again.recipe == lowered.recipe


def test_settings_are_legal_neighbours_with_a_reason(lowered: Lowered) -> None:
    kernels = {kernel.name: kernel for kernel in lowered.kernels}
    settings = of_kind(lowered, "set")
    assert {move.kernel for move in settings} == set(kernels)
    for move in settings:
        kernel = kernels[move.kernel]
        tunable = next(item for item in kernel.tunables if item.name == move.name)
        assert move.value in tunable.values and move.value != move.was == kernel.choices[move.name]
        assert move.aspect == tunable.aspect and move.template == kernel.template
        assert tunable.meaning in move.reason and str(move.value) in move.reason
        if isinstance(move.was, int) and isinstance(move.value, int):
            low, high = sorted((move.was, move.value))
            assert not [value for value in tunable.values if isinstance(value, int) and low < value < high]


def test_settings_lead_to_the_candidates_they_promise(graph: OpGraph, lowered: Lowered) -> None:
    settings = of_kind(lowered, "set")
    unchanged = []
    for move in settings:
        child = lower([graph], apply(lowered.recipe, move), task_source=TASK, device=DEVICE)
        assert child.recipe.choices[move.kernel][move.name] == move.value
        if child.source == lowered.source:
            unchanged.append(move)
    assert len(unchanged) <= len(settings) // 5  # a small problem leaves some knobs without effect


def test_splitting_and_fusing_are_inverse(graph: OpGraph, lowered: Lowered) -> None:
    splits = of_kind(lowered, "split")
    assert {move.name for move in splits} == set(lowered.fused) and splits
    for move in splits:
        child = lower([graph], apply(lowered.recipe, move), task_source=TASK, device=DEVICE)
        assert child.materialised == (move.name,)
        assert [kernel.ops for kernel in child.kernels] != [kernel.ops for kernel in lowered.kernels]
        back = next(other for other in moves(child) if other.kind == "fuse")
        assert back.name == move.name and "one write and one read" in back.reason
        again = lower([graph], apply(child.recipe, back), task_source=TASK, device=DEVICE)
        assert {kernel.name for kernel in again.kernels} == {kernel.name for kernel in lowered.kernels}


def test_kernels_keep_their_names_when_others_are_cut(graph: OpGraph, lowered: Lowered) -> None:
    everything = dataclasses.replace(lowered.recipe, materialise=lowered.fused)
    child = lower([graph], everything, task_source=TASK, device=DEVICE)
    assert {kernel.name for kernel in lowered.kernels} <= {kernel.name for kernel in child.kernels}


def test_rewrites_are_offered_applied_declared_and_taken_back(graph: OpGraph, lowered: Lowered) -> None:
    offered = of_kind(lowered, "rewrite")
    assert {move.name for move in offered} == {"fold-batchnorm", "pointwise-convolution-as-gemm"}
    for move in offered:
        child = lower([graph], apply(lowered.recipe, move), task_source=TASK, device=DEVICE)
        assert child.rewrites_applied == (move.name,) and f"rewrite:{move.name}" in child.labels
        back = next(other for other in moves(child) if other.kind == "unwrite")
        assert apply(child.recipe, back).rewrites == ()


def test_a_setting_without_a_value_is_refused(lowered: Lowered) -> None:
    with pytest.raises(ValueError, match="nothing"):
        apply(lowered.recipe, Move(kind="set", aspect="tile", name="tile", kernel="k_linear"))


def test_seeds_are_few_distinct_and_start_with_the_defaults(graph: OpGraph) -> None:
    recipes = seeds(graph, DEVICE)
    assert 3 <= len(recipes) <= 5 and recipes[0] == Recipe("cpu")
    sources = {lower([graph], recipe, task_source=TASK, device=DEVICE).source for recipe in recipes}
    assert len(sources) == len(recipes)
    assert any(recipe.materialise for recipe in recipes) and any(recipe.rewrites for recipe in recipes)


class Colours(nn.Module):
    """The first layers of a network for images of a few colours."""

    def __init__(self, colours: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(colours, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(images)
        return found


@pytest.mark.parametrize(
    ("unrounded", "accurate"),
    [
        ((), []),
        (("layers.1.running_mean",), ["k_conv2d"]),
        (("layers.4.running_mean",), ["k_conv2d_1"]),
        (("layers.1.running_mean", "layers.4.running_mean"), ["k_conv2d", "k_conv2d_1"]),
        (("unknown.running_mean",), []),
    ],
)
def test_what_pytorch_computes_without_rounding_is_accurate_at_first(
    unrounded: tuple[str, ...], accurate: list[str]
) -> None:
    graph = graph_of(Colours(3).train(), torch.randn(2, 3, 16, 16))
    first = seeds(graph, H200, Unrounded(means=unrounded))[0]
    found = lower([graph], first, task_source=TASK, device=H200).recipe
    assert [name for name in ("k_conv2d", "k_conv2d_1") if name not in found.rounded] == accurate
