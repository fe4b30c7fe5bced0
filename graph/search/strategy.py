"""The protocol of search strategies, and those that a user asks for (`--strategy NAME`).

A strategy is a file of `graph/search/strategies`. It has not been shown to help, so nothing of it is on the default
path: what it keeps is one text of its own in an island's state, which nothing else reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from foundry.agents.brief import Brief
    from foundry.graph.run.services import Services
    from foundry.graph.search.state import IslandState
    from foundry.knowledge.candidate import Evaluation
    from foundry.knowledge.thought import ExpertName

Weights = dict[str, float]  # candidate -> how probably it is drawn as a parent, up to a common factor


@dataclass(frozen=True)
class Here:
    """The place at which a strategy is asked: an island at a step.

    `memory` is the last result of `learn`, "" at first.
    """

    state: IslandState
    services: Services
    memory: str = ""


class Strategy(Protocol):
    """Changes nothing where a method is not overridden. A method may journal what it reads from outside the island."""

    async def parents(self, here: Here, weights: Weights) -> Weights:
        """Returns the weights with which the next parent is drawn; it may add a candidate of another island."""
        return weights

    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """Returns the brief that an expert is shown; `expert` is "" before one is chosen."""
        return brief

    async def learn(self, here: Here, child: Evaluation | None) -> str:
        """Returns the new memory, a JSON text, after a step's candidate is recorded.

        `child` None: the search has ended; this comes once a run, without an island.
        """
        return here.memory


def active(services: Services) -> Iterator[tuple[str, Strategy]]:
    """Yields (name, strategy) of a run's strategies, in the order in which the user named them."""
    for name in services.request.strategies:
        strategy: Strategy = import_module(f"foundry.graph.search.strategies.{name}").STRATEGY
        yield name, strategy


def here(name: str, state: IslandState, services: Services) -> Here:
    """The place at which strategy `name` is asked in this state, with its memory."""
    return Here(state, services, state["memory"].get(name, ""))


async def show(brief: Brief, state: IslandState, services: Services, expert: ExpertName = "") -> Brief:
    """The brief after each of the run's strategies has changed it."""
    for name, strategy in active(services):
        brief = await strategy.propose(here(name, state, services), brief, expert)
    return brief


async def remember(state: IslandState, services: Services, child: Evaluation) -> dict[str, str]:
    """The new memory of each strategy after a step, by name."""
    return {name: await strategy.learn(here(name, state, services), child) for name, strategy in active(services)}


async def conclude(services: Services) -> None:
    """Tells the run's strategies that the search has ended."""
    for _, strategy in active(services):
        await strategy.learn(Here({}, services), None)
