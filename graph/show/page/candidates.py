"""A page's data about each candidate: its origin, its verdict, its speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foundry.graph.run.run_directory import Decision
from foundry.graph.show.view import Measured, RunView
from foundry.knowledge.candidate import Stage
from foundry.knowledge.ruling import rule
from foundry.knowledge.step_words import change_words, move_words, origin_words, spoken
from foundry.knowledge.thought import Move, Proposal

Change = Literal["seed", "numbers", "fusion", "rewrite", "code"]
MOST_TEXT, LEAST_TEXT = 1200, 120  # characters of one rationale, one piece of evidence
ALL_TEXTS = 250_000  # characters of all candidates' rationales together; the same for their evidence

_CHANGES: dict[str, Change] = {
    "set": "numbers",
    "tune": "numbers",
    "split": "fusion",
    "fuse": "fusion",
    "rewrite": "rewrite",
    "unwrite": "rewrite",
}
CHANGES: tuple[Change, ...] = ("seed", "numbers", "fusion", "rewrite", "code")  # the one that changes most last


@dataclass(frozen=True)
class CandidateFacts:
    """One candidate at its highest stage. What was not measured is None or empty; times in the units of their names,
    `at_s` from the start of the run, `speedup` over PyTorch eager."""

    id: str
    island: int  # -1: a seed
    generation: int
    step: str
    stage: Stage
    at_s: float
    change: Change
    expert: str
    brain: str
    parents: tuple[str, ...]
    moves: list[str]
    rationale: str
    expected: str
    cites: tuple[str, ...]
    diagnosis: str
    verdict: str
    outcome: str
    evidence: str
    merit: float
    speedup: float | None
    low: float | None
    high: float | None
    candidate_ms: float | None
    bytes_per_s: float | None
    flops_per_s: float | None
    floor_share: float | None  # 1.0 is the roofline
    limiter: str
    labels: tuple[str, ...]


def candidate_facts(view: RunView) -> list[CandidateFacts]:
    """The candidates of a run as its page shows them."""
    most = max(LEAST_TEXT, min(MOST_TEXT, ALL_TEXTS // max(1, len(view.measured))))
    known = view.decisions
    return [_facts(one, known.get(one.evaluation.candidate.id), view.began, most) for one in view.measured]


def _facts(measured: Measured, decision: Decision | None, began: float, most: int) -> CandidateFacts:
    """A candidate's facts for the page; texts are cut to `most` characters, times are seconds after `began`."""
    evaluation = measured.evaluation
    candidate, ruling = evaluation.candidate, rule(evaluation)
    timing, profile = evaluation.timing, evaluation.profile
    is_timed = timing is not None and not timing.problem
    proposal = decision.proposal if decision else None
    diagnosis = decision.diagnosis if decision else None
    what = spoken(str(diagnosis.failure or diagnosis.limiter)) if diagnosis else ""
    found = f"{what}: {diagnosis.evidence} {diagnosis.action}" if diagnosis else ""
    return CandidateFacts(
        id=candidate.id,
        island=candidate.island,
        generation=candidate.generation,
        step=decision.step if decision else "",
        stage=measured.stage,
        at_s=round(measured.at - began, 3),
        change=change_of(proposal),
        expert=proposal.expert if proposal else origin_words(candidate.proposal or candidate.origin),
        brain=proposal.brain if proposal else "",
        parents=candidate.parents,
        moves=[_move_words(move) for move in proposal.moves] if proposal else [],
        rationale=proposal.rationale[:most] if proposal else "",
        expected=proposal.expected[:most] if proposal else "",
        cites=proposal.cites if proposal else (),
        diagnosis=found[:most],
        verdict=ruling.verdict,
        outcome=spoken(ruling.outcome),
        evidence=ruling.evidence[:most],
        merit=measured.merit,
        speedup=timing.speedup if timing and is_timed else None,
        low=timing.speedup_ci95[0] if timing and is_timed else None,
        high=timing.speedup_ci95[1] if timing and is_timed else None,
        candidate_ms=timing.candidate_ms if timing and is_timed else None,
        bytes_per_s=profile.achieved_bytes_per_s if profile else None,
        flops_per_s=profile.achieved_flops_per_s if profile else None,
        floor_share=profile.fraction_of_floor if profile else None,
        limiter=f"{spoken(profile.limiter or '')} {profile.cause}".strip() if profile else "",
        labels=evaluation.audit.labels if evaluation.audit else (),
    )


def change_of(proposal: Proposal | None) -> Change:
    """The kind of change that made a candidate; of several the one that changes most."""
    if proposal is None:
        return "seed"
    kinds = [_CHANGES[move.kind] for move in proposal.moves] or ["code"]
    return max(kinds, key=CHANGES.index)


def _move_words(move: Move) -> str:
    """`unroll 4 -> 8 vectors in k_softmax`, or `rewrite welford`."""
    if move.kind == "set":
        return f"{change_words(move.name, move.was, move.value, move.unit)} in {move.kernel}"
    return move_words(move)
