"""Questions to a grader as the workbench asks them: where nothing but what a busy machine shows too speaks against a
candidate, a second look decides."""

from __future__ import annotations

from foundry.knowledge.candidate import Baseline, Build, Gate, Stage, Timing, Verdict
from foundry.knowledge.task import Policy
from foundry.tools.grade.host.answers import are_doubtful, ask_again
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.timed_groups import is_doubtful
from foundry.tools.grade.host.workbench import LOOKS


def verify(grader: Grader, text: str, build: Build, stage: Stage, baseline: Baseline) -> Verdict:
    return ask_again(lambda: grader.verify(text, build, stage, baseline), lambda found: are_doubtful(found.gates))


def time(grader: Grader, text: str, build: Build, stage: Stage, baseline: Baseline) -> Timing:
    return ask_again(lambda: grader.time(text, build, stage, baseline), is_doubtful, LOOKS)


def ablate(grader: Grader, text: str, build: Build, baseline: Baseline, policy: Policy) -> list[Gate]:
    return ask_again(lambda: grader.ablate(text, build, baseline, policy)[0], are_doubtful)
