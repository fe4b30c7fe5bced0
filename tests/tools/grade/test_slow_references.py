"""A reference whose forward takes seconds is given its time, and is asked and timed no more often than it must be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tools.grade.test_workbench import FORWARD, TASK, opened

from foundry.knowledge.candidate import Baseline, Gate, Verdict
from foundry.knowledge.errors import TaskError
from foundry.knowledge.targets import CPU
from foundry.tools.audit.policies import policy_gates
from foundry.tools.grade.host.answers import declared_labels
from foundry.tools.grade.judge.link import Sample
from foundry.tools.grade.judge.paired_timing import warm_up
from foundry.tools.grade.questions.affordable import FIRST, QuestionBudget
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.rules import DISTRIBUTIONS
from foundry.tools.protocol.statistics import MIN_GROUPS, effort_of

SLEEP_S = 0.8


async def test_the_limit_of_intake_follows_the_first_forward(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three forwards of 0.8 s do not fit two seconds; one does."""
    monkeypatch.setenv("FOUNDRY_TASK_SECONDS", "2")
    slow = TASK.replace(FORWARD, f"import time; time.sleep({SLEEP_S}); {FORWARD}")
    bench = await opened(zygote, tmp_path, slow)
    try:
        assert (await bench.intake()).outputs
    finally:
        await bench.aclose()


async def test_a_task_that_hangs_after_its_first_forward_says_what_was_measured(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_TASK_SECONDS", "2")
    body = "time.sleep(0.6 if not hasattr(torch, 'seen_before') else 1e6); torch.seen_before = True"
    bench = await opened(zygote, tmp_path, TASK.replace(FORWARD, f"import time; {body}; {FORWARD}"))
    try:
        with pytest.raises(TaskError, match=r"one forward of the reference took 0\.6\d* s.*FOUNDRY_TASK_SECONDS"):
            await bench.intake()
    finally:
        await bench.aclose()


def asked(reference_ms: float, policy: str = "fair") -> tuple[set[str], dict[str, Gate]]:
    budget, skipped = QuestionBudget(reference_ms, policy), dict[str, Gate]()  # type: ignore[arg-type]
    return {item.name for item in DISTRIBUTIONS if not budget.leaves_out(item, skipped)}, skipped


def test_quick_references_are_asked_everything() -> None:
    everything, skipped = asked(1000.0)
    assert everything == {item.name for item in DISTRIBUTIONS} and not skipped


def test_of_a_slow_reference_the_most_telling_questions_are_asked() -> None:
    found, skipped = asked(5000.0)
    assert found >= FIRST and len(found) < len(DISTRIBUTIONS) and len(found) + len(skipped) == len(DISTRIBUTIONS)
    assert all("one forward of the reference takes 5 s" in gate.evidence for gate in skipped.values())
    assert asked(60_000.0)[0] == FIRST
    assert len(asked(5000.0, "strict")[0]) == len(DISTRIBUTIONS)


def test_what_was_not_asked_is_a_label_that_strict_refuses() -> None:
    gates = tuple(asked(5000.0)[1].values())
    (label,) = declared_labels(Baseline(5000.0, 0.0, []), Verdict("correct", "final", gates))
    assert label == f"not-asked:{len(gates)} questions (time)"
    assert [gate.gate for gate in policy_gates({label}, "strict", "ieee")] == ["questions"]
    assert not policy_gates({label}, "fair", "ieee")
    few = Verdict("correct", "final", gates[:2])
    assert declared_labels(Baseline(5000.0, 0.0, []), few) == [f"not-asked:{gates[0].gate}, {gates[1].gate} (time)"]
    assert not declared_labels(Baseline(5000.0, 0.0, []), Verdict("crash", "final", gates))


def test_slow_calls_are_timed_as_often_as_an_interval_needs() -> None:
    assert effort_of("final", CPU, 5.0) == effort_of("final", CPU)
    slow = effort_of("final", CPU, 5000.0)
    assert (slow.min_groups, slow.min_pairs, slow.warm_pairs) == (MIN_GROUPS, 2, 0)
    assert slow.is_enough([[(1.0, 1.0)]] * MIN_GROUPS, 300.0)


class Side:
    """A runner whose calls take so many milliseconds."""

    def __init__(self, call_ms: float) -> None:
        self.call_ms, self.calls = call_ms, 0

    def run(self, slots: list[int]) -> Sample:
        self.calls += len(slots)
        return Sample(self.call_ms, self.call_ms, 0)


@pytest.mark.parametrize(("reference_ms", "calls"), [(0.1, 6), (100.0, 5), (5000.0, 1)])
def test_a_quick_kernel_makes_no_slow_reference_run_often(reference_ms: float, calls: int) -> None:
    """A sample of a kernel of 0.1 ms holds several calls; the reference made as many, of five seconds each."""
    sides = [Side(reference_ms), Side(0.1)]
    assert warm_up(sides, 16) == calls  # type: ignore[arg-type]
    assert sides[0].calls <= 2
