"""What an island's strands have found, folded into each strand's picture of the island.

The strands of an island share its candidates. Results are folded in the order in which they were recorded; which of
them a strand knows is journalled whenever it looks. So all strands come to the same picture, and a resumed or replayed
run folds the same results at the same steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from foundry.graph.search.state import Findings, IslandState, Update
from foundry.graph.search.strategies.archive import ONE_CELL, Gain, cell_of, insert
from foundry.graph.search.strategies.gradients import Transition, remember
from foundry.knowledge.merit import CORRECT, WRONG, merit

if TYPE_CHECKING:
    from foundry.graph.run.services import Services

GAIN = 1.005  # the merit that counts as a better candidate
KEPT = 64  # candidates an island remembers as possible parents


def find_results(state: IslandState, services: Services) -> Findings:
    """What the island's strands have recorded since this one looked last."""
    upto = services.run.mark().evaluation
    return Findings(upto=upto, found=services.run.results(state["island"], state["folded"], upto))


def fold(state: IslandState, results: Findings, services: Services) -> tuple[Update, Mapping[str, Gain]]:
    """The picture with these results, and what each of them gained."""
    population, archive, transitions = dict(state["population"]), state["archive"], state["transitions"]
    best, idle = state.get("best", 0.0), state.get("idle", 0)
    gradients, gains = {"gradients", "archive"}.isdisjoint(services.request.left_out), dict[str, Gain]()
    for name, stage in results["found"]:
        records = services.records(name, stage)
        candidate, value = records[-1].candidate, merit(records)
        is_new, better = name not in population, value > GAIN * best
        before = population.get(candidate.parents[0], (ONE_CELL, WRONG))
        best, idle = (value, 0) if better else (best, idle + is_new)
        coordinates = records[-1].coordinates
        if coordinates is None or value < CORRECT:
            population[name], gains[name] = (before[0], value), ""
        else:
            cell = cell_of(coordinates)
            archive, gains[name] = insert(archive, name, cell, value)
            population[name] = (cell, value)
            transition: Transition = (before[0], cell, before[1], value)
            transitions = remember(transitions, transition) if gradients else []
        population = keep_best(population)
    update: Update = {"population": population, "archive": archive, "transitions": transitions}
    return {**update, "best": best, "idle": idle, "folded": results["upto"]}, gains


def keep_best(population: Mapping[str, tuple[str, float]]) -> dict[str, tuple[str, float]]:
    """The best candidates of a population, in the order they came."""
    best = set(_ranked(population)[:KEPT])
    return {name: place for name, place in population.items() if name in best}


def _ranked(population: Mapping[str, tuple[str, float]]) -> Sequence[str]:
    return sorted(population, key=lambda name: -population[name][1])
