"""Chains of maps over the same points, and many items of a few elements each: one kernel, and what must stay apart."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import check
from tests.knowledge.compiler.test_operators import Case, x
from tests.knowledge.compiler.whole import candidate, outputs_of, together, wrong_when_emulated

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.fusion.chains import join_chains
from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir.access import Step
from foundry.knowledge.compiler.ir.kernels import Apply, Load, MapKernel, Store
from foundry.knowledge.compiler.ir.views import identity
from foundry.knowledge.device import TargetName


def _paths(noise: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps in time whose values all have several readers, and are dear."""
    value = start[:, None].expand(-1, noise.shape[1])
    low, total = value, torch.zeros_like(value)
    for step in range(noise.shape[2]):
        value = value + torch.sqrt(value.clamp(min=0) + 0.1) * noise[:, :, step]
        total = total + torch.exp(-value)
        low = torch.minimum(low, value)
    return total / noise.shape[2], torch.where(low > 0, total, -total)


def _in_between(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values of a chain that are results as well."""
    one = torch.exp(a) * b
    two = torch.tanh(one) + one
    return one, torch.sin(two) + one, two > one


def _turned(a: torch.Tensor) -> torch.Tensor:
    """A value that is read at other points than it is made at."""
    one = torch.exp(a)
    return torch.sigmoid(one.t()) + torch.tanh(one.t()) * torch.log1p(one)


CHAINS: dict[str, Case] = {
    "paths": (_paths, [x(3, 700, 6), x(3)]),
    "results in between": (_in_between, [x(50, 33), x(50, 33)]),
    "of 16 bits": (lambda a: _in_between(a, a)[1], [x(300, 7).half().float()]),
    "read elsewhere": (_turned, [x(40, 40)]),
}


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product of quaternions."""
    scalar = one[:, :1] * other[:, :1] - (one[:, 1:] * other[:, 1:]).sum(-1, keepdim=True)
    cross = torch.cross(one[:, 1:], other[:, 1:], dim=-1)
    return torch.cat([scalar, one[:, :1] * other[:, 1:] + other[:, :1] * one[:, 1:] + cross], dim=-1)


def _arms(angles: torch.Tensor, axes: torch.Tensor) -> torch.Tensor:
    """Frames of joints one after the other, and where they point."""
    sine, cosine = angles.sin(), angles.cos()
    frame = torch.cat([cosine[:, :1], sine[:, :1] * axes[0]], dim=-1)
    place = torch.zeros_like(frame[:, 1:])
    for joint in range(1, angles.shape[1]):
        turn = torch.cat([cosine[:, joint : joint + 1], sine[:, joint : joint + 1] * axes[joint]], dim=-1)
        frame = _product(frame, turn)
        place = place + torch.cross(frame[:, 1:], axes[joint].expand_as(place), dim=-1)
    return torch.cat([place, frame / frame.norm(dim=-1, keepdim=True)], dim=-1)


def _filters(seen: torch.Tensor, spread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A state of two numbers and its covariance, corrected by what is seen."""
    state, covariance = torch.zeros_like(seen[:, 0]), torch.diag_embed(spread + 0.1)
    step = torch.tensor([[1.0, 0.5], [0.0, 1.0]])
    for time in range(seen.shape[1]):
        state, covariance = state @ step.T, step @ covariance @ step.T + 0.1 * torch.eye(2)
        gain = covariance / (covariance.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None] + 1)
        state = state + torch.einsum("bij,bj->bi", gain, seen[:, time] - state)
        covariance = (torch.eye(2) - gain) @ covariance
    return state, covariance


def _triangles(corners: torch.Tensor) -> torch.Tensor:
    """Triangles stacked along the first dimension, so that items are contiguous."""
    a, b, c = corners.unbind(0)
    normal = torch.cross(b - a, c - a, dim=0)
    area = normal.norm(dim=0)
    return torch.stack([normal[0] / area, normal[1] / area, normal[2] / area, area * 0.5])


def _windows(image: torch.Tensor, depth: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Weighted means over the 5 x 5 points around each: rows of 25 that lie across memory."""
    seen, deep = (F.unfold(F.pad(one, (2, 2, 2, 2), mode="reflect"), 5) for one in (image, depth))
    seen, deep = seen.view(3, 25, *image.shape[2:]), deep.view(25, *image.shape[2:])
    weight = torch.exp(-(seen - image[0, :, None]).square().sum(0)) * scale
    weight = torch.where(deep > 0.1, weight, torch.zeros_like(weight))
    norm = weight.sum(0)
    mean = (weight * deep).sum(0) / norm
    return torch.stack([mean, ((weight * (deep - mean).square()).sum(0) / norm).sqrt()])


ITEMS: dict[str, Case] = {
    "arms": (_arms, [x(1003, 5), x(5, 3)]),
    "filters": (_filters, [x(1101, 4, 2), x(1101, 2).abs()]),
    "triangles": (_triangles, [x(3, 3, 500)]),
    "windows": (_windows, [x(1, 3, 30, 41), x(1, 1, 30, 41).abs() + 0.2, x(25, 1, 1).abs()]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    model, inputs = CHAINS[name]
    check(model, *inputs)


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("target", get_args(TargetName))
def test_items(name: str, target: TargetName) -> None:
    model, inputs = ITEMS[name]
    check(model, *inputs, recipe=Recipe(target), tolerance=1e-4)


def test_a_simulation_is_one_kernel() -> None:
    model, inputs = CHAINS["paths"]
    check(model, *inputs, steps=1)


def test_values_in_between_are_stored_by_the_same_kernel() -> None:
    model, inputs = CHAINS["results in between"]
    check(model, *inputs, steps=1)


def test_a_value_is_not_stored_for_a_reader_of_another_shape() -> None:
    whole, flat = (30, 40), (1200,)
    made = Store("b", identity(whole), Apply("exp", (Load("a", identity(whole), "float32"),), "float32"))
    read = Store("c", identity(flat), Apply("sin", (Load("b", identity(flat), "float32"),), "float32"))
    steps: list[Step] = [MapKernel("first", whole, (made,)), MapKernel("second", flat, (read,))]
    state = FusionState({}, steps, {"c"}, set(), "cpu")
    assert join_chains(state)
    (step,) = state.steps
    assert isinstance(step, MapKernel) and [store.buffer for store in step.stores] == ["c"]


def test_an_arm_is_one_kernel_over_arms() -> None:
    model, inputs = ITEMS["arms"]
    (step,) = check(model, *inputs, steps=1, tolerance=1e-4).steps
    assert isinstance(step, MapKernel) and step.shape == (1003,) and len(step.stores) == 7


def test_a_filter_is_one_kernel_over_filters() -> None:
    model, inputs = ITEMS["filters"]
    steps = check(model, *inputs, tolerance=1e-4).steps
    assert {step.shape for step in steps if isinstance(step, MapKernel)} == {(1101,)} and len(steps) < 3


def test_items_that_lie_side_by_side_are_one_kernel_as_well() -> None:
    model, inputs = ITEMS["triangles"]
    check(model, *inputs, steps=1, tolerance=1e-4)


def test_rows_across_memory_are_written_out_where_rows_along_it_are_not() -> None:
    model, inputs = ITEMS["windows"]
    *_, windows = check(model, *inputs, steps=3, tolerance=1e-4).steps
    assert isinstance(windows, MapKernel) and windows.shape == (30, 41)


def test_few_items_stay_apart() -> None:
    """So many points as one kernel has would leave a machine idle."""
    planned = check(_arms, x(20, 5), x(5, 3), tolerance=1e-4)
    assert len(planned.steps) > 1


def test_a_value_that_shall_be_stored_is_read_from_memory() -> None:
    """Recipe.materialise cuts a chain."""
    model, inputs = CHAINS["results in between"]
    whole = check(model, *inputs)
    for name in whole.fused:
        cut = check(model, *inputs, recipe=Recipe("cpu", materialise=(name,)))
        assert name in cut.materialised


ALL, INPUTS = together([*CHAINS.values(), *ITEMS.values()])


@pytest.fixture
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_cache")
def test_in_cpp() -> None:
    text = candidate(ALL, INPUTS, native_device())
    assert "alignas(64) float g0[" in text  # elements of arms lie side by side before they are worked on
    for got, wanted in zip(outputs_of(text, INPUTS), ALL(*INPUTS), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_cache")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_in_cuda(forks: Forks, tmp_path: Path) -> None:
    assert not wrong_when_emulated(forks, candidate(ALL, INPUTS, H200), INPUTS, ALL(*INPUTS), tmp_path, 1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("_cache")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_on_the_gpu() -> None:
    found = outputs_of(candidate(ALL, INPUTS, H200), [tensor.cuda() for tensor in INPUTS])
    for got, wanted in zip(found, ALL(*INPUTS), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-4)
