"""Counts output elements that cannot be right without computing, and how many an ablated candidate still has right.

Elements equal to a common constant, or to a value in the inputs or parameters, prove no arithmetic: kernels work in
place, bindings pad and copy. Runs in the judge (imports torch).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from foundry.tools.protocol.comparison import Expected

SAMPLE = 1 << 16  # elements compared in each output
LARGEST_SHARE = 0.05  # share of elements that may be right without native code
FILLS = (0.0, 1.0, -1.0)  # constants that prove no computation
PIECE = 1 << 24  # elements of an input searched at a time
WINDOW = 8  # elements in a run that must be computed
PLACES = 2  # runs wanted
PLACES_TRIED = 8  # most runs tried
FEWEST = 3  # non-zero elements that a run needs
LOOKED_AT = 1 << 20  # elements among which runs are sought
FEW = 16  # elements that a native function's return value may explain
Given = Callable[[], Iterable[torch.Tensor]]


@dataclass(frozen=True)
class Earned:
    """Number of elements that had to be computed, and how many of them are right."""

    needed: int
    right: int

    @property
    def share(self) -> float:
        """The part of the needed elements that is right, 0 to 1."""
        return self.right / self.needed if self.needed else 0.0

    def condemns(self, *, at_least: int = 1) -> bool:
        """True if more is right than an answer without computation can explain."""
        return self.right >= at_least and self.share > LARGEST_SHARE


def measure_earned(
    outputs: Sequence[torch.Tensor], expected: Sequence[Expected], given: Given, before: Sequence[torch.Tensor] = ()
) -> Earned:
    """How many elements of all outputs had to be computed, and how many of these are right.

    `given` yields the inputs and parameters from which values may have been copied, each time anew. `before`: the
    inputs that forward writes to, as they were before it; an element that hardly changes there is right without work.
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
        for old in before:
            if old.shape == output.shape and old.dtype == output.dtype:
                must &= ~_close(old.reshape(-1)[places.to(old.device)].cpu(), truth, bound)
        if int((must & is_right).sum()) > LARGEST_SHARE * int(must.sum()):  # only then the search is worth its time
            must &= ~_stands_in(truth.to(flat.dtype), given())
        needed += int(must.sum())
        right += int((must & is_right).sum())
    return Earned(needed, right)


def telling_places(truth: torch.Tensor, given: Given, generator: random.Random) -> list[int]:
    """Row-major offsets of at most PLACES windows of WINDOW elements that a kernel had to compute.

    The elements of such a window, apart from zeros, differ from each other and from all tensors of `given`.
    """
    size = truth.numel()
    if not truth.is_floating_point() or size < WINDOW:
        return []
    start = generator.randrange(max(1, size - LOOKED_AT + 1))
    flat = truth.detach().reshape(-1)[start : start + LOOKED_AT].cpu()
    counts = (flat != 0).to(torch.float32).unfold(0, WINDOW, 1).sum(1)
    begins = torch.nonzero(counts >= max(FEWEST, float(counts.max()))).reshape(-1)
    found: list[int] = []
    for _ in range(PLACES_TRIED if len(begins) else 0):
        place = int(begins[generator.randrange(len(begins))])
        values = flat[place : place + WINDOW]
        filled = torch.nonzero(values).reshape(-1)
        is_telling = bool(torch.isfinite(values).all()) and torch.unique(values[filled]).numel() == filled.numel()
        if is_telling and not any(_holds_close(part, values, *filled[:2].tolist()) for part in _parts(given())):
            found.append(start + place)
        if len(found) == PLACES:
            break
    return found


def _parts(given: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Floating tensors, some elements of one at a time, so that what lies near each other is in one part."""
    for tensor in given:
        flat = tensor.reshape(-1)
        for start in range(0, flat.numel() if flat.is_floating_point() else 0, PIECE):
            yield flat[start : start + PIECE + WINDOW]


def _holds_close(tensor: torch.Tensor, values: torch.Tensor, first: int, second: int) -> bool:
    """True if a tensor holds `values[first]` and `values[second]`, to 1e-6, at the same distance from each other."""
    apart, tensor = second - first, tensor.to(values.device, values.dtype)
    one = (tensor[: len(tensor) - apart] - values[first]).abs() <= 1e-6 * values[first].abs()
    other = (tensor[apart:] - values[second]).abs() <= 1e-6 * values[second].abs()
    return bool((one & other).any()) if len(tensor) > apart else False


def _close(values: torch.Tensor, truth: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Elementwise: within the bound of the truth (equal, for integers)."""
    if not truth.is_floating_point():
        return values == truth
    return (values.double() - truth).abs() <= bound


def _stands_in(values: torch.Tensor, given: Iterable[torch.Tensor]) -> torch.Tensor:
    """A bool tensor in the shape of `values`: True for values found, bit for bit, in a given tensor of their dtype.

    16-bit values occur everywhere by chance, so none of them counts as copied.
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
