"""Finds answers that overflow their dtype, or nearly do. They prove nothing: which intermediate result becomes infinite
depends on the order of the operations. Runs in the judge (imports torch).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foundry.knowledge.errors import TaskError

MOST_LOST = 0.5  # share of an output that may overflow under stress
_LARGEST = {torch.float16: float("inf")}  # sums of them are carried in float32


class Overflow(TaskError):
    """The reference's outputs overflow, or nearly do, on these inputs."""


def overflowing(outputs: Sequence[torch.Tensor]) -> float:
    """The largest share (0 to 1) of an output's elements that are infinite, NaN, or so large that partial results in
    another order may be infinite."""
    floating = [item for item in outputs if item.is_floating_point() and item.numel()]
    return max((1.0 - int(_is_moderate(item).sum()) / item.numel() for item in floating), default=0.0)


def _is_moderate(output: torch.Tensor) -> torch.Tensor:
    return output.abs() < _LARGEST.get(output.dtype, 2.0**96)


def excuse_overflow(truth: torch.Tensor, own: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Truth and PyTorch's output, changed so that any value is accepted where they overflow, or nearly do."""
    if not own.is_floating_point():
        return truth, own
    left_out = ~_is_moderate(own)
    return truth.masked_fill(left_out, float("inf")), own.masked_fill(left_out, 0.0)
