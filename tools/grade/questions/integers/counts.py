"""Integers that say how long, where parts begin, or which class: what they are, and other ones of the same meaning.

Runs in the judge (imports torch).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from foundry.tools.protocol.rules import Pattern

BLOCK = 16  # lengths come near its multiples, where pages and vectors end
SKEWED = 0.75  # share of the elements that get one class in `uneven lengths`


@dataclass(frozen=True)
class Counts:
    """Integers that Python reads, or that the model compares.

    - `lengths`: read, or compared with places; others from `low` to `high` are valid. `keeps_sum`: only such as have
      the sum of those given. `only_less`: only such as are no larger than those given, element by element.
    - `offsets`: ascending from 0, so that parts lie between them; parts of `low` to `high` elements are valid.
    - `classes`: only asked which they are; `values` are valid. `ascends`: in rows of ascending order only.
    """

    meaning: Literal["lengths", "offsets", "classes"]
    low: int = 0
    high: int = 0
    keeps_sum: bool = False
    only_less: bool = False
    ascends: bool = False
    values: tuple[int, ...] = ()


Kind = int | Counts | None  # the use of a tensor's integers, as `index_ranges` gives it


def are_offsets(values: torch.Tensor) -> bool:
    """True for a list that ascends from 0 and has at least two parts."""
    if values.dim() != 1 or values.numel() < 3 or int(values[0]):
        return False
    return int(values[-1]) > 0 and bool((values.diff() >= 0).all())


def draw_counts(given: torch.Tensor, counts: Counts, pattern: Pattern, stream: torch.Generator) -> torch.Tensor:
    """Other integers of the same meaning by a pattern (rules.Distribution), contiguous, in the same shape and type."""
    if counts.meaning == "classes":
        drawn = _classes(given, counts, pattern, stream)
    elif counts.meaning == "offsets" or counts.keeps_sum:
        is_list = counts.meaning == "offsets"
        total, number = (int(given[-1]), len(given) - 1) if is_list else (int(given.sum()), given.numel())
        chance = random.Random(int(torch.randint(1 << 31, (), generator=stream, device=stream.device)))
        parts = part_sizes(total, number, (counts.low, counts.high), pattern, chance)
        found = list(itertools.accumulate(parts, initial=0)) if is_list else parts
        drawn = torch.tensor(found, device=given.device) if parts else given
    else:
        drawn = _in_order_of(given, _lengths(given.numel(), counts, pattern, stream))
    drawn = drawn.reshape(given.shape).to(given.dtype)
    return torch.minimum(drawn, given) if counts.only_less else drawn


def part_sizes(total: int, number: int, limits: tuple[int, int], pattern: Pattern, chance: random.Random) -> list[int]:
    """`number` sizes within `limits` that add up to `total`; [] if there are none.

    `short lengths`: all in one part, or in few if it has no room. `full lengths`: equal parts. `uneven lengths`: half
    of what is left in each part of a random order, so that most are nearly empty. Otherwise cut at random places.
    """
    low, high = limits
    if number < 1 or not low * number <= total <= high * number:
        return []
    rest = total - low * number
    order = chance.sample(range(number), number)
    if pattern == "full lengths":
        wished = [rest // number] * number
    elif pattern == "short lengths":
        wished = [0] * number
    elif pattern == "uneven lengths":
        wished, left = [0] * number, rest
        for place in order:
            wished[place] = (left + 1) // 2
            left -= wished[place]
    else:
        cuts = sorted(chance.randint(0, rest) for _ in range(number - 1))
        wished = [end - begin for begin, end in itertools.pairwise([0, *cuts, rest])]
    sizes = [min(high, low + size) for size in wished]
    left = total - sum(sizes)
    for place in order:
        more = min(left, high - sizes[place])
        sizes[place], left = sizes[place] + more, left - more
    return sizes


def _in_order_of(given: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The drawn lengths in the order of those given, if these ascend or descend (as packed sequences do)."""
    if given.dim() != 1 or len(given) < 3 or int(given.min()) == int(given.max()):
        return drawn
    steps = given.long().diff()
    is_rising, is_falling = bool((steps >= 0).all()), bool((steps <= 0).all())
    return drawn.sort(descending=is_falling).values if is_rising or is_falling else drawn


def _whole(low: int, high: int, shape: Sequence[int], stream: torch.Generator) -> torch.Tensor:
    """Integers from `low` to `high`, both included."""
    return torch.randint(low, max(low, high) + 1, tuple(shape), generator=stream, device=stream.device)


def _lengths(number: int, counts: Counts, pattern: Pattern, stream: torch.Generator) -> torch.Tensor:
    """`number` lengths within the limits.

    `short lengths`: the least or one more. `full lengths`: the largest. `uneven lengths`: one the largest, one less by
    one, the rest short. Otherwise any, half of them beside a multiple of BLOCK.
    """
    low, high = counts.low, counts.high
    if pattern == "short lengths":
        return _whole(low, min(low + 1, high), (number,), stream)
    if pattern == "full lengths":
        return torch.full((number,), high, device=stream.device)
    if pattern == "uneven lengths":
        drawn = _whole(low, min(low + 3, high), (number,), stream)
        first, second = torch.randperm(max(2, number), generator=stream, device=stream.device)[:2].tolist()
        if number > 1:
            drawn[first] = high
        drawn[second % number] = max(low, high - 1)
        return drawn
    drawn = _whole(low, high, (number,), stream)
    beside = BLOCK * _whole(0, high // BLOCK, (number,), stream) + _whole(-1, 1, (number,), stream)
    is_beside = _whole(0, 1, (number,), stream) > 0
    return torch.where(is_beside, beside.clamp(low, high), drawn)


def _classes(given: torch.Tensor, counts: Counts, pattern: Pattern, stream: torch.Generator) -> torch.Tensor:
    """Other classes: all equal, two only, one missing beside one that most elements have, or any.

    Rows of different classes (the experts of one token) stay rows of different ones.
    """
    values = torch.tensor(counts.values, device=given.device)
    values = values[torch.randperm(len(values), generator=stream, device=stream.device)]
    each = given.shape[-1] if given.dim() > 1 and _are_distinct(given) else 1
    rows, count = given.numel() // max(1, each), len(values)
    if pattern == "short lengths":
        chosen = torch.zeros(rows, dtype=torch.int64, device=given.device)
    elif pattern == "full lengths":
        chosen = _whole(0, 1, (rows,), stream)
    elif pattern == "uneven lengths":
        others = _whole(0, max(1, count - 2), (rows,), stream)
        is_common = torch.rand((rows,), generator=stream, device=stream.device) < SKEWED
        chosen = torch.where(is_common, 0, others)
    else:
        chosen = _whole(0, count - 1, (rows,), stream)
    steps = torch.arange(each, device=given.device)
    drawn = values[(chosen[:, None] + steps) % count].reshape(given.shape)
    return drawn.sort(dim=-1).values if counts.ascends else drawn


def _are_distinct(given: torch.Tensor) -> bool:
    """True if no row holds a number twice."""
    return bool((given.sort(dim=-1).values.diff(dim=-1) != 0).all())
