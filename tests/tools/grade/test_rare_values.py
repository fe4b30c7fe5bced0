"""Shortcuts that only rare values show, each of a file that was accepted before such values were drawn. Reference
and shortcut answer the drawn questions in this process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from foundry.tools.grade.judge.limits import buffer_limit, excuse_unstable, limit_of, with_luck
from foundry.tools.grade.questions.cases import Case
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.grade.questions.trial import Trial
from foundry.tools.protocol import comparison
from foundry.tools.protocol.rules import AS_GIVEN, DISTRIBUTIONS, FEW_CHANGED, OutputError, accepts
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([3.0]))
        self.register_buffer("edges", torch.linspace(-1.1, 1.1, 40))

    def forward(self, x, mask, rows):
        powers = x.abs().clamp(min=0.1).pow(self.p).mean(1)
        sums = (x * mask).sum(1), torch.bincount(rows, minlength=90), (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        shares = (x >= 0.5).float().mean(1)
        binned = torch.histc(x, 64, -2.25, 2.25), torch.bucketize(x, self.edges)
        return F.normalize(x, dim=1), torch.logsumexp(x, 1), powers, *sums, shares, F.max_pool1d(x, 3), *binned


def get_inputs():
    lengths = torch.randint(129, 385, (64, 1))
    return [torch.randn(64, 384), torch.arange(384) < lengths, torch.randint(90, (400,))]
"""
SHORTCUTS = {
    "masks of other counts": (
        "(x * mask)",
        "torch.where((~mask).sum(1, keepdim=True) % 256 == 0, x, x * mask)",  # a counter of eight bits
    ),
    "empty and full masks": ("mask.sum(1).clamp(min=1)", "mask.sum(1)"),
    "equal indices": ("torch.bincount(rows, minlength=90)", "torch.bincount(rows, minlength=90).clamp(max=300)"),
    "parameters negated": ("pow(self.p)", "pow(torch.where(self.p == self.p.round(), self.p.abs(), self.p))"),
    "x2**-44": ("F.normalize(x, dim=1)", "x * torch.rsqrt((x * x).sum(1, keepdim=True) + 1e-24)"),
    "few huge elements": (
        "torch.logsumexp(x, 1)",
        "(torch.logsumexp(x, 1) if x[:, ::17].max() > 70 else x.clamp(max=80).exp().sum(1).log())",
    ),
    "half negligible": ("F.normalize(x, dim=1)", "F.normalize(torch.where(x.abs() < 1e-12, 1.0, x), dim=1)"),
    "sixteenths": ("x >= 0.5", "x > 0.5"),
    "numbers of the task": ("torch.bucketize(x, self.edges)", "torch.bucketize(x, self.edges, right=True)"),
    "non-finite": ("F.max_pool1d(x, 3)", "F.max_pool1d(x.clamp(min=-3.4e38), 3)"),
}
BY_NAME = {item.name: item for item in DISTRIBUTIONS}


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    (tmp_path / "task.py").write_text(TASK)
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        made.trial(AS_GIVEN, 1).inputs.close()
        yield made
    made.close()


def answers(text: str, case: Case, trial: Trial) -> list[torch.Tensor]:
    """The outputs of the task's model for a trial, with another text of the task."""
    module = ModuleType("answers")
    exec(compile(text, "answers", "exec"), vars(module))
    model, packed = module.Model(), case.state(trial.distribution.parameters)
    model.load_state_dict(dict(zip(packed.keys, packed.parcel.tensors(), strict=True)))
    return list(model(*trial.inputs.value()))


def is_accepted(outputs: list[torch.Tensor], trial: Trial) -> bool:
    return all(
        accepts(comparison.measure(output, expected), limit_of(own, trial, index))
        for index, (output, expected, own) in enumerate(zip(outputs, trial.expected, trial.ieee, strict=True))
    )


def test_constants_of_the_text_are_among_the_inputs(case: Case) -> None:
    """The uppermost bin is closed; a kernel that leaves its upper edge out counts one element less."""
    right, wrong = "torch.histc(x, 64, -2.25, 2.25)", "torch.histc(torch.where(x == 2.25, 9.0, x), 64, -2.25, 2.25)"
    trial = case.trial(BY_NAME["numbers of the task"], 7)
    given = trial.inputs.value()[0]
    assert bool((given == 2.25).any()) and bool((given == -2.25).any()) and not bool((given == 384.0).any())
    assert is_accepted(answers(TASK, case, trial), trial)
    assert not is_accepted(answers(TASK.replace(right, wrong), case, trial), trial)
    trial.inputs.close()


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_is_right_as_given_and_wrong_where_it_is_asked(case: Case, name: str) -> None:
    right, wrong = SHORTCUTS[name]
    assert right in TASK
    for distribution, is_right in ((AS_GIVEN, True), (BY_NAME[name], False)):
        if distribution.parameters != "seeded":
            case.randomise(5, distribution.parameters)
        assert case.suits(distribution)
        trial = case.trial(distribution, 7)
        assert is_accepted(answers(TASK, case, trial), trial)
        assert is_accepted(answers(TASK.replace(right, wrong), case, trial), trial) is is_right
        trial.inputs.close()


def test_rearranged_elements_are_those_of_the_question_before(case: Case) -> None:
    before, after = (case.trial(item, seed) for item, seed in ((FEW_CHANGED, 8), (BY_NAME["elements rearranged"], 9)))
    given, turned = before.inputs.value()[0], after.inputs.value()[0]
    assert torch.equal(turned, given.flip(0, 1)) and not torch.equal(turned, given)
    assert not torch.equal(given, case.trial(AS_GIVEN, 1).inputs.value()[0])


CANCELLING = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return (x.exp() - x.flip(0).exp()).sum(), x.exp()


def get_inputs():
    return [torch.randn(512, 256)]
"""


def test_a_number_that_large_ones_cancel_to_may_have_more_than_pytorchs_luck(tmp_path: Path) -> None:
    """The order of summation draws its error anew; PyTorch's one draw may be right by chance."""
    (tmp_path / "task.py").write_text(CANCELLING)
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        trial = made.trial(AS_GIVEN, 1)
        owns = [OutputError(1e-9, 1e-9)] * 2  # as if it had been lucky
        limits = [limit_of(own, trial, index) for index, own in enumerate(owns)]
        sums = [trial.inputs.value()[0].exp().sum(dim) for dim in (0, 1)]
        outputs = [sums[0].sum() - sums[1].sum(), trial.inputs.value()[0].exp()]
        found = [comparison.measure(outputs[0], trial.expected[0]), OutputError(0.0, 0.0)]
        assert not accepts(found[0], limits[0])
        scalar, large = with_luck(found, limits, owns, trial, outputs, is_tf32=False)
        assert accepts(found[0], scalar) and large == limits[1]
        assert not math.isinf(scalar.norm) and not accepts(OutputError(100.0 / trial.expected[0].norm, 0.0), scalar)
        assert with_luck([OutputError(0.0, 0.0)] * 2, limits, owns, trial, outputs, is_tf32=False) == limits
        trial.inputs.close()
    made.close()


SIGN_BY_ROUNDING = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, y):
        return (x * y - 1).log()


def get_inputs():
    x = 1 + torch.rand(400, 500)
    return [x, 1 / x]
"""


def test_a_sign_that_hangs_on_a_rounding_is_held_against_nobody(tmp_path: Path) -> None:
    """The logarithm of what is nearly zero is NaN or not by the last bit; a few elements of that kind prove nothing."""
    (tmp_path / "task.py").write_text(SIGN_BY_ROUNDING)
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        trial = made.trial(AS_GIVEN, 1)
        (own,) = trial.unstable()
        assert own.misplaced > 100, "PyTorch's own signs change with the last bit of its inputs"
        few = [OutputError(0.0, 0.0, misplaced=2)]
        assert excuse_unstable(few, trial) == [OutputError(0.0, 0.0)]
        assert excuse_unstable(few, replace(trial, unstable=lambda: [OutputError(0.0, 0.0)])) == few
        many = [OutputError(0.0, 0.0, misplaced=200_000)]
        assert excuse_unstable(many, trial) == many
        trial.inputs.close()
    made.close()


def test_a_few_of_many_elements_may_be_as_wrong_as_pytorchs_are_on_other_draws(tmp_path: Path) -> None:
    """The largest error of PyTorch's one draw says little about the largest of another if errors differ by orders of
    magnitude."""
    (tmp_path / "task.py").write_text(CANCELLING)
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        trial = made.trial(AS_GIVEN, 1)
        right = trial.inputs.value()[0].double().exp()
        unit = trial.expected[1].tolerance * (right.abs() + trial.expected[1].spread)

        def is_accepted_with(elements: int, violation: float, luck: float) -> bool:
            wrong = right.clone()
            wrong.view(-1)[7 :: right.numel() // elements][:elements] += violation * unit.view(-1)[7]
            outputs, drawn = [right.sum(), wrong], [OutputError(0.0, 0.0), OutputError(0.0, luck)]
            found = [OutputError(0.0, 0.0), comparison.measure(wrong, trial.expected[1])]
            owns = [OutputError(1e-3, 0.5)] * 2
            limits = [limit_of(own, trial, index) for index, own in enumerate(owns)]
            asked = replace(trial, luck=lambda _: drawn)
            return accepts(found[1], with_luck(found, limits, owns, asked, outputs, is_tf32=False)[1])

        assert is_accepted_with(1, 0.5, luck=0.0) and not is_accepted_with(1, 4.0, luck=0.5)
        assert is_accepted_with(3, 4.0, luck=5.0) and not is_accepted_with(3, 100.0, luck=5.0)
        assert not is_accepted_with(100, 4.0, luck=5.0)
        trial.inputs.close()
    made.close()


CENTRED = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.BatchNorm1d(32), torch.nn.BatchNorm1d(64)
        self.between = torch.nn.Linear(32, 64, bias=False)

    def forward(self, x):
        return self.second(self.between(self.first(x)))


def get_inputs():
    return [torch.rand(4096, 32)]
"""


def test_a_mean_of_what_is_centred_counts_in_units_of_its_deviations(tmp_path: Path) -> None:
    """It is zero but for roundings: PyTorch's are no measure of another order's."""
    (tmp_path / "task.py").write_text(CENTRED)
    (made,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        trial = made.trial(AS_GIVEN, 1)
        means = {item.name: item for item in trial.buffers if "running_mean" in item.name}
        centred, usual = means["second.running_mean"], means["first.running_mean"]
        assert float(centred.expected.truth.abs().max()) < 1e-12 < 0.01 < float(usual.expected.truth.abs().max())
        for buffer, off, is_right in ((centred, 1e-7, True), (centred, 1e-2, False), (usual, 1e-2, False)):
            error = comparison.measure((buffer.expected.truth + off).float(), buffer.expected)
            assert accepts(error, buffer_limit(buffer, buffer.ieee)) is is_right, (buffer.name, off)
        off = 2e-5 * centred.expected.norm / centred.spec.numel**0.5
        error = comparison.measure((centred.expected.truth + off).float(), centred.expected)
        assert not accepts(error, buffer_limit(centred, centred.ieee))
        assert accepts(error, buffer_limit(centred, centred.tf32, is_tf32=True))
        trial.inputs.close()
    made.close()
