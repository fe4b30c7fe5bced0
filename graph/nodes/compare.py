"""Times the winner beside other ways to run the reference."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.final import hold_contest
from foundry.graph.search.state import RunState, Update


async def compare(state: RunState, services: Services) -> Update:
    """Times the winner in turns with the baselines that the user asked for, such as torch.compile."""
    await hold_contest(services, state.get("winner", ""))
    return {}
