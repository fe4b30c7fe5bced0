"""Estimates a candidate's speedup from all its timings together.

A screen of two groups and a proof of sixteen observe the same number; neither replaces the other. Each timing is a
normal observation of the logarithm of the speedup. Its standard deviation follows from its 95 % interval, or from the
distance of its groups if that is smaller. Observations are weighted by their precision. Merit is one standard deviation
below the pooled estimate: one lucky screen does not win, and a second timing that finds the same speed never lowers it.
Ranking by the estimate itself would pick the luckiest candidate, ranking by the lower end of the 95 % interval the one
that was timed most often (tests/graph/search/test_merit.py simulates both).

Merit says nothing about how well a candidate is proven; the stage of its records does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance
from typing import Literal

from foundry.knowledge.candidate import Evaluation, Timing
from foundry.knowledge.ruling import rule

CAUTION = 1.0  # standard deviations below the estimate, at which candidates are compared
# A screen's interval covers the worst of the run's screens: one burst of noise makes it a factor of a
# thousand wide, and hides a kernel that is ten times as fast. For ranking it is never wider than the groups' own
# variance, moderated (Smyth 2004) by three groups of an assumed deviation. 800 screens of PyTorch against itself showed
# it on a busy CPU (benchmarks/results/coverage-screen.jsonl and -2: 0.077 and 0.091); a GPU's is smaller.
GROUP_DEVIATION = 0.08
GROUPS_ASSUMED = 3
LEAST_DEVIATION = 0.005  # two timings of one kernel, minutes apart, differ by this whatever their intervals are
HALF_WIDTH_IN_DEVIATIONS = NormalDist().inv_cdf(0.975)  # half width of a 95 % interval, in standard deviations
# Merits; a correct candidate has at least CORRECT.
NOT_COMPILED = 0.0
WRONG = 0.1
CORRECT = 1.0


Standing = Literal["faster", "as fast", "slower"]


def standing(interval: tuple[float, float]) -> Standing:
    """The comparison with the baseline that a 95 % interval of a speedup proves: faster, slower, or neither."""
    low, high = interval
    return "faster" if low > 1.0 else "slower" if high < 1.0 else "as fast"


@dataclass(frozen=True)
class Estimate:
    """The natural logarithm of a speedup over PyTorch eager: normal, `deviation` infinite while nothing is known."""

    log_speedup: float = 0.0
    deviation: float = math.inf

    @property
    def speedup(self) -> float:
        """The most likely speedup."""
        return math.exp(self.log_speedup)

    @property
    def cautious(self) -> float:
        """The speedup by which candidates are compared; 0 while nothing is known."""
        return math.exp(self.log_speedup - CAUTION * self.deviation)

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval of the speedup."""
        return math.exp(self.log_speedup - HALF_WIDTH_IN_DEVIATIONS * self.deviation)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval of the speedup."""
        return math.exp(self.log_speedup + HALF_WIDTH_IN_DEVIATIONS * self.deviation)

    def chance_beyond(self, other: Estimate, factor: float = 1.0) -> float:
        """The probability that this speedup is more than `factor` times the other."""
        gap = self.log_speedup - other.log_speedup - math.log(factor)
        deviation = math.hypot(self.deviation, other.deviation)
        return 0.5 if math.isinf(deviation) else NormalDist(0.0, deviation).cdf(gap)


def estimate(timings: Sequence[Timing]) -> Estimate:
    """All timings of one candidate, pooled."""
    weights, total = 0.0, 0.0
    for timing in timings:
        if timing.problem or timing.speedup <= 0:
            continue
        deviation = max(min(_by_interval(timing), _by_groups(timing)), LEAST_DEVIATION)
        if math.isinf(deviation):
            continue
        weights += deviation**-2
        total += deviation**-2 * math.log(timing.speedup)
    return Estimate(total / weights, weights**-0.5) if weights else Estimate()


def _by_interval(timing: Timing) -> float:
    """Standard deviation of the logarithm from the 95 % interval; infinite if too few groups give none (0, inf)."""
    low, high = timing.speedup_ci95
    return (math.log(high) - math.log(low)) / (2 * HALF_WIDTH_IN_DEVIATIONS) if 0 < low <= high < math.inf else math.inf


def _by_groups(timing: Timing) -> float:
    """Standard deviation of the mean of the groups' logarithms, moderated; infinite for fewer than two groups."""
    logs = [math.log(ratio) for ratio in timing.ratios if ratio > 0]
    if len(logs) < 2:
        return math.inf
    assumed = GROUPS_ASSUMED * GROUP_DEVIATION**2
    moderated = (assumed + (len(logs) - 1) * variance(logs)) / (GROUPS_ASSUMED + len(logs) - 1)
    return math.sqrt(moderated / len(logs))


def estimate_of(records: Sequence[Evaluation]) -> Estimate | None:
    """The estimated speedup from all records of a candidate; None unless each record accepts it."""
    timings = [record.timing for record in records if record.timing is not None]
    return estimate(timings) if timings and all(rule(record).accepted for record in records) else None


def merit(records: Sequence[Evaluation]) -> float:
    """The search's order over candidates, from all their records.

    Not compiled < wrong, vetoed or not timeable at any stage < correct, by cautious speedup.
    """
    if not all(record.build.ok for record in records):
        return NOT_COMPILED
    found = estimate_of(records)
    return WRONG if found is None else CORRECT + found.cautious
