"""Pooling on the CPU against PyTorch's: borders, dilation, ceil mode, counts, adaptive windows, indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch.nn import functional

from foundry.knowledge.compiler.cpu.pool import print_pool
from foundry.knowledge.compiler.ir.kernels import Load, Named, PoolKernel, Store, View
from foundry.knowledge.opgraph import contiguous_strides

Harness = Any
Sizes = tuple[int, ...]
Reference = Callable[[torch.Tensor], torch.Tensor]


def pool(
    op: Literal["max", "avg"],
    outer: Sizes,
    inputs: Sizes,
    outputs: Sizes,
    window: tuple[Sizes, Sizes, Sizes, Sizes],
    *,
    count_include_pad: bool = True,
    divisor: int | None = None,
    indices: bool = False,
) -> PoolKernel:
    value = Load("x", View(0, contiguous_strides(outer + inputs)), "float32")
    view = View(0, contiguous_strides(outer + outputs))
    stores = [Store("y", view, Named("acc", "float32"))]
    if indices:
        stores.append(Store("z", view, Named("index", "int64")))
    return PoolKernel(
        "pool", op, outer, inputs, outputs, *window, value, tuple(stores), "float32", count_include_pad, divisor
    )


def square(rank: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> tuple[Sizes, Sizes, Sizes, Sizes]:
    return (kernel,) * rank, (stride,) * rank, (padding,) * rank, (dilation,) * rank


CASES: list[tuple[str, Literal["max", "avg"], Sizes, tuple[Sizes, Sizes, Sizes, Sizes], dict[str, Any], Reference]] = [
    ("max", "max", (112, 60), square(2, 3, 2, 1), {}, lambda x: functional.max_pool2d(x, 3, 2, 1)),
    ("max even", "max", (30, 64), square(2, 2, 2, 0), {}, lambda x: functional.max_pool2d(x, 2)),
    (
        "max dilated, ceil",
        "max",
        (37, 41),
        ((3, 2), (2, 3), (1, 0), (2, 1)),
        {},
        lambda x: functional.max_pool2d(x, (3, 2), (2, 3), (1, 0), (2, 1), ceil_mode=True),
    ),
    ("avg", "avg", (57, 57), square(2, 3, 2, 1), {}, lambda x: functional.avg_pool2d(x, 3, 2, 1)),
    (
        "avg ceil without padding",
        "avg",
        (58, 57),
        square(2, 3, 2, 1),
        {"count_include_pad": False},
        lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    ("avg ceil", "avg", (58, 57), square(2, 3, 2, 1), {}, lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    (
        "avg divisor",
        "avg",
        (58, 57),
        square(2, 3, 2, 1),
        {"divisor": 5},
        lambda x: functional.avg_pool2d(x, 3, 2, 1, divisor_override=5),
    ),
    ("avg 1d", "avg", (500,), square(1, 8, 1, 4), {}, lambda x: functional.avg_pool1d(x, 8, 1, 4)),
    ("max 3d", "max", (9, 10, 11), square(3, 3, 2, 1), {}, lambda x: functional.max_pool3d(x, 3, 2, 1)),
    ("avg 3d", "avg", (9, 10, 11), square(3, 3, 2, 1), {}, lambda x: functional.avg_pool3d(x, 3, 2, 1)),
    ("adaptive avg", "avg", (58, 57), ((), (), (), ()), {}, lambda x: functional.adaptive_avg_pool2d(x, (7, 5))),
    ("adaptive max", "max", (58, 57), ((), (), (), ()), {}, lambda x: functional.adaptive_max_pool2d(x, (7, 5))),
]


@pytest.mark.parametrize("algorithm", ["separable", "direct"])
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_windows(cpu_kernel: Harness, case: Any, algorithm: str) -> None:
    _, op, inputs, window, more, reference = case
    x = torch.randn(3, 4, *inputs, generator=torch.Generator().manual_seed(0))
    if op == "max":
        x.view(-1)[::97] = float("nan")
        x.view(-1)[::89] = -float("inf")
    expected = reference(x)
    y = torch.empty_like(expected)
    kernel = pool(op, (3, 4), inputs, tuple(expected.shape[2:]), window, **more)
    cpu_kernel.run(kernel, print_pool, {"x": x}, {"y": y}, {"algorithm": algorithm})
    assert torch.allclose(y, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_maximum_with_indices(cpu_kernel: Harness) -> None:
    x = torch.randint(0, 5, (3, 4, 20, 21)).float()
    x[0, 0, :4, :4] = -float("inf")
    x[1, 1, 5, 5] = x[1, 1, 5, 6] = float("nan")
    expected, indices = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    y, z = torch.empty_like(expected), torch.empty_like(indices)
    kernel = pool("max", (3, 4), (20, 21), tuple(expected.shape[2:]), square(2, 3, 2, 1), indices=True)
    cpu_kernel.run(kernel, print_pool, {"x": x}, {"y": y, "z": z})
    assert torch.allclose(y, expected, equal_nan=True)
    assert torch.equal(z, indices)
