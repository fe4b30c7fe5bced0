"""Exports the winner."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.asking import ask_for_export
from foundry.graph.search.final import finish_run
from foundry.graph.search.orders import answer_untaken
from foundry.graph.search.state import RunState, Update


async def finish(state: RunState, services: Services) -> Update:
    """Writes the winner with its receipt, unless the user refuses; then the run has no winner. Answers directives that
    were not taken."""
    winner, ending = state.get("winner", ""), state.get("ending", "")
    if winner and not ask_for_export(services, services.evaluation(winner, "final")):
        services.run.set("winner", "")
        winner, ending = "", f"{winner} was proven, and the user did not want it exported"
    answer_untaken(services)
    await finish_run(services, winner, ending)
    return {"winner": winner}
