"""Writes to slices: a loop that fills a tensor has one memory, unless somebody would read what a write changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import check

from foundry.knowledge.compiler.ir.kernels import MapKernel


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def recursion(a: torch.Tensor) -> torch.Tensor:
    out, run = torch.empty_like(a), torch.zeros_like(a[0])
    for step in reversed(range(len(a))):
        run = out[step] = a[step] + 0.5 * run
    return out


def reads_what_is_there(a: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(a)
    out[:, 0] = a[:, 0]
    for step in range(1, a.shape[1]):
        out[:, step] = 0.5 * out[:, step - 1] + a[:, step]
    return out


def in_strides(a: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(a)
    out[::2] = a[::2] * 2
    out[1::2] = a[1::2] * 3
    return out


def written_twice(a: torch.Tensor) -> torch.Tensor:
    out = a.clone()
    out[1] = a[0] * 2
    kept = out[1] * 3
    out[1] = a[2]
    return out + kept


def read_before_it_is_written(a: torch.Tensor) -> torch.Tensor:
    out = a * 2
    out[0] = a[1]
    before = out[2].clone()
    out[2] = a[0]
    return out + before


def a_whole_in_between(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros_like(a)
    out[0] = a[0]
    middle = out.sum(0)
    out[1] = a[1]
    return out, middle


def along_two_axes(a: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(a)
    out[1] = a[0]
    out[:, 1] = a[:, 0]
    return out


def copies(model: Callable[..., Any]) -> int:
    """The number of kernels that copy a tensor for a slice that is written to it; checks that the plan is right."""
    steps = check(model, x(6, 5)).steps
    return sum(isinstance(step, MapKernel) and step.name.endswith("_copy") for step in steps)


@pytest.mark.parametrize("model", [recursion, reads_what_is_there, in_strides])
def test_slices_that_are_written_once_have_one_memory(model: Callable[..., Any]) -> None:
    assert copies(model) == 1


@pytest.mark.parametrize("model", [written_twice, read_before_it_is_written, a_whole_in_between, along_two_axes])
def test_who_reads_a_tensor_before_a_write_reads_what_it_held(model: Callable[..., Any]) -> None:
    assert copies(model) == 2
