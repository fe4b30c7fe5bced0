"""Lengths, offsets and classes: how a run shows them, which others a reference takes, and what is asked then."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foundry.knowledge.errors import TaskError
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.index_ranges import index_ranges, redraw, redraw_each
from foundry.tools.grade.questions.integers.counts import Counts, Kind, are_offsets, draw_counts, part_sizes
from foundry.tools.grade.questions.integers.limits import InRange, indices_wrap, with_limits
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.protocol.rules import COUNTS, DISTRIBUTIONS, OF_INTEGERS, Distribution, Pattern
from foundry.tools.task import bundle
from foundry.tools.task.file import read_task

TASKS = Path(__file__).parents[2] / "exploits" / "tasks"
ROWS = torch.randn(6, 40, 3)
FLAT = torch.randn(240, 3)
Model = Callable[..., Any]


def found(model: Model, *inputs: Any) -> list[Kind]:
    """The kinds of the inputs with their limits, as a case finds them."""

    def run(values: list[Any]) -> list[torch.Tensor]:
        try:
            result = model(*values)
        except (IndexError, ValueError, RuntimeError, ZeroDivisionError) as error:
            raise TaskError(str(error)) from error
        return [result] if isinstance(result, torch.Tensor) else list(result)

    given = list(inputs)
    kinds = index_ranges(lambda: model(*given), bundle.tensors_in(given))
    return with_limits(kinds, given, run, may_wrap=indices_wrap(given, run))


def masked(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return (x * (torch.arange(x.shape[1]) < lengths[:, None])[:, :, None]).sum(1)


LENGTHS: dict[str, Model] = {
    "compared": masked,
    "beside arithmetic": lambda x, n: masked(x, n) / n.clamp(min=1)[:, None],
    "computed": lambda x, n: (x * (torch.arange(40) <= n[:, None] - 1)[:, :, None]).sum(1),
    "item": lambda x, n: torch.stack([x[row, : int(n[row].item())].sum(0) for row in range(6)]),
    "tolist": lambda x, n: torch.stack([x[row, :size].sum(0) for row, size in enumerate(n.tolist())]),
    "numpy": lambda x, n: torch.stack([x[row, :size].sum(0) for row, size in enumerate(n.numpy())]),
    "iterated": lambda x, n: torch.stack([x[row, :size].sum(0) for row, size in enumerate(n)]),
    "blocks": lambda x, n: torch.stack([x[row, : (int(n[row]) + 7) // 8 * 8][: n[row]].sum(0) for row in range(6)]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_are_found_however_they_are_read(name: str) -> None:
    """The limit is the size that they run along, though nothing names it and no example reaches it."""
    (_, kind) = found(LENGTHS[name], ROWS, torch.tensor([3, 3, 20, 3, 7, 3]))
    assert kind == Counts("lengths", high=40)


def test_what_a_reference_refuses_bounds_lengths() -> None:
    def last(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (
            torch.stack([x[row, int(n[row]) - 1] for row in range(6)])
            / torch.tensor([240 // int(size) for size in n]).sum()
        )

    lengths = torch.tensor([3, 1, 20, 3, 7, 3])
    assert found(last, ROWS, lengths)[1] == Counts("lengths", low=1, high=40)  # no division by zero, no row behind

    def ends(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return masked(x, n) + x[torch.arange(6), n - 1]

    assert found(ends, ROWS, lengths)[1] == Counts("lengths", low=1, high=40)  # -1 would silently be the last row
    (_, split) = found(lambda x, n: torch.stack([part.sum(0) for part in x.split(n.tolist())]), FLAT, lengths * 0 + 40)
    assert split == Counts("lengths", high=240, keeps_sum=True)
    table = torch.tensor([[1, 2, -1], [3, -1, -1]])

    def paged(x: torch.Tensor, pages: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[pages[row, : int(n[row])]].sum() for row in range(2)])

    shortened = found(paged, FLAT, table, torch.tensor([2, 1]))[2]
    assert isinstance(shortened, Counts) and shortened.only_less


def test_trials_end_where_types_and_memory_do() -> None:
    lengths = torch.tensor([3, 1, 100, 3, 7, 3], dtype=torch.int8)
    assert found(masked, torch.randn(6, 400, 3), lengths)[1] == Counts("lengths", high=127)
    largest = 0

    def squared(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, int(n.max()))
        return x.new_ones(int(n.max()), int(n.max()))

    assert found(squared, torch.randn(4000, 1), torch.tensor([5, 7]))[1] == Counts("lengths", low=0, high=7)
    assert largest < 200


def test_lengths_in_order_stay_in_order() -> None:
    stream = torch.Generator().manual_seed(1)
    drawn = draw_counts(torch.tensor([9, 7, 7, 2]), Counts("lengths", high=40), "other indices", stream)
    assert drawn.tolist() == sorted(drawn.tolist(), reverse=True) and len(set(drawn.tolist())) > 2


def test_a_number_beside_them_bounds_lengths() -> None:
    offsets = torch.tensor([0, 10, 60, 100, 240])

    def parts(x: torch.Tensor, ends: torch.Tensor, longest: int) -> torch.Tensor:
        return torch.stack([x[begin:end].sum(0) for begin, end in itertools.pairwise(ends)])

    assert found(parts, FLAT, offsets, 140)[1] == Counts("offsets", high=140)
    assert found(parts, FLAT, offsets, 90)[1] == Counts("offsets", high=240)
    lengths, most = torch.tensor([3, 1, 20, 3, 7, 3]), torch.tensor(20)
    beside = found(lambda x, n, most: masked(x[:, : int(most)], n), ROWS, lengths, most)
    assert beside[1:] == [Counts("lengths", high=20), None]


def test_classes_are_those_that_occur_and_those_asked_for() -> None:
    def routed(x: torch.Tensor, expert: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for number in range(5):
            out[torch.where(expert == number)[0]] = x[expert == number] * number
        return out

    expert = torch.tensor([0, 1, 2, 0, 1, 2] * 40)
    assert found(routed, FLAT, expert)[1] == Counts("classes", values=(0, 1, 2, 3, 4))
    assert found(lambda x, e: x * (e[:, None] == torch.arange(4)).sum(1, keepdim=True), FLAT, expert)[1] == Counts(
        "classes", values=(0, 1, 2, 3)
    )
    ordered = found(lambda x, e: (e[:, None] == e).float() @ x, FLAT, expert.sort().values)[1]  # parts of a packed row
    assert ordered == Counts("classes", values=(0, 1, 2), ascends=True)
    assert found(routed, FLAT, expert * 0)[1] == Counts("classes", values=(0, 1, 2, 3, 4))

    def grouped(x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        order = e.argsort()
        return x[order] * torch.bincount(e, minlength=7).sum()

    assert found(grouped, FLAT, expert)[1] == 7  # sorting them leaves them indices


@pytest.mark.parametrize("pattern", [*COUNTS, "other indices"])
def test_what_is_drawn_is_valid(pattern: Pattern) -> None:
    stream = torch.Generator().manual_seed(1)
    for limits in ((0, 30), (1, 30), (0, 7)):
        sizes = part_sizes(40, 8, limits, pattern, random.Random(1))
        assert sum(sizes) == 40 and min(sizes) >= limits[0] and max(sizes) <= limits[1]
    assert part_sizes(40, 8, (0, 4), pattern, random.Random(1)) == []
    lengths = draw_counts(torch.full((50,), 9), Counts("lengths", low=1, high=64), pattern, stream)
    assert 1 <= int(lengths.min()) <= int(lengths.max()) <= 64
    tokens = torch.stack([torch.randperm(8)[:2] for _ in range(100)])
    chosen = draw_counts(tokens, Counts("classes", values=tuple(range(8))), pattern, stream)
    assert bool((chosen[:, 0] != chosen[:, 1]).all()) and int(chosen.min()) >= 0 and int(chosen.max()) < 8
    rows = (torch.arange(60) // 20).expand(5, 60)
    ordered = draw_counts(rows, Counts("classes", values=(0, 1, 2), ascends=True), pattern, stream)
    assert bool((ordered.diff(dim=-1) >= 0).all()) and len(set(map(tuple, ordered.tolist()))) > 1 - (
        pattern == COUNTS[0]
    )


def test_each_pattern_is_what_it_says() -> None:
    stream = torch.Generator().manual_seed(1)

    def drawn(given: torch.Tensor, counts: Counts) -> dict[str, list[int]]:
        return {pattern: draw_counts(given, counts, pattern, stream).tolist() for pattern in COUNTS}

    lengths = drawn(torch.full((20,), 9), Counts("lengths", high=64))
    assert set(lengths["short lengths"]) == {0, 1} and set(lengths["full lengths"]) == {64}
    assert {63, 64} < set(lengths["uneven lengths"]) and sorted(lengths["uneven lengths"])[-3] <= 3
    parts = drawn(torch.arange(0, 81, 10), Counts("offsets", high=80))
    assert set(parts["short lengths"]) == {0, 80} and parts["full lengths"] == list(range(0, 81, 10))
    assert are_offsets(torch.tensor(parts["uneven lengths"])) and 0 in torch.tensor(parts["uneven lengths"]).diff()
    classes = drawn(torch.arange(400) % 8, Counts("classes", values=tuple(range(8))))
    assert [len(set(classes[pattern])) for pattern in COUNTS] == [1, 2, 7]
    assert max(classes["uneven lengths"].count(number) for number in range(8)) > 250
    assert drawn(torch.tensor(9), Counts("lengths", high=9))["uneven lengths"] == 8  # type: ignore[comparison-overlap]


def test_what_is_given_twice_stays_twice() -> None:
    offsets = torch.tensor([0, 10, 20, 30, 40])
    classes = torch.tensor([0, 2, 1, 0])
    kinds: list[Kind] = [Counts("lengths", high=40), Counts("offsets", high=40), None, Counts("offsets", high=40)]
    kinds += [Counts("classes", values=(0, 1, 2))] * 2
    given = [offsets.diff(), offsets, torch.randn(3), offsets.to(torch.int32), classes, classes.clone()]
    for pattern in (*COUNTS, "other indices"):
        drawn = redraw_each(given, kinds, torch.Generator().manual_seed(1), pattern)
        lengths, one, _, other, *both = drawn
        assert torch.equal(lengths, one.diff()) and torch.equal(one, other.long()) and other.dtype == torch.int32
        assert torch.equal(*both)
    assert torch.equal(redraw(offsets, kinds[1], torch.Generator(), "equal indices"), offsets)
    assert redraw(offsets, 50, torch.Generator(), "short lengths") is offsets


def test_an_index_outside_is_caught_before_a_gpu_meets_it() -> None:
    x = torch.randn(5, 3)
    for may_wrap, places in ((True, [5]), (False, [-1]), (True, [-6])):
        with pytest.raises(TaskError, match="outside of 5 rows"), InRange(may_wrap=may_wrap):
            x[torch.tensor(places)]
        with pytest.raises(TaskError, match="outside of 5 rows"), InRange(may_wrap=may_wrap):
            x.index_put_((torch.tensor(places),), torch.zeros(1, 3))
    with pytest.raises(TaskError), InRange(may_wrap=True):
        x.index_select(0, torch.tensor([-1]))
    with InRange(may_wrap=True):
        assert x[torch.tensor([-1])].shape == (1, 3)


# ---------------------------------------------------------------- what a case asks


def case_of(path: Path) -> Case:
    (case,) = cases_of(read_task(path), [3], "cpu", only_first=True)
    case.trial(DISTRIBUTIONS[0], 5).inputs.close()
    return case


def asked(case: Case) -> list[Distribution]:
    return [item for item in DISTRIBUTIONS if item.pattern in (*OF_INTEGERS, "alike rows") and case.suits(item)]


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("softmax", []),
        ("routed_rows", ["alike rows"]),
        ("even_segments", ["other indices", *COUNTS]),
        ("chosen_experts", ["other indices", *COUNTS]),
        ("segment_mean", ["other indices", "equal indices", "paired indices"]),
    ],
)
def test_a_task_is_asked_what_its_run_shows(task: str, names: list[str]) -> None:
    assert [item.name for item in asked(case_of(TASKS / f"{task}.py"))] == names


KEPT = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, keep):
        if not keep.any():
            raise ValueError("nothing is kept")
        chosen = x[keep == 1]
        return chosen * 2, chosen.sum(0) / (keep == 1).sum()


def get_inputs():
    return [torch.randn(64, 4), torch.arange(64) % 2]
"""


def test_sizes_of_outputs_follow_each_question(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(KEPT)
    case = case_of(tmp_path / "kept.py")
    shapes = set[tuple[int, ...]]()
    for item in asked(case):
        for seed in range(4):
            try:
                trial = case.trial(item, seed)
            except TaskError as refused:
                assert "nothing is kept" in str(refused)
                shapes.add(())
                continue
            keep = trial.inputs.value()[1]
            assert trial.specs[0].shape == (int((keep == 1).sum()), 4)
            assert trial.expected[1].any_nan == (item.pattern in COUNTS)
            shapes.add(trial.specs[0].shape)
    assert {(), (64, 4)} < shapes and len(shapes) > 4


def test_alike_rows_go_to_two_experts_and_leave_the_others_empty() -> None:
    case = case_of(TASKS / "routed_rows.py")
    (alike,) = asked(case)
    trial = case.trial(alike, 3)
    x = trial.inputs.value()[0]
    counts = torch.bincount((x @ case._model.router).argmax(-1), minlength=8)
    assert int((counts > 0).sum()) <= 4 and int(counts.max()) > 600
    assert len(x.unique(dim=0)) == len(x)  # no two rows are equal
