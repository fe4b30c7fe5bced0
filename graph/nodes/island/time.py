"""Times the candidate."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.measure import screen
from foundry.graph.search.state import IslandState, Update


async def time(state: IslandState, services: Services) -> Update:
    """Times it against the baseline, a few pairs."""
    return await screen(state, services, "time")
