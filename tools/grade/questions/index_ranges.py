"""Finds out how a model uses its integer inputs, and draws others of the same use. Runs in the judge.

An index as `get_inputs` draws it may leave most of a table out; a kernel must be right for every row. Lengths, offsets
and classes are often the same in every draw; a kernel must be right for others too. Integers of any other use may have
a meaning that their values alone do not show, so they are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.questions import patterns
from foundry.tools.grade.questions.integers.counts import Counts, Kind, draw_counts
from foundry.tools.grade.questions.integers.watching import (
    BOUNDS,
    FACTORS,
    NUMBERS,
    TOTALS,
    WIDE,
    IntegerWatcher,
    is_integer,
)
from foundry.tools.protocol.rules import COUNTS, INDICES, Pattern
from foundry.tools.task import bundle

NEAR = 8  # redrawn factors lie within this part of the largest
# Bits by which 64-bit factors may grow: a kernel that holds fewer bits of a product is wrong then.
GROWTHS = range(24, -1, -2)


def index_ranges(run: Callable[[], object], tensors: Sequence[torch.Tensor]) -> list[Kind]:
    """The use of each tensor's integers: a positive n for indices from 0 to n - 1, a kind, or None if unknown.

    NUMBERS: only converted to floating numbers. BOUNDS: only offsets of bags. TOTALS: 64-bit integers that are only
    added up, with no use of the sums. FACTORS: only multiplied, added, summed and chosen from, like their results.
    WIDE: only bits, remainders, divisors, sizes or signs are taken. Counts: read by Python, or compared; `with_limits`
    says which are valid. `run` calls the model on these very tensors.
    """
    watcher = IntegerWatcher(tensors)
    with watcher:
        run()
    return [watcher.kind_of(tensor) for tensor in tensors]


def changes_any(kinds: Sequence[Kind], pattern: Pattern) -> bool:
    """True if a pattern of OF_INTEGERS changes integers of any of these kinds."""
    if pattern in (*COUNTS, "other indices") and any(isinstance(kind, Counts) for kind in kinds):
        return True
    least = WIDE if pattern == "other indices" else 1
    return pattern in INDICES and any(isinstance(kind, int) and kind >= least for kind in kinds)


def redraw_each(
    inputs: Sequence[Any], kinds: Sequence[Kind], generator: torch.Generator, pattern: Pattern
) -> list[Any]:
    """The inputs with other integers by a pattern of OF_INTEGERS.

    What is given twice stays twice: equal lengths, offsets or classes, and the lengths of the parts between offsets.
    """
    tensors = bundle.tensors_in(list(inputs))
    drawn: dict[int, torch.Tensor] = {}
    known: list[tuple[str, torch.Tensor, torch.Tensor]] = []  # (meaning, as given, as drawn)
    for number in sorted(range(len(tensors)), key=lambda number: not _is_list_of_offsets(kinds[number])):
        tensor, kind = tensors[number], kinds[number]
        meaning, old = kind.meaning if isinstance(kind, Counts) else "", tensor.long() if is_integer(tensor) else tensor
        same = next((new for means, given, new in known if means == meaning and torch.equal(given, old)), None)
        drawn[number] = redraw(tensor, kind, generator, pattern) if same is None else same.to(tensor.dtype)
        if meaning and same is None:
            new = drawn[number].long()
            known.append((meaning, old, new))
            known += [("lengths", old.diff(), new.diff())] if meaning == "offsets" else []
    each = iter(range(len(tensors)))
    return list(bundle.map_tensors(list(inputs), lambda _: drawn[next(each)]))


def _is_list_of_offsets(kind: Kind) -> bool:
    return isinstance(kind, Counts) and kind.meaning == "offsets"


def redraw(
    tensor: torch.Tensor, kind: Kind, generator: torch.Generator, pattern: Pattern = "other indices"
) -> torch.Tensor:
    """Other integers of the kind that `index_ranges` found; the same ones if they may mean anything.

    The patterns `equal indices` and `paired indices` change only indices, and those of COUNTS only Counts.
    """
    if isinstance(kind, Counts):
        if pattern not in (*COUNTS, "other indices"):
            return tensor
        return patterns.keep_layout(tensor, draw_counts(tensor, kind, pattern, generator))
    if pattern in COUNTS:
        return tensor
    if pattern != "other indices":
        share = 1.0 if pattern == "equal indices" else 0.0
        return reindex(tensor, kind, generator, share, are_paired=not share) if kind and kind > 0 else tensor
    if kind == NUMBERS:
        return patterns.shuffle_rows(tensor, generator)
    if kind == TOTALS:
        return enlarge(tensor)
    if kind == WIDE:
        drawn = widen(tensor, generator) if tensor.dtype == torch.int64 else tensor
        return some_special(drawn, generator)
    if kind is not None and kind <= FACTORS:
        return agree(tensor, generator, FACTORS - kind)
    if kind == BOUNDS:
        return rebound(tensor, generator)
    return reindex(tensor, kind, generator) if kind else tensor


def without_overflow(ranges: list[Kind], inputs: Any, run: Callable[[Any], list[torch.Tensor]]) -> list[Kind]:
    """`ranges` with FACTORS lowered by the bits that 64-bit factors may grow: as many as the reference's integers hold.

    None for factors that overflow even without growth: a kernel with wider integers would be right. A run in float64
    shows overflow; `run` gives the reference's outputs.
    """
    if FACTORS not in ranges:
        return ranges

    def grown(growth: int) -> list[Kind]:
        """The ranges with each factor of 64 bits moved by `growth` kinds to larger numbers."""
        wide = [item.dtype == torch.int64 for item in bundle.tensors_in(inputs)]
        return [
            FACTORS - growth * is_wide if kind == FACTORS else kind for kind, is_wide in zip(ranges, wide, strict=True)
        ]

    def outputs(kinds: list[Kind], *, as_floats: bool) -> list[torch.Tensor]:
        """The model's outputs as float64 on inputs redrawn with these ranges, as integers or as floats."""
        each = iter(kinds)

        def drawn(tensor: torch.Tensor) -> torch.Tensor:
            """One input redrawn in its range if it is a factor; else a copy."""
            kind = next(each)
            if not isinstance(kind, int) or kind > FACTORS or kind == WIDE:
                return tensor.clone()
            agreed = redraw(tensor, kind, torch.Generator(tensor.device).manual_seed(0))
            return agreed.double() if as_floats else agreed

        return [item.double() for item in run(bundle.map_tensors(inputs, drawn))]

    for kinds in map(grown, GROWTHS):
        try:
            pairs = zip(outputs(kinds, as_floats=False), outputs(kinds, as_floats=True), strict=True)
            if all(torch.allclose(own, wide, rtol=1e-9) for own, wide in pairs):
                return kinds
        except (TaskError, RuntimeError):
            continue
    return [None if kind == FACTORS else kind for kind in ranges]


def reindex(
    index: torch.Tensor, count: int, generator: torch.Generator, crowded: float = 0.5, *, are_paired: bool = False
) -> torch.Tensor:
    """Other indices from 0 to `count` - 1 in any order, the share `crowded` of them equal.

    A kernel may rely on no order, nor on room for the usual number of equal ones. `are_paired`: the second half
    repeats the first. Negative indices, which mean "none" or count from the end, stay. Distinct indices stay
    distinct.
    """
    places = patterns.whole(0, count, index.shape, generator)
    crowd = patterns.whole(0, count, (), generator)
    drawn = torch.where(patterns.uniform(index.shape, generator) < crowded, crowd, places)
    if are_paired:
        half = index.numel() // 2
        flat = drawn.reshape(-1)
        drawn = torch.cat([flat[:half], flat[:half], flat[2 * half :]]).reshape(index.shape)
    if index.numel() > 1 and index.numel() <= count and len(set(index.flatten().tolist())) == index.numel():
        order = torch.randperm(count, generator=generator, device=generator.device)
        drawn = order[: index.numel()].reshape(index.shape)
    return patterns.keep_layout(index, torch.where(index < 0, index, drawn.to(index.dtype)))


def rebound(bounds: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other offsets of bags between the first and the last one: a quarter of the entries in one bag, other bags empty.

    Offsets that do not ascend stay.
    """
    if bounds.dim() != 1 or bounds.numel() < 3 or not bool((bounds.diff() >= 0).all()):
        return bounds
    low, high = int(bounds[0]), int(bounds[-1])
    quarter = (high - low) // 4
    start = low + int(patterns.whole(0, high - low - quarter + 1, (), generator))
    drawn = patterns.whole(low, high + 1, bounds.shape, generator)
    drawn = torch.where((drawn > start) & (drawn < start + quarter), start, drawn).sort().values
    drawn[0], drawn[-1] = low, high
    return patterns.keep_layout(bounds, drawn.to(bounds.dtype))


def enlarge(value: torch.Tensor) -> torch.Tensor:
    """64-bit integers times a power of two, so that the largest is about 2**36.

    Totals no longer fit 32 bits then, and totals of 2**26 of them still fit 64.
    """
    largest = int(value.abs().max()) if value.numel() else 0
    return value * (1 << max(0, 36 - largest.bit_length()))


def agree(value: torch.Tensor, generator: torch.Generator, growth: int = 0) -> torch.Tensor:
    """Integers near 2**`growth` times the largest that occurs, all of its sign; zeros stay.

    Sums of them and of their products are as large as the input's range allows, while those of usual draws cancel.
    """
    wide = value.long().flatten()
    largest = int(wide[wide.abs().argmax()]) << growth if value.numel() else 0
    sizes = patterns.whole(abs(largest) - abs(largest) // NEAR, abs(largest) + 1, value.shape, generator)
    drawn = (-sizes if largest < 0 else sizes).to(value.dtype)
    return patterns.keep_layout(value, torch.where(value == 0, value, drawn))


def some_special(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half of the integers become powers of two, their neighbours, or Fibonacci numbers, up to the largest that occurs.

    Fibonacci numbers need the most steps in Euclid's algorithm. Signs and zeros stay.
    """
    largest = max(1, int(value.abs().max())) if value.numel() else 1
    pool = {(1 << bit) + apart for bit in range(largest.bit_length()) for apart in (-1, 0, 1)}
    low, high = 1, 2
    while low <= largest:
        pool.add(low)
        low, high = high, low + high
    numbers = torch.tensor(sorted(item for item in pool if 0 < item <= largest), device=value.device)
    chosen = numbers[patterns.whole(0, len(numbers), value.shape, generator)]
    chosen = torch.where(value < 0, -chosen, chosen) * (value != 0)
    is_kept = patterns.uniform(value.shape, generator) < 0.5
    return patterns.keep_layout(value, torch.where(is_kept, value, chosen.to(value.dtype)))


def widen(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """64-bit integers from 2**61 to 2**62 with the old signs; zeros stay."""
    sizes = patterns.whole(1 << 61, 1 << 62, value.shape, generator)
    return patterns.keep_layout(value, torch.where(value < 0, -sizes, sizes) * (value != 0))
