"""The anti-cheat auditor: is the speedup genuine kernel work?

Executable gates come first (tools/audit) and nothing overrules a failed one. This file is the judgement after them:
which numbers do not fit together although every gate passed.
"""

from __future__ import annotations

from foundry.agents.expert import Expert
from foundry.agents.judgement import AuditEvidence, Judgement
from foundry.knowledge.candidate import Timing

FLOOR_MARGIN = 1.15  # measured ceilings + 15 %: what a second measurement of the same ceiling may differ by
WALL_RATIO = (0.8, 1.5)  # the grader's clock over the runner's own: outside, one of the two lies
LONG_ENOUGH_MS = 0.2  # below it the grader's clock mostly sees the pipe between the processes


EXPERT = Expert(
    name="auditor",
    mandate="Decide whether a speedup is genuine kernel work; veto what is not.",
    prompt="auditor",
    calls=("audit",),
)


def judge_by_numbers(evidence: AuditEvidence) -> Judgement:
    """The playbook's judgement: the failed gates in words, or the numbers that do not fit together."""
    failed = [gate for gate in evidence.audit.gates if not gate.passed]
    if failed:
        reasons = "; ".join(f"{gate.gate}: {gate.evidence}" for gate in failed)
        return Judgement(f"Vetoed by {len(failed)} of {len(evidence.audit.gates)} gates. {reasons}")
    doubts = [doubt for doubt in (_beyond_physics(evidence), _clocks_disagree(evidence)) if doubt]
    text = " ".join([_gates_passed(evidence), _accuracy(evidence), _speed(evidence), _labels(evidence), *doubts])
    return Judgement(" ".join(text.split()), doubt=" ".join(doubts))


def _timed(evidence: AuditEvidence) -> Timing | None:
    """The times, where there are any: a timing that failed holds only the reason."""
    timing = evidence.evaluation.timing
    return None if timing is None or timing.problem else timing


def _beyond_physics(evidence: AuditEvidence) -> str:
    timing = _timed(evidence)
    if timing is None or evidence.floor_ms is None or timing.candidate_ms * FLOOR_MARGIN >= evidence.floor_ms:
        return ""
    return (
        f"Doubt: {timing.candidate_ms:.4g} ms is {evidence.floor_ms / timing.candidate_ms:.2f} times faster than the "
        f"roofline floor of {evidence.floor_ms:.4g} ms allows; work is skipped, cached or done outside the clock."
    )


def _clocks_disagree(evidence: AuditEvidence) -> str:
    timing = _timed(evidence)
    if timing is None or timing.candidate_ms < LONG_ENOUGH_MS:
        return ""
    low, high = WALL_RATIO
    if low <= timing.wall_ratio <= high:
        return ""
    return (
        f"Doubt: the grader's clock over the runner's own is {timing.wall_ratio:.2f} (expected {low} to {high}); "
        "time is spent where the runner does not look."
    )


def _gates_passed(evidence: AuditEvidence) -> str:
    return f"All {len(evidence.audit.gates)} gates of policy {evidence.audit.policy} pass."


def _accuracy(evidence: AuditEvidence) -> str:
    verdict = evidence.evaluation.verdict
    if verdict is None or not verdict.errors:
        return ""
    worst = max(verdict.errors, key=lambda row: row.norm_error / max(row.baseline_norm_error, 1e-300))
    return (
        f"Worst norm error {worst.norm_error:.2g} on {worst.distribution} inputs against PyTorch's own "
        f"{worst.baseline_norm_error:.2g} (class {verdict.accuracy_class or 'unknown'})."
    )


def _speed(evidence: AuditEvidence) -> str:
    timing, tried = _timed(evidence), evidence.evaluation.timing
    if timing is None:
        return f"It could not be timed: {tried.problem}" if tried else "Not timed yet."
    low, high = timing.speedup_ci95
    text = f"Speedup {timing.speedup:.2f} ({low:.2f} to {high:.2f}, {timing.pairs} pairs)"
    profile = evidence.evaluation.profile
    if profile is not None and profile.fraction_of_floor > 0:
        text += f", {100 * profile.fraction_of_floor:.0f} % of the roofline floor of its arithmetic"
    return text + (", not proven faster than the baseline." if low <= 1 else ".")


def _labels(evidence: AuditEvidence) -> str:
    return f"Declared: {', '.join(evidence.audit.labels)}." if evidence.audit.labels else ""
