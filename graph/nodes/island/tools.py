"""Answers what the expert at work has called."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.briefing import brief_for
from foundry.graph.search.experts import request_of, tools_place
from foundry.graph.search.state import IslandState, Update
from foundry.graph.search.toolbox import Kernel, answer_all


async def use_tools(state: IslandState, services: Services) -> Update:
    """Makes the tool calls that the expert at work asked for, and keeps the answers in the journal.

    The state only goes on to the next turn.
    """
    brief, turn = await brief_for(state, services), state["turns"]
    request = request_of(state, services, turn)
    await answer_all(request, tools_place(state, turn), state["experts"][0], Kernel.of(brief), services)
    return {"turns": turn + 1, "wants": ""}
