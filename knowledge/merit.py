"""How fast a candidate is thought to be, from all its timings together.

A screen of two groups and a proof of sixteen are two looks at one number; neither replaces the other. Each timing is a
normal observation of the logarithm of the speedup; its standard deviation follows from its 95 % interval. Observations
are weighted by their precision. Merit is one standard deviation below the pooled estimate: one lucky screen does not
win, and a second timing that finds the same speed never lowers it. Ranking by the estimate itself would pick the
luckiest candidate, ranking by the lower end of the 95 % interval the one that was timed most often
(tests/graph/search/test_merit.py simulates both).

Merit does not say how well a candidate is proven; the stage of its records does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from foundry.knowledge.candidate import Evaluation, Timing
from foundry.knowledge.ruling import rule

CAUTION = 1.0  # deviations below the estimate at which candidates are compared
LEAST_DEVIATION = 0.005  # two timings of one kernel, minutes apart, differ by this whatever their intervals say
HALF_WIDTH_IN_DEVIATIONS = NormalDist().inv_cdf(0.975)  # of a 95 % interval
NOT_COMPILED, WRONG, CORRECT = 0.0, 0.1, 1.0  # merits: a correct candidate has CORRECT and more


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
        """The speedup that candidates are compared by; 0 while nothing is known."""
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
        low, high = timing.speedup_ci95
        if timing.problem or not (timing.speedup > 0 and 0 < low <= high < math.inf):
            continue  # a full timing of too few groups has the interval (0, inf): it says nothing
        deviation = max((math.log(high) - math.log(low)) / (2 * HALF_WIDTH_IN_DEVIATIONS), LEAST_DEVIATION)
        weights += deviation**-2
        total += deviation**-2 * math.log(timing.speedup)
    return Estimate(total / weights, weights**-0.5) if weights else Estimate()


def estimate_of(records: Sequence[Evaluation]) -> Estimate | None:
    """How fast a candidate is by all its records, None unless each of them accepts it."""
    timings = [record.timing for record in records if record.timing is not None]
    return estimate(timings) if timings and all(rule(record).accepted for record in records) else None


def merit(records: Sequence[Evaluation]) -> float:
    """The search's order by all records of a candidate: not compiled < wrong, vetoed or not timeable at any stage <
    correct, by cautious speedup."""
    if not all(record.build.ok for record in records):
        return NOT_COMPILED
    found = estimate_of(records)
    return WRONG if found is None else CORRECT + found.cautious
