"""The choice among several models: what each brings for its price decides, and nobody is left out for ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from foundry.agents.prices import Price
from foundry.graph.run.model_records import IMPROVEMENT, MOST, gain_of
from foundry.graph.search.strategies.bandit import Yield, draw, expected_cost

CHEAP, DEAR = Price(0.2, 0.02, 1.2), Price(5.0, 0.5, 30.0)
EXPECTED = {"cheap": expected_cost(CHEAP), "dear": expected_cost(DEAR)}


def share(yields: dict[str, Yield], name: str, times: int = 2000) -> float:
    chosen: Counter[str] = Counter()
    stream = random.Random(5)
    for _ in range(times):
        rates = draw(yields, EXPECTED, stream)
        chosen[max(rates, key=lambda name: rates[name])] += 1
    return chosen[name] / times


def test_the_cheap_one_begins_and_the_dear_one_is_tried() -> None:
    assert 0.9 < share({"cheap": Yield(), "dear": Yield()}, "cheap") < 1.0


def test_what_brings_nothing_gives_way_to_what_brings_more_for_the_same_money() -> None:
    cost = 30 * EXPECTED["cheap"]
    idle = Yield(30, 0.0, cost)
    assert share({"cheap": idle, "dear": Yield(2, 8 * IMPROVEMENT, cost)}, "dear") > 0.95
    assert share({"cheap": idle, "dear": Yield()}, "dear") > 0.2  # of which nothing is known yet


def test_the_price_counts_and_not_the_step() -> None:
    """The dear one brings more a step, the cheap one more a dollar."""
    yields = {"cheap": Yield(20, 6 * IMPROVEMENT, 20 * EXPECTED["cheap"]), "dear": Yield(20, 20 * IMPROVEMENT, 1.6)}
    assert share(yields, "cheap") > 0.9


def test_in_a_simulated_run_the_better_rate_gets_most_of_the_money() -> None:
    """The dear model brings 60 times as much a step for 25 times the price: it is found out and kept."""
    world, stream = random.Random(3), random.Random(4)
    yields = {"cheap": Yield(), "dear": Yield()}
    chance = {"cheap": 0.01, "dear": 0.6}
    for _ in range(150):
        rates = draw(yields, EXPECTED, stream)
        name = max(rates, key=lambda name: rates[name])
        known = yields[name]
        gain = IMPROVEMENT if world.random() < chance[name] else 0.0
        yields[name] = Yield(known.steps + 1, known.gain + gain, known.cost + EXPECTED[name])
    assert yields["dear"].cost > 4 * yields["cheap"].cost and yields["dear"].steps > 30


@pytest.mark.parametrize(
    ("child", "parent", "gain"),
    [(2.2, 2.0, IMPROVEMENT), (1.0, 2.0, 0.0), (0.0, 2.0, 0.0), (3.0, 0.0, IMPROVEMENT), (90.0, 1.0, MOST)],
)
def test_a_step_is_credited_with_what_it_is_faster_than_its_parent(child: float, parent: float, gain: float) -> None:
    assert gain_of(child, parent) == pytest.approx(gain)
