"""One kernel, two ends: whatever a machine says of it, `foundry verify` and a search rule alike, and name one floor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.recording import Recorded, recorded

from foundry.graph.run.database import Database
from foundry.graph.run.events import EventLog
from foundry.graph.run.journal import Journal
from foundry.graph.run.measurements import Measurements
from foundry.graph.run.run_directory import SCHEMA, RunDirectory
from foundry.graph.solve import solve
from foundry.knowledge.candidate import Baseline, Build, Evaluation, Judgement, Profile, Stage, Timing, Verdict
from foundry.knowledge.errors import TaskError
from foundry.knowledge.roofline import floors
from foundry.knowledge.ruling import rule
from foundry.knowledge.task import Policy, Task
from foundry.tools.grade.host.roofline import profile
from foundry.tools.verify.receipt import make_receipt
from foundry.tools.verify.verify import VerifyReport, verify_in

MakeRequest = Callable[..., Any]
TASK = Task("relu_add", "relu_add.py", "class Model: ...\n", "d" * 64)
TEXT = '# kernel [[], {"tile": 16, "unroll": 1, "vector": 4, "threads": 1}]\n'
RECORDED = {name: record for _, name, record in recorded()}
WHOLE = [name for name, record in RECORDED.items() if record.evaluation.profile is not None]
OUTCOMES = ("correct", "correct", "correct", "wrong_result", "crash", "cheating")


@pytest.fixture
def played(machine: Any) -> Callable[[Recorded], Any]:
    """A machine that answers with recorded records; the profile is made of them as on a real one."""

    class Played(machine):  # type: ignore[misc]
        def __init__(self, record: Recorded) -> None:
            super().__init__()
            self.device, self.record, self.asked = record.device, record, list[str]()

        def _known(self, name: str) -> Any:
            self.asked.append(name)
            found = getattr(self.record.evaluation, name)
            assert found is not None, f"{name} was asked for, although what is before it failed"
            return found

        async def baseline(self) -> Baseline:
            return self.record.baseline

        async def build(self, text: str) -> Build:
            known: Build = self._known("build")
            return known

        async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
            known: Verdict = self._known("verdict")
            return replace(known, stage=stage)

        async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Any:
            return self._known("audit")

        async def time(
            self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
        ) -> Timing:
            known: Timing = self._known("timing")
            return replace(known, stage=stage)

        async def profile(self, text: str, build: Build, audit: Any, timing: Timing, lowered: Any) -> Profile:
            graph = self.record.graph
            found = floors(self.device, graph, "fair", audit.labels)
            made = profile(text, build, audit, timing, self.device, graph, lowered, floors=found)
            return made

    return Played


async def verified(bench: Any, task: Task = TASK) -> VerifyReport:
    return await verify_in(bench, task, TEXT, "fair", "full")


def shown(evaluation: Evaluation, degenerate: str = "") -> Any:
    """What people are told, less the stage."""
    ruling = rule(evaluation, degenerate=degenerate)
    return ruling.verdict, ruling.reasons, ruling.gates, evaluation.profile and evaluation.profile.floor_ms


@pytest.mark.parametrize("name", RECORDED)
async def test_the_end_of_a_run_rules_as_verify_does(
    name: str, played: Any, parts: Any, make_request: MakeRequest
) -> None:
    bench = played(RECORDED[name])
    report = await verified(bench)
    summary = await solve(make_request(1, islands=1, finalists=1, rivals=()), parts=parts(bench))
    run = RunDirectory.inspect(Path(summary.run))
    evaluation = run.evaluation("c1")
    run.close()
    assert (summary.verdict == "accepted") == report.ruling.accepted
    assert shown(evaluation) == shown(report.evaluation) and rule(evaluation).judgement == report.ruling.judgement
    if report.ruling.accepted:
        assert evaluation.timing is not None and evaluation.timing.stage == "final"
        ends = [
            make_receipt(
                TASK, TEXT, bench.device, bench.record.baseline, item, policy="fair", seeds={}, cost={}, command=""
            )
            for item in (evaluation, report.evaluation)
        ]
        differing = {"stage", "created", "content_sha256", "seconds"}
        left, right = (receipt.model_dump(exclude=differing) for receipt in ends)
        assert left == right and left["timing"]["floor_ms"] is not None


@st.composite
def changed(draw: st.DrawFn) -> Recorded:
    """A recorded evaluation to which something else happened."""
    record = RECORDED[draw(st.sampled_from(WHOLE))]
    known = record.evaluation
    assert known.verdict and known.audit and known.timing
    timing = replace(
        known.timing,
        candidate_ms=known.timing.candidate_ms * math.exp(draw(st.floats(-6, 2))),
        wall_ratio=draw(st.sampled_from([1.0, 0.74, 0.76, 1.32, 1.34, 9.0])),
        problem=draw(st.sampled_from(["", "", "", "the process died"])),
        outcome=draw(st.sampled_from(["correct", "crash", "cheating"])),
    )
    evaluation = replace(
        known,
        build=Build(draw(st.integers(0, 9)) > 0, 0.1, first_error="error"),
        verdict=replace(known.verdict, outcome=draw(st.sampled_from(OUTCOMES)), evidence="row 0"),
        audit=replace(known.audit, clean=draw(st.integers(0, 3)) > 0),
        timing=timing,
    )
    baseline = replace(record.baseline, degenerate=draw(st.sampled_from(["", "", "", "zeros are accepted"])))
    return replace(record, evaluation=evaluation, baseline=baseline)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(record=changed())
async def test_whatever_happens_both_ends_rule_alike(record: Recorded, played: Any, tmp_path: Path) -> None:
    bench = played(record)
    report = await verified(bench)
    asked_by_verify, bench.asked = bench.asked, []
    database = Database(tmp_path / f"{record_number()}.sqlite", SCHEMA)
    measure = Measurements(bench, Journal(database), EventLog(database), "fair")
    candidate = report.evaluation.candidate
    for upto in ("build", "verify", "audit", "time", "profile"):  # as the nodes of an island walk it
        evaluation = await measure.examine(candidate, TEXT, "full", upto=upto)
    database.close()
    assert evaluation == report.evaluation
    assert shown(evaluation, record.baseline.degenerate) == shown(report.evaluation, record.baseline.degenerate)
    assert bench.asked == asked_by_verify, "a node asked the machine again, or for something else"
    clean = bool(record.evaluation.audit and record.evaluation.audit.clean)
    assert "timing" not in bench.asked or clean, "timed, although the audit refused it"


NUMBERS = iter(range(1_000_000))


def record_number() -> int:
    return next(NUMBERS)


async def test_a_task_that_proves_nothing_is_refused_at_both_ends(
    played: Any, parts: Any, make_request: MakeRequest
) -> None:
    known = RECORDED[WHOLE[0]]
    bench = played(replace(known, baseline=replace(known.baseline, degenerate="zeros are accepted as its output")))
    report = await verified(bench)
    assert report.verdict == "rejected" and report.reasons[0].gate == "task can prove something"
    assert bench.asked == ["build"] and report.receipt is None
    with pytest.raises(TaskError, match="the task proves nothing: zeros are accepted as its output"):
        await solve(make_request(1), parts=parts(bench))


async def test_a_doubt_is_a_record_and_no_change_of_another(played: Any, tmp_path: Path) -> None:
    """The auditor is asked last, and only for a candidate that everything else accepts."""
    asked: list[Evaluation] = []

    async def judge(evaluation: Evaluation) -> Judgement:
        asked.append(evaluation)
        return Judgement("It caches.", "line 5 keeps y")

    rejected = next(name for verdict, name, _ in recorded() if verdict == "rejected")
    accepted = next(name for verdict, name, _ in recorded() if verdict == "accepted")
    for name in (rejected, accepted):
        database = Database(tmp_path / f"{name}.sqlite", SCHEMA)
        measure = Measurements(played(RECORDED[name]), Journal(database), EventLog(database), "fair")
        candidate = RECORDED[name].evaluation.candidate
        evaluation = await measure.examine(candidate, TEXT, "final", judge=judge)
        database.close()
    assert len(asked) == 1 and rule(asked[0]).accepted
    assert replace(evaluation, judgement=None) == asked[0]
    assert rule(evaluation).evidence == "judgement: line 5 keeps y"
