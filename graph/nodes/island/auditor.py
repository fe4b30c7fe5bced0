"""Asks the auditor's executable gates."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.measure import screen
from foundry.graph.search.state import IslandState, Update


async def auditor(state: IslandState, services: Services) -> Update:
    """Audits the step's candidate. `outcome` is an objection, "" if there is none."""
    return await screen(state, services, "audit")
