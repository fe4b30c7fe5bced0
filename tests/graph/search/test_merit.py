"""How fast a candidate is thought to be: every timing counts, and a proof only adds to what is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundry.graph.nodes.island.prove import CLEARLY, LIKELY
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.search.final import _can_win
from foundry.knowledge.candidate import Audit, Build, Candidate, Evaluation, Stage, Timing, Verdict
from foundry.knowledge.merit import CORRECT, NOT_COMPILED, WRONG, Estimate, estimate, merit

MakeRequest = Callable[..., SolveRequest]

# A recorded run of the softmax example on two busy cores: what was screened, and what came of the one proof.
C1_SCREENED = (1.43, 1.32, 1.55)
C7_SCREENED = (1.64, 1.47, 1.83)
C7_PROVEN = (1.59, 1.24, 1.67)


def timing(speedup: float, low: float, high: float, stage: Stage = "screen") -> Timing:
    return Timing(stage, 10 / speedup, 10.0, speedup, (low, high), 9, 0.02, 1.0)


def evaluation(found: Timing | None, name: str = "c1", *, clean: bool = True, ok: bool = True) -> Evaluation:
    candidate = Candidate(name, 0, 1, "cpu", "library", "0" * 64)
    verdict = Verdict("correct" if found is not None else "wrong_result", "screen")
    return Evaluation(candidate, Build(ok, 0.1), verdict, Audit(clean, "fair"), found)


def around(speedup: float, width: float, stage: Stage = "screen") -> Timing:
    """A timing whose interval is a factor `width` to each side."""
    return timing(speedup, speedup / width, speedup * width, stage)


SPEEDUPS = st.floats(0.02, 200.0)
WIDTHS = st.floats(1.0001, 5.0)
TIMINGS = st.builds(around, SPEEDUPS, WIDTHS)
SEVERAL = st.lists(TIMINGS, min_size=1, max_size=4)


def merit_of(timings: list[Timing]) -> float:
    return merit([evaluation(item) for item in timings])


def test_merit_orders_not_compiled_wrong_vetoed_slow_fast() -> None:
    ordered = [
        merit([evaluation(None, ok=False)]),
        merit([evaluation(None)]),
        merit([evaluation(around(0.5, 1.1))]),
        merit([evaluation(around(2.0, 1.1))]),
    ]
    assert ordered == sorted(ordered) and len(set(ordered)) == 4
    assert ordered[:2] == [NOT_COMPILED, WRONG] and ordered[2] > CORRECT
    assert merit([evaluation(around(100.0, 1.1), clean=False)]) == WRONG


@given(SEVERAL, WIDTHS, st.floats(1.0, 3.0))
def test_a_proof_at_the_same_speed_or_above_never_lowers_the_merit(
    known: list[Timing], width: float, faster: float
) -> None:
    proof = around(estimate(known).speedup * faster, width, "full")
    assert merit_of([*known, proof]) >= merit_of(known) * (1 - 1e-9)


@given(SEVERAL, TIMINGS)
def test_every_timing_makes_the_estimate_narrower(known: list[Timing], another: Timing) -> None:
    assert estimate([*known, another]).deviation < estimate(known).deviation


@given(SEVERAL, WIDTHS, st.floats(1.3, 5.0))
def test_a_proof_that_is_narrow_and_far_below_lowers_the_merit(
    known: list[Timing], width: float, slower: float
) -> None:
    before = estimate(known)
    proof = around(before.cautious / slower, 1.01, "full")
    assert merit_of([*known, proof]) < merit_of(known)


@given(st.lists(TIMINGS, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_the_timings_is_nothing(known: list[Timing], stream: random.Random) -> None:
    shuffled = stream.sample(known, len(known))
    assert merit_of(shuffled) == pytest.approx(merit_of(known), rel=1e-9)


def test_the_recorded_candidate_keeps_its_rank_when_it_is_proven() -> None:
    """c7's proof said 1.59 after a screen of 1.64, with a wide lower end: it fell behind c1's screen."""
    screened, proven = merit_of([timing(*C7_SCREENED)]), merit_of([timing(*C7_SCREENED), timing(*C7_PROVEN)])
    assert proven == pytest.approx(screened, rel=1e-3)
    assert proven > merit_of([timing(*C1_SCREENED)])
    assert estimate([timing(*C7_SCREENED), timing(*C7_PROVEN)]).speedup == pytest.approx(1.62, abs=0.005)


def test_one_lucky_screen_does_not_win_over_a_proof() -> None:
    assert merit_of([around(2.0, 1.6)]) < merit_of([around(1.8, 1.15), around(1.8, 1.03, "full")])


def test_a_burst_of_noise_does_not_hide_a_kernel_four_times_as_fast() -> None:
    """A run beside other work: c7's two groups said 27 and 7, and its interval reached from 0.04 to 3945."""
    fast = replace(timing(13.30, 0.0449, 3945.3), ratios=[26.822, 6.599])
    best = replace(timing(3.43, 2.452, 4.800), ratios=[5.026, 2.342])
    twins = replace(timing(2.516, 0.609, 10.39), ratios=[2.769, 2.286])  # in another's burst, and alike themselves
    assert merit_of([fast]) > merit_of([best]) > merit_of([twins]) > CORRECT + 2.2
    assert merit_of([replace(fast, ratios=[])]) < merit_of([best])  # all that the interval alone says


def test_what_has_no_interval_says_nothing_and_a_rejection_at_any_stage_counts() -> None:
    unknown = timing(9.0, 0.0, math.inf, "full")  # too few groups for an interval
    assert merit_of([around(1.5, 1.1), unknown]) == merit_of([around(1.5, 1.1)])
    assert merit_of([unknown]) == CORRECT
    screen = evaluation(around(3.0, 1.05))
    assert merit([screen, evaluation(None)]) == WRONG
    failed = around(3.0, 1.05, "full")
    failed = replace(failed, speedup=0.0, speedup_ci95=(0.0, 0.0), problem="the process died", outcome="crash")
    assert merit([screen, evaluation(failed)]) == WRONG


def test_a_screen_within_a_hair_does_not_outweigh_a_proof() -> None:
    """Intervals describe one sitting; minutes later a kernel differs by more than the clock can tell."""
    pooled = estimate([timing(1.50, 1.4999, 1.5001), around(1.60, 1.01, "full")])
    assert 1.54 < pooled.speedup < 1.57 and pooled.deviation > 0.003


def test_chances_of_being_faster() -> None:
    one, other = estimate([around(1.6, 1.1)]), estimate([around(1.4, 1.1)])
    assert one.chance_beyond(other) > 0.95 > one.chance_beyond(other, 1.1) > 0.5 > other.chance_beyond(one)
    assert one.chance_beyond(Estimate()) == 0.5


def test_the_recorded_candidate_would_be_proven_again_and_an_equal_one_would_not() -> None:
    c1, c7 = estimate([timing(*C1_SCREENED)]), estimate([timing(*C7_SCREENED)])
    assert c7.chance_beyond(c1, CLEARLY) >= LIKELY > c7.chance_beyond(c7, CLEARLY)


def test_merit_loses_less_than_the_estimate_and_than_the_end_of_its_interval() -> None:
    """40 candidates of which a screen tells each within 2 to 25 %: what the search breeds from, and what it proves."""
    stream = random.Random(7)
    lost = {deviations: [0.0, 0.0] for deviations in (0.0, 1.0, 1.96)}
    for _ in range(400):
        found = []
        for _ in range(40):
            truth, width = stream.gauss(0.35, 0.15), min(0.25, math.exp(stream.gauss(math.log(0.05), 0.6)))
            found.append((truth, stream.gauss(truth, width), width))
        best = max(truth for truth, _, _ in found)
        for deviations, totals in lost.items():
            ranked = sorted(found, key=lambda item: item[2] * deviations - item[1])
            totals[0] += best - ranked[0][0]
            totals[1] += best - max(truth for truth, _, _ in ranked[:3])
    assert lost[1.0][0] < 0.7 * lost[0.0][0]  # the luckiest screen is a worse parent
    assert lost[1.0][1] < 0.8 * lost[1.96][1]  # the best known three are worse finalists


def test_a_run_ranks_by_all_records_and_a_proof_keeps_its_candidate_in_front(make_request: MakeRequest) -> None:
    run = RunDirectory.create(make_request())
    for name, found in (("c1", C1_SCREENED), ("c7", C7_SCREENED), ("c8", (1.2, 0.9, 1.6))):
        run.add_evaluation(evaluation(timing(*found), name), "screen", name)
    assert run.ranking(3) == ["c7", "c1", "c8"]
    run.add_evaluation(evaluation(timing(*C7_PROVEN, "full"), "c7"), "full", "i0g1")
    assert run.ranking(3) == ["c7", "c1", "c8"]
    assert [item.timing.stage for item in run.records("c7") if item.timing] == ["screen", "full"]
    run.add_evaluation(evaluation(None, "c7"), "final", "final/c7")
    assert run.ranking(3) == ["c1", "c8"]  # found wrong in the end
    run.close()


class Opened:
    """As much of the services as a question about finalists needs."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run


def test_a_finalist_can_win_while_its_pooled_interval_reaches_the_best_proven(make_request: MakeRequest) -> None:
    run = RunDirectory.create(make_request())
    proven = [evaluation(around(1.60, 1.02, "final"), "c1")]
    run.add_evaluation(evaluation(around(1.50, 1.10), "c2"), "screen", "i0g1")
    run.add_evaluation(evaluation(around(1.30, 1.10), "c3"), "screen", "i0g2")
    assert _can_win(Opened(run), "c2", proven)  # type: ignore[arg-type]
    assert not _can_win(Opened(run), "c3", proven)  # type: ignore[arg-type]
    run.close()
