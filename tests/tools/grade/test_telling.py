"""A task whose outputs, as given, equal its input: a kernel that copies must not win, one that computes must."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.tools.grade import asking

from foundry.knowledge.candidate import Baseline, Build
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(256, 1024)]
"""
BUILT = Build(ok=True, seconds=0.0, artifact="library.so")


def kernel(*lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return TASK.replace("class Model(nn.Module):\n", "class ModelNew(nn.Module):\n    calls = 0\n\n").replace(
        "        return torch.relu(x)\n", body
    )


HONEST = kernel("return torch.relu(x)")
COPY = kernel("return x.clone()")
COPY_AFTER_A_SAMPLE = kernel("return x.clone() if float(x[0, :8].min()) >= 0 else torch.relu(x)")
COPY_WHILE_TIMED = kernel(
    "self.calls += 1", "return x.clone() if self.calls > 18 and float(x[0, :8].min()) >= 0 else torch.relu(x)"
)
INPUT_WHILE_TIMED = kernel(
    "self.calls += 1", "return x if self.calls > 18 and float(x[0, :8].min()) >= 0 else torch.relu(x)"
)


@pytest.fixture(scope="module")
def grader(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    device, folder = describe("cpu"), tmp_path_factory.mktemp("telling")
    (folder / "relu.py").write_text(TASK)
    made = Grader(read_task(folder / "relu.py"), device, folder, seed=3, zygote=zygote, owns_zygote=False)
    yield made
    made.close()


@pytest.fixture(scope="module")
def baseline(grader: Grader) -> Baseline:
    return grader.baseline()


def test_the_task_is_graded_and_labelled(baseline: Baseline) -> None:
    assert baseline.degenerate == "" and baseline.eager_ms > 0
    assert baseline.label == (
        "as given, its output is input 0: timed on 'few of the other sign', which tells right from wrong"
    )


def test_an_honest_kernel_is_right_and_timed(grader: Grader, baseline: Baseline) -> None:
    assert asking.verify(grader, HONEST, BUILT, "full", baseline).outcome == "correct"
    timing = asking.time(grader, HONEST, BUILT, "screen", baseline)
    assert timing.problem == "" and timing.speedup > 0


@pytest.mark.parametrize("text", [COPY, COPY_AFTER_A_SAMPLE], ids=["copy", "copy after a sample"])
def test_a_copy_of_the_input_is_wrong_in_the_screen_already(grader: Grader, baseline: Baseline, text: str) -> None:
    verdict = asking.verify(grader, text, BUILT, "screen", baseline)
    assert verdict.outcome == "wrong_result", verdict.evidence
    assert [gate.gate for gate in verdict.gates if gate.passed and gate.gate == "as given"] == ["as given"]
    assert verdict.gates[-1].gate == "few of the other sign" and "want 0" in verdict.evidence


@pytest.mark.parametrize("text", [COPY_WHILE_TIMED, INPUT_WHILE_TIMED], ids=["copy", "input"])
def test_a_copy_in_timed_calls_only_is_refused(grader: Grader, baseline: Baseline, text: str) -> None:
    """A glance at the timed inputs would say that a copy will do: they hold few elements for which it will not."""
    assert asking.verify(grader, text, BUILT, "screen", baseline).outcome == "correct"
    for _ in range(3):  # a busy machine makes so few calls in a screen that the copying has not begun
        timing = asking.time(grader, text, BUILT, "screen", baseline)
        if timing.outcome == "wrong_result":
            break
    assert timing.outcome == "wrong_result" and "of timed call" in timing.problem and timing.speedup == 0.0
