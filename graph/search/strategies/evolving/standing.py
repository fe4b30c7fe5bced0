"""Estimates the gain of each text of a prompt, and draws the text of a step.

A text is as good as the best child that it led to: in each run the best gain over a parent among its steps, beside the
best among as many steps that were asked with the shipped text in the same run. The difference of the two is one
observation of what the variant brings; the task, the model and the device are the same for both. A run of few steps
says less. Before any run a variant is thought to lose 10 %, give or take 20: it has to earn its place, and for each
step a draw from what is known (Thompson sampling) decides. One whose chance to be better is small is dropped for good.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

from foundry.agents.prompt import SHIPPED, PromptText
from foundry.knowledge.experience.record import FAILED_LIFT
from foundry.knowledge.experience.variants import PromptVariant, Use

PRIOR_MEAN, PRIOR_DEVIATION = -0.1, 0.2  # prior of the logarithm of a variant's gain over the shipped text
RUN_DEVIATION = 0.25  # deviation of one run's difference of best gains, with many steps of both texts
HALF_STEPS = 4  # steps at which a run has half of the weight
SHIPPED_SHARE = 0.25  # least share of steps with the shipped text: without them nothing is compared
DROPPED_CHANCE = 0.05
EARNED_CHANCE = 0.9  # chance from which a variant has earned its place
MOST_ALIVE = 2  # variants of an expert and a target on trial at once
FAILED_GAIN = math.log(FAILED_LIFT)
Z95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class VariantStanding:
    """Facts about a variant. The logarithm of its gain over the shipped text is modelled as normal."""

    text: PromptText
    runs: int = 0  # runs in which both texts had steps
    steps: int = 0
    failed: int = 0
    best: float = 0.0  # the largest gain of a child
    mean: float = PRIOR_MEAN
    deviation: float = PRIOR_DEVIATION

    @property
    def chance(self) -> float:
        """Probability that it is better than the shipped text."""
        return NormalDist().cdf(self.mean / self.deviation)

    @property
    def is_dropped(self) -> bool:
        """True if it has been used and is better than the shipped text with less than DROPPED_CHANCE."""
        return self.runs > 0 and self.chance < DROPPED_CHANCE

    @property
    def state(self) -> str:
        """One of "dropped", "earned" (its chance is at least EARNED_CHANCE) and "on trial"."""
        if self.is_dropped:
            return "dropped"
        return "earned" if self.runs and self.chance >= EARNED_CHANCE else "on trial"

    @property
    def words(self) -> str:
        """Its state and gain with a 95 % interval, in words."""
        low, high = (math.exp(self.mean + sign * Z95 * self.deviation) for sign in (-1, 1))
        brought = f"{math.exp(self.mean):.2f}x [{low:.2f}, {high:.2f}] of the shipped text's best children"
        if not self.runs:
            brought = "not compared yet"
        return (
            f"{self.state}: {brought}; {self.runs} runs, {self.steps} steps, {self.failed} without a correct child, "
            f"best child {math.exp(self.best):.2f}x of its parent"
        )


@dataclass(frozen=True)
class Arms:
    """The texts that the steps of a run are asked with, by expert; fixed when the run begins, so that each prompt's
    constant part stays constant."""

    experts: dict[str, tuple[VariantStanding, ...]] = field(default_factory=dict)


def expected_best(gains: Sequence[float], count: int) -> float:
    """The mean of the best of `count` of these gains, over all ways to choose them."""
    ordered = sorted(gains)
    ways = math.comb(len(ordered), count)
    return sum(gain * math.comb(place, count - 1) for place, gain in enumerate(ordered)) / ways


def standing_of(variant: PromptVariant, uses: Sequence[Use]) -> VariantStanding:
    """The standing of a variant. `uses`: those of all texts of its expert and target."""
    own = [use for use in uses if use.variant == variant.id]
    shipped = {use.run: use for use in uses if use.variant == SHIPPED}
    precision, total, runs = PRIOR_DEVIATION**-2, PRIOR_MEAN * PRIOR_DEVIATION**-2, 0
    for use in own:
        beside = shipped.get(use.run)
        count = min(len(use.gains), len(beside.gains)) if beside else 0
        if beside is None or not count:
            continue
        runs += 1
        weight = RUN_DEVIATION**-2 * count / (count + HALF_STEPS)
        precision += weight
        total += weight * (expected_best(use.gains, count) - expected_best(beside.gains, count))
    return VariantStanding(
        PromptText(variant.id, variant.sections),
        runs,
        sum(len(use.gains) for use in own),
        sum(use.failed for use in own),
        max((gain for use in own for gain in use.gains), default=0.0),
        mean=total / precision,
        deviation=precision**-0.5,
    )


def draw(arms: Sequence[VariantStanding], stream: random.Random) -> PromptText:
    """Draws the text of a step: a variant if its draw beats the shipped text, which keeps a fixed share."""
    draws = [(stream.gauss(arm.mean, arm.deviation), arm) for arm in arms]
    if stream.random() < SHIPPED_SHARE or not draws:
        return PromptText()
    value, arm = max(draws, key=lambda pair: pair[0])
    return arm.text if value > 0.0 else PromptText()
