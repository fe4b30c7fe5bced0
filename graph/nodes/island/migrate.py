"""Offers elites to the other islands and takes in theirs."""

from __future__ import annotations

from typing import Any

from foundry.graph.nodes.island.learn import keep_best
from foundry.graph.run.services import Services
from foundry.graph.search.state import (
    IslandState,
    Update,
)
from foundry.graph.search.strategies.archive import insert
from foundry.graph.search.strategies.migration import PROBABILITY, Migrant, choose, list_migrants, publish


async def migrate(state: IslandState, services: Services) -> Update:
    """Offers a new elite to the other islands; takes some of theirs in when this one stagnates."""
    step = state["step"]
    idle = state.get("idle", 0) if state.get("candidate") else state.get("idle", 0) + 1
    name = state.get("candidate", "")
    for cell, elite in state["archive"].items():
        if elite["candidate"] == name:
            publish(services.run.database, Migrant(name, state["island"], elite["merit"], cell))
    stream = services.stream(f"{step}:migrate")
    if "migration" in services.request.left_out:
        return {"idle": idle}
    if idle < services.effort.stagnation or stream.random() >= PROBABILITY:
        return {"idle": idle}
    rows = services.journal.plain(f"{step}/abroad", "outside", lambda: _find_migrants(state, services))
    taken = choose([Migrant(*row) for row in rows], stream)
    archive, population = state["archive"], dict(state["population"])
    for migrant in taken:
        archive, gain = insert(archive, migrant.candidate, migrant.cell, migrant.merit)
        population[migrant.candidate] = (migrant.cell, migrant.merit)
        services.log.note_once(
            "migration", migrant.candidate, origin=migrant.island, merit=round(migrant.merit, 4), gain=gain
        )
    return {"idle": idle, "archive": archive, "population": keep_best(population)}


def _find_migrants(state: IslandState, services: Services) -> list[tuple[Any, ...]]:
    known = state["population"]
    return [
        (migrant.candidate, migrant.island, migrant.merit, migrant.cell)
        for migrant in list_migrants(services.run.database, state["island"])
        if migrant.candidate not in known
    ]
