"""Inputs of two levels along their longest axis, like signals with an event in them, or of two rows. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

GIVEN_SHARE = 0.25  # share of the way from a level to the elements as given
ALIKE, OWN_SHARE = 0.75, 1 / 32  # share of the rows that are alike, and of the way from there to a row as given


def in_steps(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One level before a cut and another one behind it, along the longest axis (the first axis only of vectors).

    The levels are the elements at the first and at the last place, each moved by GIVEN_SHARE towards the elements as
    given.
    """
    axis, size = _longest_axis(value)
    if size < 2:
        return value
    lines = [len(value) if value.dim() > 1 else 1, *[1] * (value.dim() - 1)]
    cut = torch.randint(1, size, lines, generator=generator, device=generator.device)
    places = torch.arange(size, device=value.device)
    is_before = places.reshape([size if number == axis else 1 for number in range(value.dim())]) < cut
    levels = torch.where(is_before, value.narrow(axis, 0, 1), value.narrow(axis, size - 1, 1))
    return levels.lerp_(value, GIVEN_SHARE)


def with_ends_in_common(values: Sequence[Any]) -> list[Any]:
    """Floating inputs of one shape get the ends of the first of them, like signals that show the same events."""
    first: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}

    def with_ends(value: Any) -> Any:
        """A floating tensor with both ends of its longest axis from the first tensor of this shape and type; others
        unchanged."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        known, (axis, size) = first.setdefault((value.shape, value.dtype), value), _longest_axis(value)
        if known is value or size < 2:
            return value
        changed = value.clone()
        for place in (0, size - 1):
            changed.narrow(axis, place, 1).copy_(known.narrow(axis, place, 1))
        return changed

    return [with_ends(value) for value in values]


def in_alike_rows(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Rows that are nearly one of two rows of the input, most of them nearly the same."""
    if value.dim() < 2 or value.shape[-1] < 2:
        return value
    rows = value.reshape(-1, value.shape[-1])
    first, second = torch.randint(0, len(rows), (2,), generator=generator, device=generator.device).tolist()
    is_alike = torch.rand((len(rows), 1), generator=generator, device=generator.device) < ALIKE
    return torch.where(is_alike, rows[first], rows[second]).lerp_(rows, OWN_SHARE).reshape(value.shape)


def _longest_axis(value: torch.Tensor) -> tuple[int, int]:
    """(longest axis, its size); the first axis only if there is no other."""
    axis = max(range(int(value.dim() > 1), value.dim()), key=lambda axis: value.shape[axis], default=0)
    return axis, value.shape[axis] if value.dim() else 0
