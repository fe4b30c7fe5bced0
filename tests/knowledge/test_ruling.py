"""The one ruling: every kind of it, and what it says of evaluations that were recorded on a real machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.recording import Recorded, recorded

from foundry.knowledge.candidate import (
    Audit,
    Build,
    Candidate,
    DistributionError,
    Evaluation,
    Gate,
    Judgement,
    Outcome,
    Profile,
    Timing,
    Verdict,
)
from foundry.knowledge.merit import CORRECT, NOT_COMPILED, WRONG, merit
from foundry.knowledge.ruling import AUDIT_RUNS, Ruling, RulingWord, objection, rule

RECORDED = recorded()
TIMING = Timing("full", 1.0, 2.0, 2.0, (1.9, 2.1), 12, 0.01, 1.0)
ERROR = DistributionError("x3", 1e-7, 2e-7, 0.1, 0.1)
SOUND = Evaluation(
    Candidate("c1", 0, 1, "cpu", "library", "0" * 64),
    Build(True, 0.1),
    Verdict("correct", "full", (Gate("x3", True, "fine"),), "ieee", (ERROR,)),
    Audit(True, "fair", (Gate("provenance", True, "nothing"),), ("layout",)),
    TIMING,
    Profile("roofline", 1e9, 1e9, 0.8, 0.8, 1, traffic_floor_ms=0.9),
)


def timed(**changes: float | str) -> Evaluation:
    return replace(SOUND, timing=replace(TIMING, **changes))  # type: ignore[arg-type]


def floored(traffic_floor_ms: float, fraction_of_floor: float = 0.8) -> Evaluation:
    return replace(SOUND, profile=Profile("roofline", 1e9, 1e9, fraction_of_floor, 0.8, 1, {}, 0.0, traffic_floor_ms))


def vetoed(gate: str) -> Evaluation:
    return replace(SOUND, audit=Audit(False, "fair", (Gate("alias", True, ""), Gate(gate, False, "it keeps y"))))


KINDS: dict[str, tuple[Evaluation, RulingWord, Outcome, str]] = {
    "sound": (SOUND, "accepted", "correct", ""),
    "not compiled": (
        Evaluation(SOUND.candidate, Build(False, 0.1, first_error="line 3: expected ';'")),
        "failed", "compile_error", "line 3: expected ';'",
    ),
    "compiles itself in vain": (
        Evaluation(SOUND.candidate, SOUND.build, Verdict("compile_error", "full", evidence="no nvcc")),
        "failed", "compile_error", "no nvcc",
    ),
    "crashed": (
        Evaluation(SOUND.candidate, SOUND.build, Verdict("crash", "full", evidence="was killed by SIGSEGV")),
        "failed", "crash", "was killed by SIGSEGV",
    ),
    "wrong": (
        Evaluation(SOUND.candidate, SOUND.build, Verdict("wrong_result", "full", (Gate("x3", False, "row 0"),))),
        "incorrect", "wrong_result", "x3: row 0",
    ),
    "stale": (
        Evaluation(SOUND.candidate, SOUND.build, Verdict("stale_weights", "full", evidence="as before")),
        "incorrect", "stale_weights", "as before",
    ),
    "cheating while it was checked": (
        Evaluation(SOUND.candidate, SOUND.build, Verdict("cheating", "full", evidence="wrote into its input")),
        "rejected", "cheating", "wrote into its input",
    ),
    "dead while it was audited": (
        replace(SOUND, audit=Audit(False, "fair", (Gate(AUDIT_RUNS, False, "the GPU's memory is used up"),))),
        "failed", "crash", "the GPU's memory is used up",
    ),
    "vetoed by an act": (vetoed("computed anew"), "rejected", "cheating", "computed anew: it keeps y"),
    "vetoed by the policy": (vetoed("provenance"), "rejected", "not_allowed", "provenance: it keeps y"),
    "vetoed by a wrong answer": (vetoed("public inputs"), "incorrect", "wrong_result", "public inputs: it keeps y"),
    "vetoed by a question that was not asked": (vetoed("readable"), "rejected", "not_judged", "readable: it keeps y"),
    "wrong beside the clock": (
        timed(problem="output 0 of timed call 3 differs", outcome="wrong_result"),
        "incorrect", "wrong_result", "output 0 of timed call 3 differs",
    ),
    "dead beside the clock": (timed(problem="the process died", outcome="crash"), "failed", "crash", "process died"),
    "not timeable here": (timed(problem="there is no cuda device"), "failed", "unproven", "there is no cuda device"),
    "two clocks": (timed(wall_ratio=2.0), "rejected", "not_judged", "clock: the judge's own clock measured 2.000"),
    "beyond the machine": (floored(1.3), "rejected", "not_judged", "physical floor: 1 ms against 1.3 ms"),
    "doubted": (
        replace(SOUND, judgement=Judgement("It caches.", "line 5 keeps y")),
        "rejected", "not_judged", "judgement: line 5 keeps y",
    ),
    "not timed": (replace(SOUND, timing=None, profile=None), "failed", "unproven", "it was not timed"),
    "not audited": (replace(SOUND, audit=None, timing=None), "failed", "unproven", "it was not audited"),
    "only built": (Evaluation(SOUND.candidate, SOUND.build), "failed", "unproven", "it was not verified"),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_ruling(name: str) -> None:
    evaluation, verdict, outcome, evidence = KINDS[name]
    ruling = rule(evaluation)
    assert (ruling.verdict, ruling.outcome) == (verdict, outcome)
    assert evidence in ruling.evidence and bool(evidence) == bool(ruling.evidence)
    assert ruling.accepted == (not ruling.reasons) and all(not gate.passed for gate in ruling.reasons)
    assert not ruling.accepted or objection(evaluation) is None


@pytest.mark.parametrize("name", KINDS)
def test_the_search_s_merit_follows_the_ruling(name: str) -> None:
    evaluation = KINDS[name][0]
    least = CORRECT if rule(evaluation).accepted else NOT_COMPILED if not evaluation.build.ok else WRONG
    assert merit([evaluation]) >= least and (merit([evaluation]) >= CORRECT) == rule(evaluation).accepted
    assert (merit([SOUND, evaluation]) >= CORRECT) == rule(evaluation).accepted


@pytest.mark.parametrize("name", KINDS)
def test_on_a_task_that_proves_nothing_no_kernel_is_accepted(name: str) -> None:
    evaluation = KINDS[name][0]
    ruling = rule(evaluation, degenerate="zeros are accepted as its output")
    expected = "compile_error" if not evaluation.build.ok else "unproven"
    assert not ruling.accepted and ruling.outcome == expected


def failing(ruling: Ruling) -> list[str]:
    return [gate.gate for gate in ruling.reasons]


@pytest.mark.parametrize(
    ("evaluation", "gates"),
    [
        (timed(wall_ratio=0.76), []),
        (timed(wall_ratio=1.32), []),
        (timed(wall_ratio=0.74), ["clock"]),
        (timed(wall_ratio=1.34), ["clock"]),
        (replace(timed(wall_ratio=3.0, candidate_ms=0.49), profile=None), []),  # a message weighs as much as the call
        (replace(timed(wall_ratio=3.0, candidate_ms=0.51), profile=None), ["clock"]),
        (floored(1.14), []),  # ceilings measured again differ by so much
        (floored(1.16), ["physical floor"]),
        (floored(0.0), []),  # no ceilings, or a task that was not captured
        (floored(0.9, fraction_of_floor=2.2), []),  # another algorithm needs less arithmetic
    ],
)
def test_where_a_time_is_believed(evaluation: Evaluation, gates: list[str]) -> None:
    assert failing(rule(evaluation)) == gates


def test_the_judgement_says_the_numbers_and_the_opinion() -> None:
    words = rule(replace(SOUND, judgement=Judgement("scripted-1: It is genuine."))).judgement
    assert words.startswith(
        "All 4 gates of policy fair pass. Worst norm error 1e-07 on x3 inputs against PyTorch's own"
    )
    assert "Speedup 2.00 (1.90 to 2.10, 12 pairs), 80 % of the roofline floor" in words and "Declared: layout." in words
    assert words.endswith("scripted-1: It is genuine.")
    assert "not proven faster than the baseline" in rule(timed(speedup_ci95=(0.9, 2.1))).judgement  # type: ignore[arg-type]
    assert rule(vetoed("result_cache")).judgement == "Vetoed by 1 of 2 gates. result_cache: it keeps y"
    assert rule(KINDS["dead beside the clock"][0]).judgement == "It could not be timed: the process died"


@pytest.mark.parametrize(("verdict", "name", "record"), RECORDED, ids=[name for _, name, _ in RECORDED])
def test_recorded_evaluations_are_ruled_as_their_folder_says(verdict: str, name: str, record: Recorded) -> None:
    ruling = rule(record.evaluation, degenerate=record.baseline.degenerate)
    assert ruling.verdict == verdict, ruling.evidence
    assert (merit([record.evaluation]) >= CORRECT) == (verdict == "accepted")


def test_there_are_recordings_of_every_verdict() -> None:
    assert {verdict for verdict, _, _ in RECORDED} == {"accepted", "rejected", "incorrect", "failed"}
    assert len(RECORDED) >= 12
