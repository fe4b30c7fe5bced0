"""Asks the experience store."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.lessons import query
from foundry.graph.search.state import RunState, Update


async def recall(state: RunState, services: Services) -> Update:
    """Asks the experience store what worked on graphs like this one; the journal keeps the answer for later nodes."""
    if services.store is not None and services.store.note:
        services.log.note_once("note", "experience store", reason=services.store.note)
    graphs = await services.graphs()
    if graphs:
        await services.recall("recall", query(graphs[0], services.device), k=24)
    return {}
