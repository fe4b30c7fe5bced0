"""Combines a candidate's records into the one ruling.

`foundry verify`, the search, the end of a run and the receipt all call `rule`, so that no kernel is accepted by one
of them and refused by another. A ruling is computed from records and never stored: the same records give the same
ruling wherever they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from foundry.knowledge.candidate import Audit, Evaluation, Gate, Outcome, Timing, Verdict
from foundry.knowledge.reasons import gravest

RulingWord = Literal["accepted", "rejected", "incorrect", "failed"]

# Slack of a floor: a ceiling is the best measured rate, and repeated measurements differ by up to 15 %
FLOOR_SLACK = 1.15
# Allowed ratio of the judge's clock to the candidate's own. Honest kernels lay between 1.00 and 1.09 on a busy machine
# (those in tests/recorded); outside this range, symmetric as a ratio, one clock sees a third more time than the other.
# Below CLOCK_MIN_MS the message between the two processes weighs as much as the call, so that the ratio says nothing.
CLOCK_RANGE = (0.75, 1.33)
CLOCK_MIN_MS = 0.5
AUDIT_RUNS = "audit runs"  # the gate that fails if the audit could not make its own runs of a candidate

_WORDS: dict[Outcome, RulingWord] = {
    "wrong_result": "incorrect",
    "inaccurate": "incorrect",
    "nondeterministic": "incorrect",
    "stale_weights": "incorrect",
    "cheating": "rejected",
    "not_allowed": "rejected",
    "not_judged": "rejected",
}


@dataclass(frozen=True)
class Ruling:
    """The verdict on a candidate. `outcome` is the finer word from which the search learns ("correct" if accepted)."""

    verdict: RulingWord
    outcome: Outcome
    reasons: tuple[Gate, ...] = ()  # gates against it; none if it is accepted
    gates: tuple[Gate, ...] = ()  # gates of the ruling itself: the times, the task, the auditor's doubt
    judgement: str = ""  # the numbers in words, and the auditor's opinion
    evidence: str = ""  # the first failing fact, or all gates that veto, in one line; "" if it is accepted

    @property
    def accepted(self) -> bool:
        """True if the verdict is "accepted"."""
        return self.verdict == "accepted"


def rule(evaluation: Evaluation, *, degenerate: str = "") -> Ruling:
    """The ruling on all records; `degenerate` says why the task proves nothing (Baseline.degenerate)."""
    return objection(evaluation, degenerate=degenerate) or _rule_unfinished(evaluation) or _rule_accepted(evaluation)


def objection(evaluation: Evaluation, *, degenerate: str = "") -> Ruling | None:
    """The ruling of the first record that speaks against the candidate, or None if none does so far.

    Nothing was measured after that record, so it alone decides.
    """
    if not evaluation.build.ok:
        why = evaluation.build.first_error or "the compiler gave no message"
        return _rule_failed("compile_error", Gate("builds", False, why))
    if degenerate:  # no statement about a kernel holds on such a task
        gate = Gate("task can prove something", False, degenerate)
        return Ruling("rejected", "unproven", (gate,), (gate,), evidence=degenerate)
    verdict, audit, timing = evaluation.verdict, evaluation.audit, evaluation.timing
    if verdict is not None and not verdict.correct:
        return _of_verdict(verdict)
    if audit is not None and not audit.clean:
        failing = tuple(gate for gate in audit.gates if not gate.passed)
        if failing and all(gate.gate == AUDIT_RUNS for gate in failing):
            return _rule_failed("crash", failing[0])
        return _rule_vetoed(evaluation, failing)
    if timing is not None and timing.problem:
        return _of_timing(timing)
    gates = _gates(evaluation)
    reasons = tuple(gate for gate in gates if not gate.passed)
    return _rule_vetoed(evaluation, reasons, gates) if reasons else None


def clocks_agree(timing: Timing) -> bool:
    """True if the time that the candidate's process reported agrees with the judge's own clock."""
    return timing.candidate_ms < CLOCK_MIN_MS or CLOCK_RANGE[0] <= timing.wall_ratio <= CLOCK_RANGE[1]


def is_possible(candidate_ms: float, traffic_floor_ms: float | None) -> bool:
    """True if a kernel can be that fast. `traffic_floor_ms` is the time to move inputs, parameters and outputs once.

    Arithmetic sets no such limit: another algorithm (Winograd, Strassen) may need less of it than the task's own.
    """
    return not traffic_floor_ms or candidate_ms * FLOOR_SLACK >= traffic_floor_ms


def _rule_failed(outcome: Outcome, gate: Gate) -> Ruling:
    """The ruling for one failed gate."""
    return Ruling(_WORDS.get(outcome, "failed"), outcome, (gate,), evidence=gate.evidence)


def _of_verdict(verdict: Verdict) -> Ruling:
    """The ruling for a failed verdict."""
    failing = tuple(gate for gate in verdict.gates if not gate.passed)
    other = Gate("builds" if verdict.outcome == "compile_error" else "runs", False, verdict.evidence)
    evidence = verdict.evidence or _in_words(failing)
    return Ruling(_WORDS.get(verdict.outcome, "failed"), verdict.outcome, failing or (other,), evidence=evidence)


def _of_timing(timing: Timing) -> Ruling:
    """The ruling for a failed timing: the candidate was wrong or cheated while it was timed, or it died."""
    outcome = timing.outcome if timing.outcome != "correct" else "unproven"
    name = timing.gate or ("timed outputs" if outcome in ("cheating", "wrong_result") else "timing")
    gate = Gate(name, False, timing.problem)
    words = f"It could not be timed: {timing.problem}"
    return Ruling(
        _WORDS.get(outcome, "failed"), outcome, reasons=(gate,), gates=(gate,), judgement=words, evidence=timing.problem
    )


def _rule_vetoed(evaluation: Evaluation, reasons: tuple[Gate, ...], gates: tuple[Gate, ...] = ()) -> Ruling:
    """The ruling for failed gates of the audit or of the ruling itself."""
    count = len(evaluation.audit.gates if evaluation.audit else ()) + len(gates)
    words = _in_words(reasons)
    text = f"Vetoed by {len(reasons)} of {count} gates. {words}"
    if evaluation.judgement is not None:
        text += f" {evaluation.judgement.text}"
    outcome: Outcome = gravest(gate.refusal for gate in reasons)
    return Ruling(_WORDS[outcome], outcome, reasons, gates, judgement=text.strip(), evidence=words)


def _in_words(gates: tuple[Gate, ...]) -> str:
    """ "gate: evidence" of each gate."""
    return "; ".join(f"{gate.gate}: {gate.evidence}" for gate in gates)


def _rule_unfinished(evaluation: Evaluation) -> Ruling | None:
    """The ruling on a candidate that was not verified, audited or timed, so that nothing is proven; None if it was."""
    missing = {"verified": evaluation.verdict, "audited": evaluation.audit, "timed": evaluation.timing}
    step = next((step for step, record in missing.items() if record is None), "")
    return _rule_failed("unproven", Gate("runs", False, f"it was not {step}")) if step else None


def _gates(evaluation: Evaluation) -> tuple[Gate, ...]:
    """The ruling's own gates: timed outputs were right, clocks agree, the time is possible, the auditor has no
    doubt."""
    gates = []
    timing, profile, judgement = evaluation.timing, evaluation.profile, evaluation.judgement
    if timing is not None:
        gates.append(Gate("timed outputs", True, "outputs of timed calls agree with PyTorch's on the same inputs"))
    if timing is not None and timing.candidate_ms >= CLOCK_MIN_MS:
        words = f"the judge's own clock measured {timing.wall_ratio:.3f} times what the candidate's process reported"
        gates.append(Gate("clock", clocks_agree(timing), words))
    if timing is not None and profile is not None and profile.traffic_floor_ms:
        floor_ms = profile.traffic_floor_ms
        words = f"{timing.candidate_ms:.4g} ms against {floor_ms:.4g} ms to move inputs and outputs once on this device"
        gates.append(Gate("physical floor", is_possible(timing.candidate_ms, floor_ms), words))
    if judgement is not None and judgement.doubt:
        gates.append(Gate("judgement", False, judgement.doubt))
    return tuple(gates)


def _rule_accepted(evaluation: Evaluation) -> Ruling:
    """The ruling for an accepted candidate, with its numbers in words."""
    gates = _gates(evaluation)
    words = [_all_pass(evaluation.audit, gates), _accuracy(evaluation), _speed(evaluation), _labels(evaluation)]
    words += [evaluation.judgement.text] if evaluation.judgement else []
    return Ruling("accepted", "correct", (), gates, " ".join(" ".join(words).split()))


def _all_pass(audit: Audit | None, gates: tuple[Gate, ...]) -> str:
    """The sentence that all gates of the audit's policy pass; "" without an audit."""
    return f"All {len(audit.gates) + len(gates)} gates of policy {audit.policy} pass." if audit else ""


def _accuracy(evaluation: Evaluation) -> str:
    """The worst error beside PyTorch's own, in words."""
    verdict = evaluation.verdict
    if verdict is None or not verdict.errors:
        return ""
    worst = max(verdict.errors, key=lambda row: row.norm_error / max(row.baseline_norm_error, 1e-300))
    return (
        f"Worst norm error {worst.norm_error:.2g} on {worst.distribution} inputs against PyTorch's own "
        f"{worst.baseline_norm_error:.2g}, both relative to the norm of the float64 truth (accuracy class "
        f"{verdict.accuracy_class or 'unknown'})."
    )


def _speed(evaluation: Evaluation) -> str:
    """The speedup with its interval, in words."""
    timing, profile = evaluation.timing, evaluation.profile
    if timing is None:
        return ""
    low, high = timing.speedup_ci95
    text = f"Speedup {timing.speedup:.2f} ({low:.2f} to {high:.2f}, {timing.pairs} pairs)"
    if profile is not None and profile.fraction_of_floor > 0:
        text += f", {100 * profile.fraction_of_floor:.0f} % of the roofline floor"
    return text + (", not proven faster than the baseline." if low <= 1 else ".")


def _labels(evaluation: Evaluation) -> str:
    """The sentence that names the audit's labels; "" without any."""
    return f"Declared: {', '.join(evaluation.audit.labels)}." if evaluation.audit and evaluation.audit.labels else ""
