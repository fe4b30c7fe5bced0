"""The state in which each island begins, or goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.run.request import role_of
from foundry.graph.run.services import Services
from foundry.graph.search.orders import no_orders
from foundry.graph.search.state import IslandState, RunState, step_name
from foundry.graph.search.strategies.archive import ONE_CELL, Archive, cell_of, insert
from foundry.knowledge.candidate import REFERENCE
from foundry.knowledge.merit import CORRECT, WRONG, merit
from foundry.knowledge.thought import Role


def wants_islands(state: RunState, services: Services) -> bool:
    """Whether there is anything to search: a device, and a first candidate or a model that can write one."""
    return services.device.present and (bool(state.get("seeds")) or services.brain.name != PLAYBOOK)


def island_inputs(state: RunState, services: Services) -> list[IslandState]:
    """What each island is sent: the state in which it ended, or one to begin with."""
    start, ended = _first_state(state, services), state.get("islands", {})
    usual, added = services.request.island_count, state.get("added", [])
    return [
        IslandState(
            **{
                **start,
                "island": number,
                "role": role_of(number, services.request.left_out),
                "own_role": _added_role(number - usual, added),
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
    """What every island starts from: all first candidates, each in its cell of the archive."""
    archive: Archive = {}
    population: dict[str, tuple[str, float]] = {}
    for name in state.get("seeds", []):
        evaluation = services.evaluation(name, "screen")
        value = WRONG if name in state.get("refused", []) else merit([evaluation])
        cell = cell_of(evaluation.coordinates)
        population[name] = (cell, value)
        if evaluation.coordinates is not None and value >= CORRECT:
            archive, _ = insert(archive, name, cell, value)
    if not population:
        archive, _ = insert(archive, REFERENCE, ONE_CELL, CORRECT)
        population = {REFERENCE: (ONE_CELL, CORRECT)}
    return IslandState(
        run=str(services.run.path),
        generation=0,
        archive=archive,
        population=population,
        dry=[],
        transitions=[],
        directives=[],
        inbox_after=0,
        orders=no_orders(),
        best=max((elite["merit"] for elite in archive.values()), default=0.0),
    )


def _added_role(number: int, added: Sequence[str]) -> Role | None:
    """The role of the island that users added as this one; None where they named none."""
    return cast("Role", added[number]) if 0 <= number < len(added) and added[number] else None
