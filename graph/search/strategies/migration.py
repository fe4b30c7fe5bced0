"""Migration: an island that stagnates may begin a step from the best candidates of other islands."""

from __future__ import annotations

from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.search.strategy import Here, Strategy, Weights

PROBABILITY = 0.6  # chance that a stagnating island considers migrants at a step
TAKEN = 2  # most migrants at a time: the best one, and one drawn by merit


def find_migrants(run: RunDirectory, island: int) -> list[tuple[str, float]]:
    """(candidate, merit) of other islands, the best first."""
    made = {item.candidate.id for item in run.decisions() if item.proposal and item.island != island}
    rows = run.database.run("SELECT candidate, MAX(merit) FROM evaluations GROUP BY candidate ORDER BY 2 DESC, 1")
    return [(name, merit) for name, merit in rows if name in made]


class Migration(Strategy):
    async def parents(self, here: Here, weights: Weights) -> Weights:
        """The weights; with PROBABILITY, on an island without progress, also those of up to TAKEN candidates of other
        islands."""
        state, services = here.state, here.services
        stream = services.stream(f"{state['step']}:migrate")
        if state["idle"] < services.effort.stagnation or stream.random() >= PROBABILITY:
            return weights
        key = f"{state['step']}/abroad"
        found = services.journal.plain(key, "outside", lambda: find_migrants(services.run, state["island"]))
        fresh = [(name, merit) for name, merit in found if name not in {*state["population"], *state["dry"]}]
        if len(fresh) > TAKEN:
            fresh = [fresh[0], *stream.choices(fresh[1:], [merit for _, merit in fresh[1:]], k=TAKEN - 1)]
        best = max(weights.values(), default=1.0)
        highest = max((merit for merit in state["population"].values()), default=1.0)
        return {**weights, **{name: best * (merit / highest) ** 2 for name, merit in fresh}}


STRATEGY = Migration()
