"""Scans on the CPU against PyTorch's, in blocks, in columns and shared between threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.rows.scan import print_scan
from foundry.knowledge.compiler.ir.kernels import Apply, Expr, Load, Named, ScanKernel, Store, View
from foundry.knowledge.opgraph import DType

Harness = Any
OPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.cumsum(-1),
    "prod": lambda x: x.cumprod(-1),
    "max": lambda x: x.cummax(-1)[0],
    "min": lambda x: x.cummin(-1)[0],
    "logsumexp": lambda x: x.logcumsumexp(-1),
}


def scan(
    op: Any, shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType = "float32", **more: Any
) -> ScanKernel:
    value: Expr = Load("x", View(0, strides), dtype)
    return ScanKernel("scan", shape, op, value, (Store("y", View(0, strides), Named("acc", dtype)),), dtype, **more)


@pytest.mark.parametrize("algorithm", ["blocks", "serial"])
@pytest.mark.parametrize("op", sorted(OPS))
@pytest.mark.parametrize("length", [33, 1000])
def test_rows(cpu_kernel: Harness, op: str, algorithm: str, length: int) -> None:
    x = torch.rand(50, length, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.8
    y = torch.empty_like(x)
    cpu_kernel.run(scan(op, (50, length), (length, 1)), print_scan, {"x": x}, {"y": y}, {"algorithm": algorithm})
    truth = OPS[op](x.double())
    assert (y.double() - truth).norm() <= 2 * (OPS[op](x).double() - truth).norm() + 1e-6


@pytest.mark.parametrize("algorithm", ["blocks", "serial"])
@pytest.mark.parametrize("op", ["sum", "max", "min", "logsumexp"])
def test_special_values(cpu_kernel: Harness, op: str, algorithm: str) -> None:
    specials = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.0, 2.0, 3.0, 4.0])
    x = specials[torch.randint(0, 8, (300, 100), generator=torch.Generator().manual_seed(1))]
    x[:100] = x[:100].nan_to_num(0.5, 5.0, -5.0)
    y = torch.empty_like(x)
    cpu_kernel.run(scan(op, (300, 100), (100, 1)), print_scan, {"x": x}, {"y": y}, {"algorithm": algorithm})
    assert torch.allclose(y, OPS[op](x), rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("choices", [{}, {"tile": 16}])
def test_strided_dimension_runs_many_rows_side_by_side(cpu_kernel: Harness, choices: dict[str, Choice]) -> None:
    x = torch.randn(3, 200, 70)
    y = torch.empty_like(x)
    printed = cpu_kernel.run(scan("sum", (3, 70, 200), (14000, 1, 70)), print_scan, {"x": x}, {"y": y}, choices)
    assert "carry[l]" in printed.functions
    assert torch.allclose(y, x.double().cumsum(1).float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("parallel", ["rows", "within"])
def test_one_long_row(cpu_kernel: Harness, parallel: str) -> None:
    x = torch.randn(1, 100_003)
    y = torch.empty_like(x)
    choices: dict[str, Choice] = {"parallel": parallel}
    cpu_kernel.run(scan("sum", (1, 100_003), (100_003, 1)), print_scan, {"x": x}, {"y": y}, choices)
    truth = x.double().cumsum(1)
    assert (y.double() - truth).norm() <= 2 * (x.cumsum(1).double() - truth).norm()


@pytest.mark.parametrize("algorithm", ["blocks", "serial"])
def test_reverse_and_exclusive(cpu_kernel: Harness, algorithm: str) -> None:
    x = torch.randn(20, 100)
    total = x.double().flip(1).cumsum(1).flip(1)
    y = torch.empty_like(x)
    choices: dict[str, Choice] = {"algorithm": algorithm}
    cpu_kernel.run(scan("sum", (20, 100), (100, 1), reverse=True), print_scan, {"x": x}, {"y": y}, choices)
    assert torch.allclose(y, total.float(), atol=1e-5)
    cpu_kernel.run(
        scan("sum", (20, 100), (100, 1), reverse=True, exclusive=True), print_scan, {"x": x}, {"y": y}, choices
    )
    assert torch.allclose(y, (total - x.double()).float(), atol=1e-5)


def test_integers_and_an_epilogue(cpu_kernel: Harness) -> None:
    x = torch.randint(-9, 9, (30, 77))
    y = torch.empty_like(x)
    cpu_kernel.run(scan("sum", (30, 77), (77, 1), "int64"), print_scan, {"x": x}, {"y": y})
    assert torch.equal(y, x.cumsum(1))
    z, mask, out = torch.randn(30, 77), torch.rand(30, 77) > 0.5, torch.empty(30, 77)
    masked = Apply(
        "mul",
        (Load("x", View(0, (77, 1)), "float32"), Apply("cast", (Load("m", View(0, (77, 1)), "bool"),), "float32")),
        "float32",
    )
    store = Store("y", View(0, (77, 1)), Apply("relu", (Named("acc", "float32"),), "float32"))
    kernel = ScanKernel("masked", (30, 77), "sum", masked, (store,), "float32")
    cpu_kernel.run(kernel, print_scan, {"x": z, "m": mask}, {"y": out})
    assert torch.allclose(out, torch.relu((z * mask).cumsum(1)), atol=1e-5)


@pytest.mark.parametrize("choices", [{"algorithm": "blocks"}, {"algorithm": "serial"}])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("length", [34, 95, 128])
def test_stores_use_the_value_that_was_added(
    cpu_kernel: Harness, choices: dict[str, Choice], exclusive: bool, length: int
) -> None:
    """A value is worked out once for the running total and for what is stored; lengths end inside a block, between
    blocks and with a whole number of them."""
    view = View(0, (length, 1))
    x, y = torch.randn(70, length).bfloat16(), torch.empty(70, length)
    value = Apply("exp", (Apply("cast", (Load("x", view, "bfloat16"),), "float32"),), "float32")
    total = Apply("sub", (Named("acc", "float32"), value), "float32")
    kernel = ScanKernel("own", (70, length), "sum", value, (Store("y", view, total),), "float32", exclusive=exclusive)
    printed = cpu_kernel.run(kernel, print_scan, {"x": x}, {"y": y}, choices)
    assert printed.functions.count("math::exp(") == 1
    added = x.double().exp()
    truth = added.cumsum(1) - added * (2 if exclusive else 1)
    assert torch.allclose(y.double(), truth, rtol=1e-5, atol=1e-4)


def test_rows_side_by_side_use_the_value_that_was_added(cpu_kernel: Harness) -> None:
    x, y = torch.randn(3, 50, 70), torch.empty(3, 50, 70)
    view = View(0, (3500, 1, 70))
    value = Apply("exp", (Load("x", view, "float32"),), "float32")
    store = Store("y", view, Apply("sub", (Named("acc", "float32"), value), "float32"))
    printed = cpu_kernel.run(
        ScanKernel("own", (3, 70, 50), "sum", value, (store,), "float32"), print_scan, {"x": x}, {"y": y}
    )
    assert "carry[l]" in printed.functions
    assert printed.functions.count("math::exp(") == 1
    assert torch.allclose(y.double(), x.double().exp().cumsum(1) - x.double().exp(), rtol=1e-5, atol=1e-4)
