"""A backward of a kernel's own is asked about; a kernel without one is for inference."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.tools.grade import asking
from torch import nn

from foundry.knowledge.candidate import Baseline, Build
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.sandbox import NVIDIA_CONTROL
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.task.gradients import gradients_of

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x):
        return torch.sin(x) * self.weight


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return [512]
"""
OWN = """
import torch
import torch.nn as nn


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return torch.sin(x) * weight

    @staticmethod
    def backward(context, step):
        x, weight = context.saved_tensors
        BACKWARD


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n) + 0.5)

    def forward(self, x):
        return FORWARD
"""
APPLIED = "Sine.apply(x, self.weight)"
RIGHT = "return step * torch.cos(x) * weight, (step * torch.sin(x)).sum(0)"
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not NVIDIA_CONTROL.exists(), reason="there is no NVIDIA GPU here")]
ASKED = {  # backward, forward, evidence, whether it passes
    "right": (RIGHT, APPLIED, "its own backward is right", True),
    "wrong by an input": (RIGHT.replace("* weight,", ","), APPLIED, "the gradient by input 0 is off", False),
    "wrong by a parameter": (RIGHT.replace("sin(x)).sum", "cos(x)).sum"), APPLIED, "by a parameter is off", False),
    "none by a parameter": (RIGHT.replace("(step * torch.sin(x)).sum(0)", "None"), APPLIED, "by a parameter", False),
    "raises": ("raise NotImplementedError('for inference')", APPLIED, "it fails", True),
    "hidden from autograd": (RIGHT, "Sine.apply(x, self.weight).detach()", "no backward of its own", True),
    "PyTorch's own, incomplete": (RIGHT, "torch.sin(x.detach()) * self.weight", "no backward of its own", True),
}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def sine(
    request: pytest.FixtureRequest, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Grader, Baseline]]:
    """A grader of the task and the reference's times."""
    folder = tmp_path_factory.mktemp("sine")
    (folder / "task.py").write_text(TASK)
    task, device = read_task(folder / "task.py"), describe(request.param)
    grader = Grader(task, device, folder, seed=3, zygote=zygote, owns_zygote=False)
    yield grader, grader.baseline()
    grader.close()


@pytest.mark.parametrize("how", ASKED)
def test_a_backward_of_its_own_is_right_or_refused(how: str, sine: tuple[Grader, Baseline]) -> None:
    backward, forward, evidence, passes = ASKED[how]
    text = OWN.replace("BACKWARD", backward).replace("FORWARD", forward)
    grader, baseline = sine
    gates = asking.ablate(grader, text, Build(ok=True, seconds=0.0, artifact="library.so"), baseline, "fair")
    found = {gate.gate: gate for gate in gates}
    gate = found["gradients"]
    assert gate.passed is passes and evidence in gate.evidence, gate
    assert "right on inputs with other strides" in found["other strides"].evidence  # the process is as it was


def test_gradients_are_those_of_a_sum_with_other_weights() -> None:
    model, x = nn.Linear(4, 3), torch.randn(5, 4)
    by_input, by_weight, by_bias = gradients_of(model, [x], list(model.parameters()), only_own=False) or []
    step = (1.0 + 0.5 * torch.cos(torch.arange(15, dtype=torch.float64))).float().reshape(5, 3)
    torch.testing.assert_close(by_input, step @ model.weight.detach())
    torch.testing.assert_close(by_weight, step.T @ x)
    torch.testing.assert_close(by_bias, step.sum(0))
    assert not x.requires_grad and all(item.grad is None for item in model.parameters())
    assert gradients_of(model, [x], [], only_own=True) is None
