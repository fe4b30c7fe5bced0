"""Which elements of an output somebody must have computed, and how many of them an ablated candidate still has right.

An element that is a constant anybody could fill in, or a value that stands somewhere in the inputs or parameters,
proves no arithmetic: a kernel works in place, a binding pads and copies. Runs in the judge (imports torch).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foundry.tools.protocol.comparison import Expected

SAMPLE = 1 << 16  # elements looked at in each output
LARGEST_SHARE = 0.05  # of right elements without native code
FILLS = (0.0, 1.0, -1.0)
PIECE = 1 << 24  # elements of an input looked through at a time
WINDOW, PLACES, PLACES_TRIED = 8, 2, 8  # elements in a row that nobody can know without having computed them
FEWEST, LOOKED_AT = 3, 1 << 20  # of them that are not zero, and elements among which such a row is looked for
FEW = 16  # elements that a native function's return value may explain


@dataclass(frozen=True)
class Earned:
    """Elements that had to be computed, and how many of them are right."""

    needed: int
    right: int

    @property
    def share(self) -> float:
        return self.right / self.needed if self.needed else 0.0

    def condemns(self, *, at_least: int = 1) -> bool:
        """Whether too much is right for an answer that nobody computed."""
        return self.right >= at_least and self.share > LARGEST_SHARE


def measure_earned(
    outputs: Sequence[torch.Tensor], expected: Sequence[Expected], given: Sequence[torch.Tensor]
) -> Earned:
    """How many elements of all outputs had to be computed, and how many of these are right.

    `given` are the inputs and parameters from which values may have been copied.
    """
    needed = right = 0
    generator = torch.Generator().manual_seed(len(expected))
    for output, item in zip(outputs, expected, strict=True):
        flat = output.detach().reshape(-1)
        if flat.numel() > SAMPLE:
            places = torch.randint(0, flat.numel(), (SAMPLE,), generator=generator)
        else:
            places = torch.arange(flat.numel())
        truth = item.truth[places.to(item.truth.device)].cpu()
        bound = item.tolerance * (truth.double().abs() + item.spread)
        is_right = _close(flat[places.to(flat.device)].cpu(), truth, bound)
        must = torch.isfinite(truth) if item.is_floating else torch.ones_like(is_right)
        for fill in FILLS:
            must &= (truth.double() - fill).abs() > bound
        if int((must & is_right).sum()) > LARGEST_SHARE * int(must.sum()):  # only then the search is worth its time
            must &= ~_stands_in(truth.to(flat.dtype), given)
        needed += int(must.sum())
        right += int((must & is_right).sum())
    return Earned(needed, right)


def telling_places(truth: torch.Tensor, given: Sequence[torch.Tensor], generator: random.Random) -> list[int]:
    """Where, in row-major order, WINDOW elements in a row begin that somebody had to compute: beside zeros they are
    different from each other and from all that is given. A few places, none where there are none."""
    size = truth.numel()
    if not truth.is_floating_point() or size < WINDOW:
        return []
    start = generator.randrange(max(1, size - LOOKED_AT + 1))
    flat = truth.detach().reshape(-1)[start : start + LOOKED_AT].cpu()
    near = [tensor.reshape(-1).to(flat.dtype) for tensor in given if tensor.is_floating_point()]
    counts = (flat != 0).to(torch.float32).unfold(0, WINDOW, 1).sum(1)
    begins = torch.nonzero(counts >= max(FEWEST, float(counts.max()))).reshape(-1)
    found: list[int] = []
    for _ in range(PLACES_TRIED if len(begins) else 0):
        place = int(begins[generator.randrange(len(begins))])
        values = flat[place : place + WINDOW]
        filled = torch.nonzero(values).reshape(-1)
        is_telling = bool(torch.isfinite(values).all()) and torch.unique(values[filled]).numel() == filled.numel()
        if is_telling and not any(_holds_close(tensor, values, *filled[:2].tolist()) for tensor in near):
            found.append(start + place)
        if len(found) == PLACES:
            break
    return found


def _holds_close(tensor: torch.Tensor, values: torch.Tensor, first: int, second: int) -> bool:
    """Whether a tensor holds, as far from each other, nearly two of the values."""
    apart = second - first
    one = (tensor[: len(tensor) - apart] - values[first]).abs() <= 1e-6 * values[first].abs()
    other = (tensor[apart:] - values[second]).abs() <= 1e-6 * values[second].abs()
    return bool((one & other).any()) if len(tensor) > apart else False


def _close(values: torch.Tensor, truth: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    if not truth.is_floating_point():
        return values == truth
    return (values.double() - truth).abs() <= bound


def _stands_in(values: torch.Tensor, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Which values occur, bit for bit, in tensors of the same dtype.

    16-bit values occur everywhere by chance; there, nothing counts as copied.
    """
    found = torch.zeros(values.shape, dtype=torch.bool)
    if values.element_size() < 4:
        return found
    ordered = torch.unique(values)
    for tensor in given:
        if tensor.dtype == values.dtype and ordered.numel():
            sought = ordered.to(tensor.device)
            for flat in torch.split(tensor.reshape(-1), PIECE):
                places = torch.searchsorted(sought, flat).clamp_(max=ordered.numel() - 1)
                found |= torch.isin(values, torch.unique(flat[sought[places] == flat]).cpu())
    return found
