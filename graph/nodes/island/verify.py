"""Checks the candidate's results."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.measure import screen
from foundry.graph.search.state import IslandState, Update


async def verify(state: IslandState, services: Services) -> Update:
    """Checks the results of the step's candidate by the quick screen. `outcome` is an objection, "" if right."""
    return await screen(state, services, "verify")
