"""Times the candidate."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.measure import screen
from foundry.graph.search.state import IslandState, Update


async def time(state: IslandState, services: Services) -> Update:
    """Times the step's candidate against the baseline, a few pairs. `outcome` is an objection, "" if there is none."""
    return await screen(state, services, "time")
