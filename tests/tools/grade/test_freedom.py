"""Ties, halves and roundings that PyTorch leaves open reject no kernel; differences that they do not explain are
rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from foundry.tools.grade.judge import telling
from foundry.tools.grade.judge.freedom import judge_answer
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.protocol.rules import AS_GIVEN, DISTRIBUTIONS, MIXED, accepts_all
from foundry.tools.task.file import read_task

BY_NAME = {item.name: item for item in DISTRIBUTIONS}
Answer = Callable[..., tuple[torch.Tensor, ...]]
Make = Callable[..., Trial]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes the trial of a distribution for a task whose forward and inputs are given."""
    made: list[Case] = []

    def one(forward: str, inputs: str, name: str = "as given", seed: int = 3) -> Trial:
        text = f"import torch\n\n\nclass Model(torch.nn.Module):\n    def forward({forward}\n\n\n"
        (tmp_path / "task.py").write_text(f"{text}def get_inputs():\n    return [{inputs}]\n")
        (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
        made.append(case)
        trial = case.trial(AS_GIVEN, seed)
        return trial if name == "as given" else case.trial(BY_NAME[name], seed + 1)

    with torch.no_grad():
        yield one
    for case in made:
        case.close()


def is_right(trial: Trial, answer: Answer) -> bool:
    return accepts_all(*judge_answer(list(answer(*trial.inputs.value())), trial, "tf32")[:2])


# ---------------------------------------------------------------- places of extremes

EXTREMES = "self, x):\n        wave = torch.sin(x)\n        return wave.t().argmax(), wave.min(0).indices"


def test_another_place_of_a_value_that_ties_by_rounding_is_right(make: Make) -> None:
    """Of 131,072 sines several are 1 in float32; which ones, is a matter of the sine's last bit."""
    trial = make(EXTREMES, "torch.randn(256, 512)")
    (x,) = trial.inputs.value()
    wave = torch.sin(x.double()).t().contiguous()
    ordered = wave.reshape(-1).sort(descending=True).indices
    places = torch.sin(x).min(0).indices
    assert is_right(trial, lambda x: (ordered[0], places))
    assert is_right(trial, lambda x: (ordered[2], places)), "off by 1e-8"
    assert not is_right(trial, lambda x: (ordered[5_000], places))
    assert not is_right(trial, lambda x: (torch.tensor(7), places))
    assert not is_right(trial, lambda x: (torch.tensor(-1), places))
    assert not is_right(trial, lambda x: (torch.tensor(256 * 512), places))


def test_of_equal_numbers_the_first_counts_where_pytorch_documents_it(make: Make) -> None:
    trial = make("self, x):\n        return x.max(1).indices, x.int().argmin(1)", "torch.rand(40, 300) < 0.01")

    def first(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.max(1).indices, x.int().argmin(1)

    def last(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return 299 - x.flip(1).max(1).indices, x.int().argmin(1)

    assert is_right(trial, first) and not is_right(trial, last)


SORTS = "self, x):\n        return x.topk(20, 1).indices, torch.argsort(x, dim=1, stable=True)"


@pytest.mark.parametrize("name", ["as given", "sixteenths"])
def test_any_order_of_equal_elements_is_right_and_no_other_order(name: str, make: Make) -> None:
    trial = make(SORTS, "torch.randn(16, 2000)", name)

    def backwards(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        places = 1999 - x.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :20]
        return places, torch.sort(x, dim=1, stable=True).indices

    assert is_right(trial, backwards)
    assert not is_right(trial, lambda x: (backwards(x)[0].roll(1, 1), backwards(x)[1]))
    assert not is_right(trial, lambda x: (backwards(x)[0][:, :1].expand(-1, 20), backwards(x)[1])), (
        "one place twenty times"
    )
    unstable = lambda x: (backwards(x)[0], 1999 - x.flip(1).sort(dim=1, stable=True).indices)  # noqa: E731
    assert is_right(trial, unstable) == (name == "as given"), "a stable sort leaves nothing open"


def test_a_single_place_that_is_calculated_with_is_not_any_place(make: Make) -> None:
    """Its own answer differs from the truth's now and then, and one of one is all."""
    for seed in range(3):
        trial = make(
            "self, x):\n        place = torch.sin(x).argmax()\n        return place // 7 + 3",
            "torch.randn(100000)",
            seed=seed,
        )
        assert is_right(trial, lambda x: (torch.sin(x).argmax() // 7 + 3,))
        assert is_right(trial, lambda x: (torch.sin(x.double()).argmax() // 7 + 3,))
        (x,) = trial.inputs.value()
        last = x.numel() - 1 - torch.sin(x).flip(0).argmax()  # another sine has its first maximum there
        assert is_right(trial, lambda x, place=last: (place // 7 + 3,))
        assert not is_right(trial, lambda x: (torch.tensor(5),))


ROUTER = """self, x):
        share = (x @ x[:32].t()).float().softmax(-1)
        weight, place = share.topk(2, dim=-1)
        return (weight / weight.sum(-1, keepdim=True)).to(torch.bfloat16), place"""


def test_places_that_pytorch_rounds_otherwise_make_no_task_worthless(make: Make) -> None:
    """The truth of a router in 16 bits selects other experts now and then: a number of them is no norm."""
    trial = make(ROUTER, "torch.randn(2048, 64).to(torch.bfloat16)")
    assert trial.ieee[1].norm > 1 and telling._worst_norm(trial) < 0.1

    def routed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weight, place = (x.float() @ x[:32].float().t()).softmax(-1).topk(2, dim=-1)
        return (weight / weight.sum(-1, keepdim=True)).to(torch.bfloat16), place

    assert is_right(trial, routed)
    assert not is_right(trial, lambda x: (routed(x)[0], routed(x)[1].flip(-1)))
    assert not is_right(trial, lambda x: (routed(x)[0], (routed(x)[1] + 1) % 32))


# ---------------------------------------------------------------- masks that sorts decide

NUCLEUS = """self, logits, k, p):
        ordered, order = logits.sort(-1)
        ordered = ordered.masked_fill(ordered < ordered.gather(1, (ordered.shape[1] - k).unsqueeze(1)), float("-inf"))
        below = ordered.softmax(-1).cumsum(-1) <= (1 - p).unsqueeze(1)
        below[:, -1] = False
        kept = ordered.masked_fill(below, float("-inf"))
        return torch.empty_like(kept).scatter_(1, order, kept), torch.isfinite(kept).sum(-1)"""
SAMPLED = "3 * torch.randn(16, 4096), torch.randint(1, 200, (16,)), 0.5 + 0.5 * torch.rand(16)"


def filtered(logits: torch.Tensor, k: torch.Tensor, p: torch.Tensor, fault: str = "") -> tuple[torch.Tensor, ...]:
    """A right kernel that sorts from the other end, or one with a fault."""
    values, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    cut = values.gather(1, (k - 1).unsqueeze(1))
    outside = values <= cut if fault == "without_the_last" else values < cut
    outside[:, 0] = False
    values = values.masked_fill(outside, float("-inf"))
    share = values.double().softmax(-1)
    kept = values.masked_fill(share.flip(-1).cumsum(-1).flip(-1) <= (1 - p.double()).unsqueeze(1), float("-inf"))
    kept[:, 0] = values[:, 0]
    if fault == "drops_untied":  # the largest but one stands in a row once
        kept[:, 1] = float("-inf")
    if fault == "one_for_another":  # the last that is kept, for the first that is not
        last = torch.isfinite(kept).sum(-1, keepdim=True) - 1
        kept.scatter_(1, last + 1, kept.gather(1, last)).scatter_(1, last, float("-inf"))
    return torch.empty_like(kept).scatter_(1, order, kept), torch.isfinite(kept).sum(-1)


@pytest.mark.parametrize("name", ["as given", "sixteenths"])
def test_which_of_equal_logits_a_filter_keeps_is_open_and_how_many_is_not(name: str, make: Make) -> None:
    trial = make(NUCLEUS, SAMPLED, name)
    assert is_right(trial, filtered)
    faults = ["drops_untied", "without_the_last"]  # one for another is right where they are equal
    for fault in [*faults, "one_for_another"] if name == "as given" else faults:
        assert not is_right(trial, partial(filtered, fault=fault)), fault


# ---------------------------------------------------------------- results rounded to bytes

GREY = """self, image):
        r, g, b = image.float().unbind(-1)
        return (0.299 * r + 0.587 * g + 0.114 * b).round().to(torch.uint8)"""
IMAGE = "torch.randint(0, 256, (400, 500, 3), dtype=torch.uint8)"


def grey(image: torch.Tensor, shift: float = 0.0) -> tuple[torch.Tensor, ...]:
    r, g, b = image.float().unbind(-1)
    return ((0.114 * b + (0.587 * g + 0.299 * r) + shift).round().to(torch.uint8),)


def test_a_byte_at_a_half_may_fall_either_way(make: Make) -> None:
    trial = make(GREY, IMAGE)
    assert trial.ieee[0].norm > 0, "the truth is wide: PyTorch's float32 rounds some bytes otherwise"
    assert is_right(trial, grey)

    def in_double(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((image.double() @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)).round().to(torch.uint8),)

    assert is_right(trial, in_double)


def test_bytes_that_are_rounded_wrongly_are_wrong(make: Make) -> None:
    trial = make(GREY, IMAGE)
    assert not is_right(trial, lambda image: grey(image, -0.5)), "cut off instead of rounded"
    assert not is_right(trial, lambda image: grey(image, 1e-3))

    def few_far_off(image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (found,) = grey(image)
        found[0, :20] += 9
        return (found,)

    assert not is_right(trial, few_far_off)


NIBBLES = "self, x):\n        return (x / 0.37).round().clamp(-8, 7).to(torch.int8)"


def test_nibbles_that_round_halves_up_are_wrong_where_halves_are_exact(make: Make) -> None:
    trial = make(NIBBLES.replace("0.37", "0.5"), "torch.randn(64, 1024)", "sixteenths")

    def half_up(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x / 0.5 + 0.5).floor().clamp(-8, 7).to(torch.int8),)

    assert is_right(trial, lambda x: ((x * 2).round().clamp(-8, 7).to(torch.int8),)) and not is_right(trial, half_up)
    given = make(NIBBLES, "torch.randn(64, 1024)")
    assert is_right(given, lambda x: ((x * (1 / 0.37)).round().clamp(-8, 7).to(torch.int8),))
    assert not is_right(given, lambda x: ((x / 0.371).round().clamp(-8, 7).to(torch.int8),))


# ---------------------------------------------------------------- float64, which has no wider truth

POLE = """self, s, t, p):
        top = 999.84 + t * (6.8e-2 + t * (-9.1e-3 + t * (1.0e-4 + t * -1.1e-6))) + s * (0.82 - t * 4.1e-3)
        bulk = 19652.21 + t * (148.42 + t * (-2.33 + t * 1.36e-2)) + p * (3.24 + t * 1.44e-3)
        return top / (1 - p / bulk)"""
STATE = "*(torch.rand(40000, dtype=torch.float64) * size for size in (40, 30, 1000))"


def density(s: torch.Tensor, t: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same by other roundings: Horner's rule from powers, one division."""
    top = 999.84 + 6.8e-2 * t - 9.1e-3 * t**2 + 1.0e-4 * t**3 - 1.1e-6 * t**4 + (0.82 - t * 4.1e-3) * s
    bulk = 19652.21 + 148.42 * t - 2.33 * t**2 + 1.36e-2 * t**3 + p * (3.24 + t * 1.44e-3)
    return (top * bulk / (bulk - p),)


@pytest.mark.parametrize("name", ["as given", "mixed exponents", "two groups", "x3"])
def test_other_roundings_near_a_pole_are_right_and_float32_is_not(name: str, make: Make) -> None:
    for seed in range(3):
        trial = make(POLE, STATE, name, seed)
        assert is_right(trial, density), seed
        assert not is_right(trial, lambda *given: (density(*(item.float() for item in given))[0].double(),)), seed


CANCELS = "self, x, y):\n        return (x @ y - y.t() @ x.t()).sum(0), x.exp().sum()"


def test_a_difference_that_cancels_is_judged_by_what_it_cancels(make: Make) -> None:
    trial = make(
        "self, x, y):\n        return (x @ y - y.t() @ x.t()).sum(0), x.exp().sum()",
        "*torch.randn(2, 64, 64, dtype=torch.float64)",
    )

    def pieces(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x[:, :32] @ y[:32] + x[:, 32:] @ y[32:] - y.t() @ x.t()).sum(0)

    assert is_right(trial, lambda x, y: (pieces(x, y), x.exp().sum()))
    assert not is_right(trial, lambda x, y: ((x @ (y + 1e-9) - y.t() @ x.t()).sum(0), x.exp().sum()))


def test_what_is_exact_stays_exact(make: Make) -> None:
    trial = make("self, x):\n        return x.sort(0).values, x * 2 - x", "torch.randn(64, 64)")
    assert is_right(trial, lambda x: (x.sort(0).values, x))
    assert not is_right(trial, lambda x: (x.sort(0).values * (1 + 1e-6), x))
    assert MIXED.name in BY_NAME
