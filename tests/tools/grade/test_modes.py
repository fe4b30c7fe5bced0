"""The other of train() and eval(): if a model does something else in it, and what a kernel makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.tools.grade import asking
from torch import nn

from foundry.knowledge.candidate import Build
from foundry.knowledge.device import Device
from foundry.tools.audit.gates import LABELS
from foundry.tools.audit.policies import policy_gates
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.sandbox import NVIDIA_CONTROL
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.task.modes import other_answer

TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class NAME(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.BatchNorm1d(n)
        self.drop = nn.Dropout(DROPPED)

    def forward(self, x):
        FORWARD


def get_inputs():
    return [torch.randn(64, 32, 50)]


def get_init_inputs():
    return [32]
"""


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not NVIDIA_CONTROL.exists(), reason="there is no NVIDIA GPU")],
        ),
    ]
)
def device(request: pytest.FixtureRequest) -> Device:
    return describe(request.param)


RIGHT = "return F.relu(self.drop(self.norm(x)))"


def text_of(name: str, forward: str, dropped: float) -> str:
    words = {"NAME": name, "FORWARD": forward.replace("\n", "\n        "), "DROPPED": str(dropped)}
    text = TASK
    for word, meant in words.items():
        text = text.replace(word, meant)
    return text


class Averaged(nn.Module):
    """In eval() the weights' average counts, which is the weights themselves at first."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.register_buffer("average", self.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight if self.training else self.average)


ANSWERS = {  # model -> what its other mode does
    "same": nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0)),
    "other": nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
    "random": nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval(),
    "fails": nn.BatchNorm1d(8).eval(),
}


def test_which_buffers_count_in_a_mode_shows_where_they_hold_what_the_parameters_hold() -> None:
    model = Averaged()
    assert other_answer(model, [torch.randn(4, 8)]) == "other"
    assert torch.equal(model.average, model.weight)


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_a_model_does_in_its_other_mode_is_tried_and_leaves_nothing_behind(answer: str) -> None:
    model, rows = ANSWERS[answer], 1 if answer == "fails" else 16
    before = {key: item.clone() for key, item in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    assert other_answer(model, [torch.randn(rows, 8)]) == answer
    assert all(torch.equal(before[key], item) for key, item in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]


IGNORES = "y = F.batch_norm(x, self.norm.running_mean, self.norm.running_var, self.norm.weight, self.norm.bias, MODE)"
ASKED = {  # mode of the task, dropout, forward, whether it is refused
    "computes both": ("train", 0.0, RIGHT, False),
    "raises in the other one": (
        "train", 0.0, f"if not self.training:\n    raise ValueError('train()')\n{RIGHT}", False,
    ),
    "normalises by the batch in eval()": (
        "train", 0.0, f"self.norm.train()\n{RIGHT}", True,
    ),
    "normalises by the past in train()": (
        "eval", 0.0, f"{IGNORES.replace('MODE', 'False')}\nreturn F.relu(y)", True,
    ),
    "drops nothing in train()": (
        "eval", 0.5, f"{IGNORES.replace('MODE', 'self.training')}\nreturn F.relu(y)", True,
    ),
    "dies of the other mode": (
        "train", 0.0, f"if not self.training:\n    import os\n    os._exit(1)\n{RIGHT}", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", ASKED)
def test_a_kernel_computes_the_other_mode_or_refuses_it_aloud(
    how: str, device: Device, zygote: Zygote, tmp_path: Path
) -> None:
    mode, dropped, forward, is_refused = ASKED[how]
    (tmp_path / "task.py").write_text(text_of("Model", RIGHT, dropped))
    (tmp_path / "task.toml").write_text(f'mode = "{mode}"\n')
    grader = Grader(read_task(tmp_path / "task.py"), device, tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    try:
        built, baseline = Build(ok=True, seconds=0.0, artifact="library.so"), grader.baseline()
        gates = asking.ablate(grader, text_of("ModelNew", forward, dropped), built, baseline, "fair")
    finally:
        grader.close()
    (gate,) = (gate for gate in gates if gate.gate == "other mode")
    labels = {LABELS[reason.kind] for reason in gate.reasons}
    assert (bool(policy_gates(labels, "fair")) or not gate.passed) is is_refused, gate.evidence
    assert not policy_gates(labels, "open")


def test_statistics_are_read_where_they_lie(device: Device, zygote: Zygote, tmp_path: Path) -> None:
    """A hook of state_dict() that brings them up to date is none of what a training step calls."""
    (tmp_path / "task.py").write_text(text_of("Model", RIGHT, 0.0))
    late = text_of(
        "ModelNew",
        "self.kept.append((x.mean((0, 2)), x.var((0, 2))))\n"
        "return F.relu(F.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True))",
        0.0,
    ).replace(
        "        self.drop",
        "        self.kept = []\n        self.register_state_dict_pre_hook(lambda model, *_: model.catch_up())\n"
        "        self.drop",
    )
    late += (
        "\n\ndef catch_up(self):\n    while self.kept:\n        mean, variance = self.kept.pop(0)\n"
        "        self.norm.running_mean.lerp_(mean, 0.1)\n        self.norm.running_var.lerp_(variance, 0.1)\n"
        "\n\nModelNew.catch_up = catch_up\n"
    )
    grader = Grader(read_task(tmp_path / "task.py"), device, tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    try:
        baseline = grader.baseline()
        verdict = asking.verify(grader, late, Build(ok=True, seconds=0.0, artifact="library.so"), "screen", baseline)
    finally:
        grader.close()
    assert verdict.outcome != "correct" and "norm.running_mean" in verdict.evidence, verdict
