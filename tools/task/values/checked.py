"""Inputs that may decide otherwise than the example's, and the comparison of answers: a trace that follows reads of
values is run against its model before it is believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

_TOLERANCE = 1e-2  # share of the largest element; a wrong decision changes an answer by more


def varied(leaves: Sequence[Any]) -> Iterator[list[Any]]:
    """The inputs, then variants: numbers negated, all equal, and integers in another order."""
    yield list(leaves)
    yield [-item if _is_float(item) else _turned(item) for item in leaves]
    yield [torch.zeros_like(item) if _is_float(item) else item for item in leaves]


def _is_float(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.is_floating_point()


def _turned(item: Any) -> Any:
    """A tensor's elements in the opposite order of rows, so that other rows get each integer."""
    return item.flip(0) if isinstance(item, torch.Tensor) and item.dim() else item


def alike(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """True if two lists of results agree but for rounding."""
    return len(found) == len(wanted) and all(map(_is_close, found, wanted))


def _is_close(one: Any, other: Any) -> bool:
    """True for equal values, or tensors of the same shape and dtype within _TOLERANCE of the largest element."""
    if not isinstance(other, torch.Tensor) or not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    wide = torch.float64 if not other.is_complex() else torch.complex128
    size = other.to(wide).abs().nan_to_num(0.0, 0.0, 0.0).amax().item() if other.numel() else 0.0
    return torch.allclose(one.to(wide), other.to(wide), rtol=0.0, atol=_TOLERANCE * max(size, 1e-6), equal_nan=True)
