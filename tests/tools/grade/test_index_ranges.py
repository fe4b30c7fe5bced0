"""Integers of a task that may take other values, and the values they get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from foundry.tools.grade.questions.index_ranges import (
    agree,
    enlarge,
    index_ranges,
    redraw,
    reindex,
    without_overflow,
)
from foundry.tools.grade.questions.integers.counts import Counts
from foundry.tools.grade.questions.integers.watching import FACTORS, NUMBERS, TOTALS, WIDE


def test_equal_indices_are_equal_and_unique_ones_stay_unique() -> None:
    stream = torch.Generator().manual_seed(1)
    index = torch.randint(0, 50, (400,), generator=stream)
    made = redraw(index, 50, stream, "equal indices")
    assert len(set(made.tolist())) == 1 and 0 <= int(made[0]) < 50
    assert len(set(redraw(torch.arange(20), 50, stream, "equal indices").tolist())) == 20
    paired = redraw(index, 50, stream, "paired indices")
    assert torch.equal(paired[:200], paired[200:]) and len(set(paired.tolist())) > 40
    for kind in (None, NUMBERS, TOTALS, WIDE, FACTORS):
        assert torch.equal(redraw(index, kind, stream, "equal indices"), index)


def test_integers_that_are_divided_become_those_that_take_longest() -> None:
    """A greatest common divisor that gave up after 26 steps was right for all that is drawn at random."""
    stream = torch.Generator().manual_seed(1)
    pair = [torch.randint(-(2**31) + 1, 2**31, (60_000,), generator=stream, dtype=torch.int32) for _ in range(2)]
    assert index_ranges(lambda: torch.gcd(*pair), pair) == [WIDE, WIDE]

    def gcd_in(steps: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.long().abs(), b.long().abs()
        for _ in range(steps):
            a, b = torch.where(b == 0, a, b), torch.where(b == 0, b, a % b.clamp(min=1))
        return a

    assert torch.equal(gcd_in(40, *pair), torch.gcd(*pair).long())
    made = [redraw(item, WIDE, stream) for item in pair]
    assert all(torch.equal(one.sign(), other.sign()) for one, other in zip(made, pair, strict=True))
    assert int((gcd_in(40, *made) != torch.gcd(*made).long()).sum()) > 0
    assert torch.equal(gcd_in(60, *made), torch.gcd(*made).long())


def test_other_indices_crowd_and_keep_uniqueness_and_no_order() -> None:
    generator = torch.Generator().manual_seed(1)
    drawn = reindex(torch.randint(0, 100, (4000,)), 1000, generator)
    assert drawn.max() < 1000 and torch.bincount(drawn).max() > 900
    assert len(set(drawn.tolist())) > 500  # of 1000, where get_inputs drew the first hundred only
    ascending = reindex(torch.arange(4000) // 40, 100, generator)
    assert not bool((ascending.diff() >= 0).all()) and torch.bincount(ascending).max() > 900
    places = reindex(torch.randperm(50), 50, generator)
    assert sorted(places.tolist()) == list(range(50))
    assert (reindex(torch.tensor([[-1, 3], [5, -1]]), 9, generator) < 0).tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("run", "count"),
    [
        (lambda x, i: torch.zeros(50, 4).index_add_(0, i, x) / torch.bincount(i, minlength=50).unsqueeze(1), 50),
        (lambda x, i: torch.zeros(40, 4).scatter_add_(0, i.unsqueeze(1).expand(-1, 4), x), 40),
        (lambda x, i: (x[i] * (i == 0).unsqueeze(1)).sum(0), 20),
        (lambda x, i: x.sum() * (i.sqrt() < 3), None),  # what else is computed of it may mean anything
        (lambda x, i: x[i] + i.unsqueeze(1), 20),  # a place, and a number besides
        (lambda x, i: x * i.unsqueeze(1).float().sin(), NUMBERS),
        (lambda x, i: x[i * 2 % 20] * i.unsqueeze(1), None),  # another number is made of it
    ],
)
def test_which_integers_are_places_only(run: Callable[[torch.Tensor, torch.Tensor], object], count: int | None) -> None:
    tensors = [torch.randn(20, 4), torch.randint(0, 20, (20,))]
    assert index_ranges(lambda: run(*tensors), tensors) == [None, count]


def test_integers_that_are_only_added_up_grow_beyond_32_bits() -> None:
    sizes, small, mixed = torch.arange(12).reshape(3, 4), torch.arange(4, dtype=torch.int32), torch.arange(4)

    def run() -> None:
        sizes.cumsum(-1)
        small.cumsum(-1)
        mixed.sum()
        torch.randn(9)[mixed]

    assert index_ranges(run, [sizes, small, mixed]) == [TOTALS, FACTORS, 9]
    assert int(enlarge(sizes).cumsum(-1).max()) > 2**35


def test_totals_that_are_used_further_are_left_alone() -> None:
    """Larger lengths would lead outside of a table: on a GPU that ends the judge's process."""
    lengths, counts, sizes = (torch.full((4,), 2) for _ in range(3))

    def run() -> None:
        torch.randn(9)[lengths.cumsum(0)]
        counts.sum().item()
        sizes.cumsum(0).clone()

    assert index_ranges(run, [lengths, counts, sizes]) == [None, Counts("lengths"), TOTALS]


def test_integers_of_which_only_bits_or_remainders_are_taken_may_have_any_size() -> None:
    bits, places, scaled, counted = (torch.randint(0, 300, (64,)) for _ in range(4))

    def run() -> None:
        (bits ^ (bits >> 1)).remainder(7).float()
        torch.randn(400)[places ^ 1]
        ((scaled >> 1) * 3).clone()
        torch.bincount(counted, minlength=300)

    assert index_ranges(run, [bits, places, scaled, counted]) == [WIDE, None, None, 300]
    given = torch.tensor([5, 0, -3]).repeat(100)
    made = redraw(given, WIDE, torch.Generator().manual_seed(1))
    assert torch.equal(made.sign(), given.sign())
    assert int((made >= 2**61).sum()) > 30 and int((made <= -(2**61)).sum()) > 30
    assert without_overflow([WIDE, FACTORS], [bits, places], lambda values: [values[1] * values[1]])[0] == WIDE


def test_integers_that_are_calculated_with_agree_where_the_reference_holds_the_sums() -> None:
    a, b, place, small = (torch.randint(-3000, 3000, (64, 64)) for _ in range(4))
    small = small.to(torch.int16)

    def run() -> None:
        ((a * b).sum(-1) > 0).float()
        torch.randn(4000)[(place * 2 % 20).abs()]
        (small * small).clone()

    ranges = index_ranges(run, [a, b, place, small])
    assert ranges == [FACTORS, FACTORS, None, FACTORS]
    one, other = (agree(item, torch.Generator().manual_seed(1)) for item in (a, b))
    assert (
        abs(int((one * other).sum(-1)[0])) > 2**28 and one.abs().max() <= 3000 and len(set(one.flatten().tolist())) > 9
    )
    grown = without_overflow(ranges, [a, b, place, small], lambda values: [(values[0] * values[1]).sum(-1)])
    assert grown == [FACTORS - 16, FACTORS - 16, None, FACTORS]  # 64-bit ones alone grow
    one, other = (
        redraw(item, kind, torch.Generator().manual_seed(1)) for item, kind in zip((a, b), grown, strict=False)
    )
    exact = sum(x * y for x, y in zip(one[0].tolist(), other[0].tolist(), strict=True))
    assert int((one * other).sum(-1)[0]) == exact != int((one.double() * other.double()).sum(-1)[0])
    assert without_overflow([FACTORS], [a], lambda values: [values[0] * 2**40]) == [FACTORS - 10]
    wrapped = without_overflow(ranges, [a, b, place, small], lambda values: [values[3] * values[3]])
    assert wrapped == [None, None, None, None]  # a kernel with 32 bits would be right, and PyTorch is not


def test_what_is_summed_and_chosen_from_grows_beyond_32_bits() -> None:
    """A running sum less the running maximum was computed in 32 bits, and accepted."""
    data, lengths, mask = torch.arange(1, 9), torch.arange(1, 9), torch.ones(8, dtype=torch.int64)

    def run() -> list[torch.Tensor]:
        places = mask.cumsum(0) - 1
        return [data.cumsum(0) - data.cummax(0).values, lengths.amax(0, keepdim=True), torch.arange(8)[places]]

    ranges = index_ranges(run, [data, lengths, mask])
    assert ranges == [FACTORS, WIDE, None]
    (kind,) = without_overflow(ranges[:1], [data], lambda values: [values[0].cumsum(0) - values[0].cummax(0).values])
    assert kind == FACTORS - 24
    assert int(redraw(data, kind, torch.Generator().manual_seed(0)).max()) >= 2**24
