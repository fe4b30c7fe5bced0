"""Complex numbers and floats of 8 bits, changed as real numbers of 32 bits are. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from foundry.tools.task.form.values import as_real, from_real


def as_reals(values: Iterable[Any]) -> list[Any]:
    """The values, tensors among them `as_real`."""
    return [as_real(value) if isinstance(value, torch.Tensor) else value for value in values]


def again(values: Iterable[Any], likes: Iterable[Any]) -> list[Any]:
    """Values that were changed as real numbers, each in the type of the one that it was."""
    pairs = zip(values, likes, strict=True)
    return [from_real(value, like) if isinstance(like, torch.Tensor) else value for value, like in pairs]
