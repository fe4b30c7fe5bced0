"""The same grader on a GPU: runners hold it, the judge's truth is made on it, times come from device events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foundry.knowledge.candidate import Build
from foundry.knowledge.device import Device
from foundry.knowledge.errors import FoundryError
from foundry.tools.grade.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        return torch.relu(self.linear(x))

def get_inputs():
    return [torch.randn(4096, 1024)]
"""
BUILT = Build(ok=True, seconds=0.0, artifact="kernel.cubin")


def gpu() -> Device | None:
    try:
        device = describe("cuda")
    except FoundryError:
        return None
    return device if device.present else None


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gpu() is None, reason="there is no NVIDIA GPU here")]


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("judge")
    (folder / "linear.py").write_text(TASK)
    device = gpu()
    assert device is not None
    made = Grader(read_task(folder / "linear.py"), device, folder, seed=3, zygote=Zygote.start(threads=4))
    yield made
    made.close()


def test_a_gpu_pair_is_verified_and_timed(grader: Grader) -> None:
    baseline = grader.baseline()
    assert 0 < baseline.eager_ms < 10 and baseline.degenerate == ""
    same = TASK.replace("class Model(", "class ModelNew(")
    for stage in ("screen", "full"):
        verdict = grader.verify(same, BUILT, stage, baseline)
        assert verdict.correct and verdict.accuracy_class == "tf32", verdict.evidence
    timing = grader.time(same, BUILT, "full", baseline)
    assert timing.problem == "" and 0.9 < timing.speedup < 1.1, timing
    wide = "nn.functional.linear(x.double(), self.linear.weight.double(), self.linear.bias.double()).float()"
    ieee = same.replace("self.linear(x)", wide)
    assert grader.verify(ieee, BUILT, "screen", baseline).accuracy_class == "ieee"
    flag = same.replace(
        "def __init__(self):", "def __init__(self):\n        torch.backends.cuda.matmul.allow_tf32 = False"
    )
    assert "allow_tf32" in grader.verify(flag, BUILT, "screen", baseline).evidence
    half = same.replace(
        "torch.relu(self.linear(x))", "torch.relu(x.bfloat16() @ self.linear.weight.bfloat16().t()).float()"
    )
    assert grader.verify(half, BUILT, "screen", baseline).outcome in ("inaccurate", "wrong_result")


def test_a_sticky_device_error_costs_one_evaluation(grader: Grader) -> None:
    baseline = grader.baseline()
    broken = TASK.replace("class Model(", "class ModelNew(").replace(
        "return torch.relu(self.linear(x))",
        "return torch.relu(self.linear(x))[torch.tensor([10**9], device='cuda')]",
    )
    verdict = grader.verify(broken, BUILT, "screen", baseline)
    assert verdict.outcome in ("launch_failure", "crash") and "CUDA" in verdict.evidence
    assert grader.verify(TASK.replace("class Model(", "class ModelNew("), BUILT, "screen", baseline).correct
