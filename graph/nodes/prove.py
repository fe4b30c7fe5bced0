"""Proves the finalists."""

from __future__ import annotations

import asyncio

from foundry.graph.run.services import Services
from foundry.graph.search.final import prove_finalists
from foundry.graph.search.state import RunState, Update
from foundry.graph.search.strategy import conclude


async def prove(state: RunState, services: Services) -> Update:
    """Proves the finalists in fresh processes, and tells the run's strategies that the search has ended."""
    winner, _ = await asyncio.gather(prove_finalists(services), conclude(services))
    return {"winner": winner}
