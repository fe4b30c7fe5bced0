"""The first of long rows in order on the CPU, against PyTorch's stable sort."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.knowledge.compiler.selecting import KINDS, drawn, in_order, select_kernel

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.rows.select import print_select
from foundry.knowledge.compiler.ir.kernels import SelectKernel, Ties
from foundry.knowledge.opgraph import DType

Harness = Any


def selected(
    cpu_kernel: Harness, x: torch.Tensor, kernel: SelectKernel, choices: dict[str, Choice]
) -> tuple[torch.Tensor, torch.Tensor]:
    count, first = kernel.count, kernel.first
    outputs = {
        "y": torch.empty(len(x), count - first, dtype=x.dtype),
        "at": torch.empty(len(x), count - first, dtype=torch.int64),
    }
    cpu_kernel.run(kernel, print_select, {"x": x}, outputs, choices)
    return outputs["y"], outputs["at"]


def assert_in_order(
    cpu_kernel: Harness, x: torch.Tensor, first: int, count: int, *, largest: bool, **choices: Choice
) -> None:
    y, at = selected(cpu_kernel, x, select_kernel(x, first, count, largest=largest), choices)
    values, places = in_order(x, first, count, largest=largest)
    assert torch.equal(at, places)
    torch.testing.assert_close(y, values, rtol=0, atol=0, equal_nan=True)
    if y.is_floating_point():
        assert torch.equal(y.signbit() & ~y.isnan(), values.signbit() & ~values.isnan()), "a zero's sign"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("largest", [True, False])
def test_rows_of_every_kind(cpu_kernel: Harness, kind: str, largest: bool) -> None:
    for count in (1, 100, 1500):
        assert_in_order(cpu_kernel, drawn(kind, 3, 1500), 0, count, largest=largest)


@pytest.mark.parametrize("is_sorted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ties_are_those_of_topk(cpu_kernel: Harness, is_sorted: bool) -> None:
    """The judge compares indices; a task whose numbers are all the same tells."""
    ties: Ties = "as in topk" if is_sorted else "as in unsorted topk"
    for length, count in ((2048, 32), (2000, 32), (1500, 1), (64, 1), (8, 2), (1000, 1000)):
        x = torch.cat([drawn(kind, 2, length) for kind in KINDS] + [torch.ones(1, length)])
        for largest in (True, False):
            kernel = select_kernel(x, 0, count, largest=largest, ties=ties)
            y, at = selected(cpu_kernel, x, kernel, {})
            values, places = x.topk(count, -1, largest, is_sorted)
            assert torch.equal(at, places), (length, count, largest)
            torch.testing.assert_close(y, values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8"])
def test_types(cpu_kernel: Harness, dtype: DType) -> None:
    assert_in_order(cpu_kernel, drawn("special", 2, 1100, dtype), 0, 40, largest=True)
    assert_in_order(cpu_kernel, drawn("normal", 2, 1100, dtype), 0, 40, largest=False)


def test_the_ends_of_integers(cpu_kernel: Harness) -> None:
    ends = torch.iinfo(torch.int64)
    x = torch.tensor([[0, ends.max, -1, ends.min, 1, ends.max, ends.min, 1 << 32]])
    assert_in_order(cpu_kernel, x, 0, 8, largest=True)
    assert_in_order(cpu_kernel, x, 0, 8, largest=False)


@pytest.mark.parametrize("choices", [{"threads": 1, "spare": 8}, {"threads": 2, "spare": 2}])
def test_long_rows(cpu_kernel: Harness, choices: dict[str, Choice]) -> None:
    assert_in_order(cpu_kernel, drawn("normal", 3, 70_001), 0, 1024, largest=True, **choices)
    assert_in_order(cpu_kernel, drawn("falling", 2, 65_536), 0, 256, largest=False, **choices)


def test_one_in_the_middle(cpu_kernel: Harness) -> None:
    for rank in (0, 1000, 2499):
        assert_in_order(cpu_kernel, drawn("special", 3, 2500), rank, rank + 1, largest=False)


def test_columns(cpu_kernel: Harness) -> None:
    assert_in_order(cpu_kernel, drawn("ties", 1200, 3).mT, 0, 17, largest=True)
