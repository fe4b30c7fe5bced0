"""Lets complex numbers and 8-bit floats be changed as real 32-bit numbers. Runs in the judge (imports torch)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from foundry.tools.task.form.values import as_real, from_real


def as_reals(values: Iterable[Any]) -> list[Any]:
    """The values, with tensors converted by `as_real`."""
    return [as_real(value) if isinstance(value, torch.Tensor) else value for value in values]


def again(values: Iterable[Any], likes: Iterable[Any]) -> list[Any]:
    """Changed real values converted back to the dtypes and layouts of `likes`."""
    pairs = zip(values, likes, strict=True)
    return [from_real(value, like) if isinstance(like, torch.Tensor) else value for value, like in pairs]
