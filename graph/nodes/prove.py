"""Proves the finalists."""

from __future__ import annotations

import asyncio

from foundry.graph.run.services import Services
from foundry.graph.search.final import prove_finalists
from foundry.graph.search.state import RunState, Update
from foundry.graph.search.strategies.prompt_rewriting import gather_evidence, rewrite


async def prove(state: RunState, services: Services) -> Update:
    """Proves the finalists in fresh processes; beside that, a model may rewrite a section of a prompt."""
    evidence = await gather_evidence(services)
    winner, _ = await asyncio.gather(prove_finalists(services), rewrite(evidence, services))
    return {"winner": winner}
