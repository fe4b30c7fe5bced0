"""Paired statistics of timings: intervals, screens, the rule that stops timing. Free of torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from foundry.knowledge.candidate import Stage
from foundry.knowledge.targets import CPU, TargetTraits

CONFIDENCE = 0.95
MIN_GROUPS = 6  # fewer groups cannot exclude anything with 95 % confidence: 2 / 2**5 > 0.05
MIN_HALF_WIDTH = 0.0001  # logarithm of a ratio: the resolution of the clock; larger effects show in the groups
SCORES_KEPT = 79  # scores of screens that are remembered
# Scores of A-against-A screens, as quantiles 1/20 to 19/20: 400 on a CPU (benchmarks/results/coverage-screen.jsonl),
# 68 on a GPU (coverage-screen-h200-prior.jsonl; coverage-screen-h200.jsonl holds others, which check them).
PRIOR_SCORES = (
    *(0.02, 0.03, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.18, 0.2),
    *(0.23, 0.26, 0.31, 0.34, 0.39, 0.43, 0.49, 0.58, 0.75),
)
GPU_PRIOR_SCORES = (
    *(0.04, 0.1, 0.13, 0.17, 0.18, 0.35, 0.39, 0.4, 0.46, 0.52),
    *(0.57, 0.67, 0.9, 0.99, 1.12, 1.43, 1.47, 1.73, 2.25),
)
TWO_SPEEDS = 2.0  # ratio of the slowest fast call and the fastest slow one
MIN_SPEED_SAMPLES = 20


Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class TimingEffort:
    """Amount of timing in a stage. The unit is a group: a fresh process for each side, and some pairs of samples.

    `group_s` seconds go to the pairs of one group; groups follow until `budget_s` is spent or the interval's
    relative half width is `half_width`.
    """

    min_pairs: int
    max_pairs: int
    group_s: float
    min_groups: int
    max_groups: int
    budget_s: float
    half_width: float
    warm_pairs: int = 1  # pairs timed in each group before those that count

    def pairs_within(self, pair_s: float) -> int:
        """Number of pairs in a group if one takes `pair_s`: even, because every other pair is reversed."""
        fitting = int(self.group_s / max(pair_s, 1e-6))
        return min(max(fitting, self.min_pairs), self.max_pairs) // 2 * 2

    def is_enough(self, groups: Sequence[Pairs], spent_s: float) -> bool:
        """True if timing can stop.

        From six groups on, looking at the interval after each group costs it little coverage: simulated with normal,
        heavy-tailed and bursting noise, 93 to 96 % of the intervals hold the truth (test_timing.py).
        """
        count = len(groups)
        if count < self.min_groups:
            return False
        if count >= self.max_groups or spent_s * (count + 1) / count > self.budget_s:
            return True
        return combined_ratio(groups).half_width <= self.half_width


EFFORTS: dict[Stage, TimingEffort] = {
    "screen": TimingEffort(4, 8, group_s=0.12, min_groups=2, max_groups=2, budget_s=0.9, half_width=0.02),
    "full": TimingEffort(2, 12, group_s=0.25, min_groups=6, max_groups=16, budget_s=5.0, half_width=0.01),
    "final": TimingEffort(4, 24, group_s=0.5, min_groups=8, max_groups=24, budget_s=14.0, half_width=0.01),
}

# On a GPU processes differ by 2.9 % for 15 us of work (by the physical pages they get), less for more work: a screen of
# one pair of processes held the truth in 189 of 283 trials. Many pairs in one group therefore teach little. A proof not
# within 1 % after five seconds says how wide its interval is and leaves the GPU to others.
_GPU_FINAL = replace(EFFORTS["final"], group_s=0.25, min_groups=6, max_groups=16, budget_s=5.0)
GPU_EFFORTS: dict[Stage, TimingEffort] = {**EFFORTS, "final": _GPU_FINAL}


SLOW_MS = 500.0  # ms of a forward; from here on each call counts, because warm-up calls cost little beside it


def effort_of(stage: Stage, target: TargetTraits, reference_ms: float = 0.0) -> TimingEffort:
    """How long a stage times on a target. A reference that takes SLOW_MS or more is timed with as few calls as an
    interval needs."""
    effort = (EFFORTS if target.uses_host_cores else GPU_EFFORTS)[stage]
    if reference_ms < SLOW_MS:
        return effort
    groups = 1 if stage == "screen" else min(effort.min_groups, MIN_GROUPS)
    most = 1 if stage == "screen" else effort.max_groups
    return replace(effort, min_pairs=2, min_groups=groups, max_groups=most, warm_pairs=0)


@dataclass(frozen=True)
class Ratio:
    """A ratio of times (first over second) with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Relative half width of the interval."""
        return (self.high - self.low) / (2.0 * self.ratio) if self.ratio > 0 else math.inf


def signed_rank(logs: Sequence[float]) -> Ratio:
    """Hodges-Lehmann estimate of the centre of independent observations, with its 95 % interval, as ratios.

    `logs` are logarithms of ratios. The interval is that of the Wilcoxon signed-rank test, free of any distribution
    (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, section 3.2-3.3). It assumes that errors are
    symmetric, which random order makes true, and nothing about their size or tails.
    """
    if not logs:
        return Ratio(math.nan, 0.0, math.inf)
    averages = sorted(_walsh(logs))
    middle = statistics.median(averages)
    if len(logs) < MIN_GROUPS:
        return Ratio(math.exp(middle), 0.0, math.inf)
    rank = _critical_rank(len(logs))
    low, high = averages[rank - 1], averages[len(averages) - rank]
    low, high = min(low, middle - MIN_HALF_WIDTH), max(high, middle + MIN_HALF_WIDTH)
    return Ratio(math.exp(middle), math.exp(low), math.exp(high))


def combined_ratio(groups: Sequence[Pairs]) -> Ratio:
    """Ratio first/second from pairs measured in several pairs of processes, each of which has a bias of its own.

    The layout of memory differs from process to process and shifts all ratios measured there alike; neighbouring
    pairs share a burst of noise. No number of pairs shows either. So a group counts as one observation, its centre,
    and the interval comes from the spread of the groups' centres (Kalibera, Jones: Rigorous Benchmarking in
    Reasonable Time). Below MIN_GROUPS no 95 % interval exists: it is (0, inf).
    """
    return signed_rank([centre(group) for group in groups])


def centre(pairs: Pairs) -> float:
    """Logarithm of the ratio first/second in one group: Hodges-Lehmann over blocks of two pairs of opposite order."""
    logs = [math.log(first / second) for first, second in pairs]
    blocks = [statistics.fmean(logs[start : start + 2]) for start in range(0, len(logs), 2)]
    return statistics.median(_walsh(blocks))


class ScreenHistory:
    """Intervals for screens, whose two groups are too few for an interval of their own.

    Half the difference of two groups' centres is distributed as the error of their mean, when errors are symmetric. In
    units of the spread within the groups it is much the same for all candidates of a task; so the 95 % quantile of
    what earlier screens showed is the half width (split conformal prediction: Vovk, Gammerman, Shafer, Algorithmic
    Learning in a Random World, section 2.2). Until there are enough, PRIOR_SCORES (or GPU_PRIOR_SCORES) stand in
    for them.
    """

    def __init__(self, target: TargetTraits = CPU) -> None:
        """Begins with the prior scores of this kind of target."""
        self._prior = PRIOR_SCORES if target.uses_host_cores else GPU_PRIOR_SCORES
        self._scores: list[float] = []

    def ratio(self, groups: Sequence[Pairs]) -> Ratio:
        """The mean of the groups' centres with its 95 % interval."""
        centres = [centre(group) for group in groups]
        middle = statistics.fmean(centres)
        unit = _spread(groups)
        if len(centres) > 1:
            self._scores.append(abs(centres[0] - centres[-1]) / 2.0 / unit)
            del self._scores[: max(0, len(self._scores) - SCORES_KEPT)]
        scores = self._scores if len(self._scores) >= len(self._prior) else [*self._prior, *self._scores]
        half = _quantile(scores, CONFIDENCE) * unit * (1.0 if len(centres) > 1 else math.sqrt(2.0))
        return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def _spread(groups: Sequence[Pairs]) -> float:
    """Median deviation of single pairs from their group's centre (logarithms), scaled to a standard deviation, at least
    1e-4."""
    deviations: list[float] = []
    for group in groups:
        middle = centre(group)
        deviations += [abs(math.log(first / second) - middle) for first, second in group]
    return max(1.4826 * statistics.median(deviations), 1e-4)


def _quantile(values: Sequence[float], share: float) -> float:
    """The `share` quantile of the values and one more unseen value, interpolated between order statistics."""
    ordered = sorted(values)
    place = share * (len(ordered) + 1)
    below = min(int(place), len(ordered)) - 1
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - int(place)) * (ordered[above] - ordered[below])


def two_speeds(samples: Sequence[float]) -> tuple[float, float] | None:
    """(fast median, slow median) if samples fall into two groups that are far apart, each a fifth of them at least."""
    ordered = sorted(samples)
    if len(ordered) < MIN_SPEED_SAMPLES:
        return None
    least = len(ordered) // 5
    gaps = [(ordered[place] / ordered[place - 1], place) for place in range(least, len(ordered) - least + 1)]
    gap, place = max(gaps)
    fast, slow = ordered[:place], ordered[place:]
    inside = max(statistics.median(slow) / slow[0], fast[-1] / statistics.median(fast))
    return (statistics.median(fast), statistics.median(slow)) if gap > max(TWO_SPEEDS, inside) else None


def relative_spread(samples: Sequence[float]) -> float:
    """Interquartile range over median."""
    if len(samples) < 4:
        return 0.0
    first, middle, third = statistics.quantiles(samples, n=4)
    return (third - first) / middle if middle > 0 else 0.0


def _walsh(values: Sequence[float]) -> list[float]:
    """Walsh averages: the mean of every pair of values, each value with itself included."""
    return [(one + other) / 2.0 for place, one in enumerate(values) for other in values[place:]]


@lru_cache(maxsize=512)
def _critical_rank(count: int) -> int:
    """The rank k for which the k-th smallest and largest Walsh averages bound a 95 % interval for `count` differences.

    Exact distribution of the signed-rank sum up to 60, its normal approximation beyond.
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    if count > 60:
        mean = count * (count + 1) / 4.0
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24.0)
        return max(1, math.floor(mean + statistics.NormalDist().inv_cdf(tail) * deviation))
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    below = 0
    for total, number in enumerate(ways):
        below += number
        if below / 2.0**count > tail:
            return max(1, total)
    raise AssertionError("the distribution sums to one")
