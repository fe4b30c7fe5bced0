"""The state in which each island begins, or goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.run.services import Services
from foundry.graph.search.orders import UserOrders, no_orders
from foundry.graph.search.state import IslandState, RunState, step_name
from foundry.knowledge.candidate import REFERENCE
from foundry.knowledge.merit import CORRECT, WRONG, merit
from foundry.knowledge.thought import Role


def wants_islands(state: RunState, services: Services) -> bool:
    """True if there is something to search: a device, and a first candidate or a model that can write one."""
    return services.device.present and (bool(state.get("seeds")) or services.brain.name != PLAYBOOK)


def island_inputs(state: RunState, services: Services) -> list[IslandState]:
    """The state with which each island starts: the one in which it ended, or a first one; counters are zero."""
    start, ended = _first_state(state, services), state.get("islands", {})
    usual, added = services.request.island_count, state.get("added", [])
    return [
        IslandState(
            **{
                **start,
                "island": number,
                "orders": _orders(number - usual, added),
                "step": step_name(number, 0),
                **ended.get(str(number), {}),
                "added": len(added),
                "idle": 0,
                "misses": 0,
                "repairs": 0,
                "broken": "",
                "stop": None,
            }
        )
        for number in range(usual + len(added))
    ]


def _first_state(state: RunState, services: Services) -> IslandState:
    """The first state of every island, with all first candidates, or the reference if there are none."""
    refused = state.get("refused", [])
    population = {
        name: WRONG if name in refused else merit([services.evaluation(name, "screen")])
        for name in state.get("seeds", [])
    }
    population = population or {REFERENCE: CORRECT}
    return IslandState(
        run=str(services.run.path),
        generation=0,
        population=population,
        dry=[],
        memory={},
        directives=[],
        inbox_after=0,
        best=max((value for value in population.values() if value >= CORRECT), default=0.0),
    )


def _orders(number: int, added: Sequence[str]) -> UserOrders:
    """The first orders of an island: the role with which a user added it, if any."""
    role = added[number] if 0 <= number < len(added) else ""
    return {**no_orders(), "role": cast("Role", role) if role else None}
