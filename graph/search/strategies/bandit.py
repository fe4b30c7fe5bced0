"""Chooses the model that thinks next: the one that promises most for its price, by its gains so far.

A model brings improvements (the logarithm of a child's speedup over its parent's) and costs dollars. How much it brings
a dollar is unknown; improvements are taken as arriving at a constant rate, whose posterior is a gamma distribution. A
rate is drawn for each model and the highest wins (Thompson sampling): a model of which little is known is tried,
and one that costs without bringing anything is soon left. Before anything is known every model is thought to bring one
improvement a step, so that a cheap one begins with the better rate.

The draw reads the run's tables, so it is journalled: once a step, shown in the trace, and the same in a replay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from foundry.agents.prices import STEP_TOKENS, Price
from foundry.graph.run.model_records import IMPROVEMENT, ModelRecord, read_records
from foundry.graph.search.strategy import Here, Strategy

if TYPE_CHECKING:
    from foundry.agents.brief import Brief
    from foundry.graph.run.services import Services
    from foundry.knowledge.thought import ExpertName

LEAST_COST = 1e-4  # dollars of a step, so that nothing is free: it takes time


@dataclass(frozen=True)
class Yield:
    """Gains and cost of a model so far.

    `steps`: steps that it was asked for; `gain`: sum of its improvements; `cost`: in dollars, or in millions of tokens
    if a price is not known.
    """

    steps: int = 0
    gain: float = 0.0
    cost: float = 0.0


def expected_cost(price: Price) -> float:
    """The expected cost of one step in dollars, at least LEAST_COST."""
    prompt, answer = STEP_TOKENS
    return max(LEAST_COST, price.dollars(prompt, 0, answer))


def draw(yields: Mapping[str, Yield], expected: Mapping[str, float], stream: random.Random) -> dict[str, float]:
    """Draws a rate for each model: improvements for each unit of cost. `expected`: expected cost of one step."""
    rates = {}
    for name, known in yields.items():
        cost = expected[name] + max(known.cost, known.steps * LEAST_COST)
        rates[name] = stream.gammavariate(1.0 + known.gain / IMPROVEMENT, 1.0 / cost)
    return rates


def yields_of(records: Sequence[ModelRecord]) -> dict[str, Yield]:
    """Gains and cost of each model, by name. If one price is not known, the cost of all is in tokens."""
    priced = all(record.priced for record in records)
    return {item.name: Yield(item.steps, item.gain, replace(item, priced=priced).cost) for item in records}


class Bandit(Strategy):
    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """The brief with a model for this expert, drawn once a step; unchanged if fewer than two models serve it."""
        services, names = here.services, here.services.request.models.of(expert) if expert else ()
        if len(names) < 2:
            return brief
        key = f"{brief.step}/model/{expert}"
        return replace(
            brief, model=str(services.journal.plain(key, "outside", lambda: _choose(services, expert, brief)))
        )


def _choose(services: Services, expert: ExpertName, brief: Brief) -> str:
    """Draws a rate for each of the expert's models and returns the best one's name. Notes the choice in the trace."""
    models = services.request.models
    names = models.of(expert)
    yields = yields_of([record for record in read_records(services.run) if record.name in names])
    specs = [models.spec(name) for name in names]
    priced = all(spec.price.known for spec in specs)
    expected = {spec.name: expected_cost(spec.price) if priced else 1e-6 * sum(STEP_TOKENS) for spec in specs}
    rates = draw(yields, expected, services.stream(f"{brief.step}:{expert}:model"))
    chosen = max(rates, key=lambda name: rates[name])
    services.log.note("note", "model chosen", expert=expert, model=chosen, reason=_because(rates, yields, priced))
    return chosen


def _because(rates: Mapping[str, float], yields: Mapping[str, Yield], priced: bool) -> str:
    """Each model's draw with its steps, gains and cost, in words, the largest draw first."""
    unit = "dollars" if priced else "million tokens"
    return "; ".join(
        f"{name} drew {rate:.3g} ({yields[name].steps} steps, gains of {math.exp(yields[name].gain):.2f}x for "
        f"{yields[name].cost:.4f} {unit})"
        for name, rate in sorted(rates.items(), key=lambda item: -item[1])
    )


STRATEGY = Bandit()
