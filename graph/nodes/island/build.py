"""Compiles the candidate."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.measure import screen
from foundry.graph.search.state import IslandState, Update


async def build(state: IslandState, services: Services) -> Update:
    """Compiles the candidate."""
    return await screen(state, services, "build")
