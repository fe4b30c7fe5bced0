"""Finds what limits the candidate."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.measure import screen
from foundry.graph.search.state import IslandState, Update


async def profile(state: IslandState, services: Services) -> Update:
    """Profiles the step's candidate: what limits it. `outcome` is an objection, "" if there is none."""
    return await screen(state, services, "profile")
