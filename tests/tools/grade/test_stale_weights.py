"""Kernels that prepare their weights once: what they, and the model that repairs them, are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.exploits.museum import HERE, read_case
from tests.tools.grade import asking
from torch import nn

from foundry.agents.playbook.diagnosis import failure_of
from foundry.knowledge.candidate import Baseline, Candidate, Evaluation, Stage, Verdict
from foundry.knowledge.cards import cards
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.grade.runner.models import load_tensors
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.registry import target_of
from foundry.tools.task.file import read_task
from foundry.tools.verify.verify import verify_in

TASK = HERE / "tasks" / "linear_relu.py"
IN_CONSTRUCTOR = read_case(HERE / "cheats" / "cpu" / "stale_weights.py").text
BY_VERSION = read_case(HERE / "honest" / "cpu" / "weights_followed_by_version.py").text
AT_FIRST_FORWARD = BY_VERSION.replace("if self.key != key:", "if self.key is None:")
REMEDY = "in the first forward, and again whenever a parameter's `_version` or `data_ptr()` is another"
BASELINE = Baseline(1.0, 0.0, [(256, 512)])
NORMALISED = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.kept, self.seen = None, 0

    def forward(self, x):
        w = self.first.weight
        return self.second(F.gelu(F.linear(self.norm(x), w, self.first.bias)))


def get_inputs():
    return [torch.randn(96, 64)]
"""
KERNEL = NORMALISED.replace("class Model(", "class ModelNew(")
WHEN_MOST_CHANGES = """        if self.kept is None or float((self.kept != w).double().mean()) > 0.5:
            self.kept = w.detach().clone()
        w = self.kept
"""
BY_ANOTHERS_VERSION = """        if self.seen != w._version:
            self.kept, self.seen = self.first.bias.detach().clone(), w._version
        return self.second(F.gelu(F.linear(self.norm(x), w, self.kept)))
"""
TWICE_AT_MOST = """        if self.kept is None or (self.seen < 2 and not torch.equal(self.kept, w)):
            self.kept, self.seen = w.detach().clone(), self.seen + 1
        w = self.kept
"""


@pytest.fixture(scope="module")
def graders(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Grader]]:
    """One for the museum's task, whose kernels are compiled, and one for a deeper model."""
    device, folder = describe("cpu"), tmp_path_factory.mktemp("stale")
    (folder / "deeper.py").write_text(NORMALISED)
    made = {
        name: Grader(read_task(path), device, folder / name, seed=3, zygote=zygote, owns_zygote=False)
        for name, path in (("linear", TASK), ("deeper", folder / "deeper.py"))
    }
    yield made
    for grader in made.values():
        grader.close()


def prepared(lines: str) -> str:
    """The deeper model with the first layer's weights prepared by these lines."""
    return KERNEL.replace("        return self.second", f"{lines}        return self.second")


def verify(grader: Grader, text: str, stage: Stage = "screen") -> Verdict:
    return asking.verify(grader, text, target_of(describe("cpu")).build(text), stage, BASELINE)


@pytest.mark.parametrize("text", [IN_CONSTRUCTOR, AT_FIRST_FORWARD], ids=["constructor", "first forward"])
def test_weights_prepared_once_are_called_stale_and_diagnosed_so(graders: dict[str, Grader], text: str) -> None:
    verdict = verify(graders["linear"], text)
    assert verdict.outcome == "stale_weights", verdict.evidence
    assert verdict.gates[-1].gate == "randomised parameters: prepared weights" and not verdict.gates[-1].passed
    assert "right with linear.weight as it was before load_state_dict or an optimiser changed it" in verdict.evidence
    assert REMEDY in verdict.evidence and "first wrong element" not in verdict.evidence
    candidate = Candidate("c3", 0, 1, "cpu", "model", "0" * 64)
    built = target_of(describe("cpu")).build(text)
    assert failure_of(Evaluation(candidate, built, verdict)) == ("stale_weights", verdict.evidence)
    action = cards()["stale_weights"].action
    assert "_version" in action and "first forward" in action


def test_weights_followed_by_their_version_are_right(graders: dict[str, Grader]) -> None:
    assert verify(graders["linear"], BY_VERSION, "full").outcome == "correct"


def test_weights_prepared_again_only_when_most_of_them_change_are_stale(graders: dict[str, Grader]) -> None:
    verdict = verify(graders["deeper"], prepared(WHEN_MOST_CHANGES), "full")
    assert verdict.outcome == "stale_weights", verdict.evidence
    assert verdict.evidence.startswith("few more parameters changed: prepared weights: they are stale: ")
    assert "right with first.weight as it was" in verdict.evidence


def test_what_is_prepared_again_only_when_another_parameter_changes_is_stale(graders: dict[str, Grader]) -> None:
    """A whole state moves every version; a part of it does not."""
    verdict = verify(graders["deeper"], prepared(BY_ANOTHERS_VERSION), "full")
    assert verdict.outcome == "stale_weights", verdict.evidence
    assert "other parameter" in verdict.evidence and "right with first.bias as it was" in verdict.evidence


def test_a_kernel_that_never_returns_to_earlier_weights_is_stale(graders: dict[str, Grader]) -> None:
    """Prepared in the first call and in the first one after a change, but not when the change is taken back."""
    verdict = verify(graders["deeper"], prepared(TWICE_AT_MOST))
    assert verdict.outcome == "stale_weights" and verdict.evidence.startswith("mixed exponents: "), verdict.evidence


def test_parameters_that_are_not_read_are_not_called_prepared(graders: dict[str, Grader]) -> None:
    """Ones and zeros can be assumed without reading: both causes are named, because the judge cannot tell them
    apart."""
    verdict = verify(graders["deeper"], KERNEL.replace("self.norm(x)", "F.layer_norm(x, (64,))"))
    assert verdict.outcome == "wrong_result" and verdict.gates[-1].gate == "randomised parameters"
    assert "right with norm.weight and norm.bias as they were when the model was constructed" in verdict.evidence
    assert "not read, or what was prepared from them is stale" in verdict.evidence
    assert "first wrong element" in verdict.evidence


def test_a_plain_mistake_is_none_of_it(graders: dict[str, Grader]) -> None:
    for text in (
        KERNEL.replace("F.gelu(", "F.silu("),
        KERNEL.replace("self.first.bias)", "self.first.bias * w.std())"),
    ):
        verdict = verify(graders["deeper"], text)
        assert verdict.outcome in ("wrong_result", "inaccurate") and "stale" not in verdict.evidence


async def test_foundry_verify_says_it(zygote: Zygote, tmp_path: Path) -> None:
    task = read_task(TASK)
    bench = await open_workbench(task, describe("cpu"), tmp_path, seed=0, zygote=zygote)
    report = await verify_in(bench, task, IN_CONSTRUCTOR, "fair", "screen")
    await bench.aclose()
    assert report.verdict == "incorrect"
    assert [reason.gate for reason in report.reasons] == ["randomised parameters: prepared weights"]
    assert REMEDY in report.reasons[0].evidence


def test_what_stays_as_it_is_keeps_its_version() -> None:
    """Beside a norm, too, whose own way of loading would move every version."""
    linear, norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
    model = nn.Sequential(linear, norm)
    changed = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    changed["1.bias"] += 1
    before = linear.weight._version
    load_tensors(model, changed, loads=True)
    assert linear.weight._version == before and torch.equal(norm.bias, changed["1.bias"])
