"""Migration: islands publish their elites in a shared table; an island that stagnates takes elites of others from
it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from foundry.graph.run.database import Database

PROBABILITY = 0.6  # that a stagnating island looks abroad in a generation
TAKEN = 2  # migrants at most at a time


@dataclass(frozen=True)
class Migrant:
    """An elite as the table holds it; `cell` names its coordinates."""

    candidate: str
    island: int
    merit: float
    cell: str


def publish(database: Database, migrant: Migrant) -> None:
    """Offers an elite to the other islands; its merit is refreshed when it was timed again."""
    database.run(
        "INSERT OR REPLACE INTO elites (candidate, island, merit, cell, at) VALUES (?, ?, ?, ?, ?)",
        (migrant.candidate, migrant.island, migrant.merit, migrant.cell, time.time()),
    )


def list_migrants(database: Database, island: int) -> list[Migrant]:
    """The elites of the other islands, best first."""
    rows = database.run(
        "SELECT candidate, island, merit, cell FROM elites WHERE island != ? ORDER BY merit DESC, candidate", (island,)
    )
    return [Migrant(*row) for row in rows]


def choose(migrants: list[Migrant], stream: random.Random) -> list[Migrant]:
    """The best migrant and, beside it, one drawn by merit."""
    if len(migrants) <= TAKEN:
        return migrants
    drawn = stream.choices(migrants[1:], [migrant.merit for migrant in migrants[1:]])[0]
    return [migrants[0], drawn]
