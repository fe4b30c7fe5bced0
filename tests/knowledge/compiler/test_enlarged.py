"""Interpolation on the CPU: positions and weights of an axis stand in the kernel as constants of float64 arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.knowledge.compiler.lowering import check
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import Plan

Resize = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, tuple[tuple[int, ...], Resize]] = {
    "a line": ((2, 3, 9), lambda x: F.interpolate(x, size=21, mode="linear")),
    "an image, by its corners": (
        (2, 3, 5, 7),
        lambda x: F.interpolate(x, (9, 20), mode="bilinear", align_corners=True),
    ),
    "an image, smaller": ((2, 3, 15, 27), lambda x: F.interpolate(x, (4, 5), mode="bilinear")),
    "an image by a given factor": (
        (1, 3, 6, 7),
        lambda x: F.interpolate(x, scale_factor=(1.7, 2.3), mode="bilinear", recompute_scale_factor=False),
    ),
    "one pixel": ((2, 3, 1, 1), lambda x: F.interpolate(x, (3, 1), mode="bilinear", align_corners=True)),
    "a space": ((1, 2, 3, 4, 5), lambda x: F.interpolate(x, scale_factor=2, mode="trilinear")),
    "cubes": ((2, 3, 5, 7), lambda x: F.interpolate(x, (11, 13), mode="bicubic")),
}


def constants(planned: Plan) -> int:
    return sum(buffer.role == "constant" for buffer in planned.buffers.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_an_enlarged_tensor(name: str, dtype: torch.dtype) -> None:
    shape, resize = CASES[name]
    torch.manual_seed(0)
    planned = check(resize, torch.randn(shape, dtype=dtype), tolerance=1e-5 if dtype == torch.float32 else 1e-12)
    assert constants(planned) >= 4


def test_a_gpu_and_a_long_axis_work_positions_out() -> None:
    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, size=5000, mode="linear")

    assert constants(check(resize, torch.randn(1, 2, 700), tolerance=1e-3)) == 0
    assert constants(check(CASES["cubes"][1], torch.randn(1, 2, 3, 4), recipe=Recipe("cuda"))) == 0
