"""Which of several models thinks next: the one that promises most for its price, by what each has brought so far.

A model brings improvements (the logarithm of a child's speedup over its parent's) and costs dollars. How much it brings
a dollar is unknown; improvements are taken as arriving at a constant rate, whose posterior is a gamma distribution. A
rate is drawn for each model and the highest wins (Thompson sampling), so that a model of which little is known is tried
and one that costs without bringing anything is soon left. Before anything is known every model is thought to bring one
improvement a step, so that a cheap one begins with the better rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from foundry.agents.prices import Price

IMPROVEMENT = math.log(1.1)  # that counts as one arrival
MOST = math.log(4.0)  # that one step is credited with: a slow parent is easily improved
LEAST_COST = 1e-4  # of a step, so that nothing is free: it takes time
STEP_TOKENS = (7_000, 1_500)  # of prompt and answer that a step is thought to take


@dataclass(frozen=True)
class Yield:
    """What a model has brought and cost so far: steps that it was asked for, the sum of its improvements, and their
    cost in dollars, or in millions of tokens where a price is not known."""

    steps: int = 0
    gain: float = 0.0
    cost: float = 0.0


def expected_cost(price: Price) -> float:
    """Of one step, in dollars."""
    prompt, answer = STEP_TOKENS
    return max(LEAST_COST, price.dollars(prompt, 0, answer))


def draw(yields: Mapping[str, Yield], expected: Mapping[str, float], stream: random.Random) -> dict[str, float]:
    """A rate for each model: improvements a dollar. `expected`: what a step of it is thought to cost."""
    rates = {}
    for name, known in yields.items():
        cost = expected[name] + max(known.cost, known.steps * LEAST_COST)
        rates[name] = stream.gammavariate(1.0 + known.gain / IMPROVEMENT, 1.0 / cost)
    return rates


def credit(child_speedup: float, parent_speedup: float) -> float:
    """What a step brought, both speedups being those that candidates are compared by; a kernel that is right where its
    parent was not is one improvement (`parent_speedup` 0)."""
    if child_speedup <= 0.0:
        return 0.0
    if parent_speedup <= 0.0:
        return IMPROVEMENT
    return min(MOST, max(0.0, math.log(child_speedup / parent_speedup)))
