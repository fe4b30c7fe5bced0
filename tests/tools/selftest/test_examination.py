"""Counting of findings, with graders that miss faults, catch them or reject correct kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from foundry.knowledge.candidate import Build, Gate, Verdict
from foundry.knowledge.device import Device
from foundry.knowledge.errors import TaskError, UsageError
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task
from foundry.tools.grade.host.workbench import Intake, Workbench
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.selftest.command import self_test_in
from foundry.tools.selftest.comparing import trials
from foundry.tools.selftest.faults.original import Original
from foundry.tools.selftest.report import SelfTestReport, lines
from foundry.tools.task.file import read_task


class Grader:
    """Accepts the correct file; the others get `outcome`."""

    def __init__(self, original: Original, outcome: Any, *, graphs: list[OpGraph] | None = None) -> None:
        self.original, self.outcome = original, outcome
        self.graphs = list(original.graphs) if graphs is None else graphs

    async def intake(self) -> Intake:
        return Intake([], [], self.graphs, "it branches on its data")

    async def build(self, text: str) -> Build:
        return Build(ok=True, seconds=0.0)

    async def verify(self, text: str, build: Build, stage: Any) -> Verdict:
        if text == self.original.text:
            return Verdict("correct", stage)
        return Verdict(self.outcome, stage, (Gate("as given", self.outcome == "correct", "12 elements are wrong"),))


async def run(grader: Grader, difference: str = "x3", candidate: str | None = None) -> SelfTestReport:
    async def compare(correct: str, faulty: str) -> str:
        return difference

    task: Task = grader.original.task
    device: Device = grader.original.device
    return await self_test_in(cast(Workbench, grader), task, device, candidate, compare, faults=10)


async def test_a_sharp_grader_catches_all(original: Original) -> None:
    report = await run(Grader(original, "wrong_result"))
    assert report.rate == 1.0 and report.count("caught") == 10
    document = report.to_json()
    assert document["rate"] == 1.0 and document["faults"][0]["gate"] == "as given"
    assert sum(of for _, of in document["families"].values()) == 10


async def test_a_blind_grader_is_shown_to_be_blind(original: Original) -> None:
    report = await run(Grader(original, "correct"))
    assert report.rate == 0.0 and report.count("missed") == 10
    text = "\n".join(lines(report))
    assert "0 of 10 faults caught (0.0 %)" in text and "although its outputs differ on: x3" in text


async def test_faults_that_change_no_bit_are_shown_and_not_counted(original: Original) -> None:
    report = await run(Grader(original, "correct"), difference="")
    assert report.count("equivalent") == 10 and report.counted == 0 and report.rate == 0.0
    assert "not counted: 10 equivalent" in lines(report)[-1]


async def test_a_fault_that_does_not_compile_was_not_planted(original: Original) -> None:
    report = await run(Grader(original, "compile_error"))
    assert report.count("not planted") == 10 and report.count("caught") == 0


async def test_crashes_and_time_outs_are_caught(original: Original) -> None:
    for outcome in ("crash", "timeout", "nondeterministic", "inaccurate"):
        assert (await run(Grader(original, outcome))).rate == 1.0


async def test_what_has_no_correct_kernel_is_said_in_one_line(original: Original) -> None:
    with pytest.raises(TaskError, match="could not be captured"):
        await run(Grader(original, "correct", graphs=[]))
    with pytest.raises(UsageError, match=r"no C\+\+"):
        await run(Grader(original, "correct"), candidate="import torch\n")
    with pytest.raises(TaskError, match="is itself refused"):
        await run(Grader(original, "wrong_result"), candidate=original.text + "# another\n")


STEEP = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.full((8,), 30.0))

    def forward(self, x):
        return x * torch.exp(self.slope)


def get_inputs():
    return [torch.randn(4, 8)]
"""


def test_questions_that_the_reference_refuses_end_no_comparison(tmp_path: Path) -> None:
    """exp(4 * 30) is no float32."""
    (tmp_path / "steep.py").write_text(STEEP)
    case = next(cases_of(read_task(tmp_path / "steep.py"), [1], "cpu", only_first=True))
    asked = []
    for trial in trials(case, "full"):
        asked.append(trial.distribution.name)
        trial.inputs.close()
    case.close()
    assert {"as given", "randomised parameters", "high biases"} <= set(asked)
    assert "large parameters" not in asked
