"""Reads the task on the machine."""

from __future__ import annotations

from foundry.graph.run.inbox import split_instructions
from foundry.graph.run.services import Services
from foundry.graph.search.asking import ask_for_model
from foundry.graph.search.state import RunState, Update


async def intake(state: RunState, services: Services) -> Update:
    """Reads the task on the machine and refuses a bad one; raises TaskError."""
    if services.brain.name != "playbook" and not ask_for_model(services):
        services.refuse_model()
    found = await services.measure.intake()
    unread = split_instructions(services.task.options.instructions)[1]
    if unread and services.brain.name == "playbook":
        reason = f"the playbook reads only the steering language, not {unread[0]!r}"
        services.log.note_once("note", "instructions", reason=reason)
    services.log.note_once(
        "note",
        "task",
        task=services.task.name,
        device=services.device.key,
        brain=services.brain.name,
        inputs=[list(spec.shape) for spec in found.inputs],
        outputs=[list(spec.shape) for spec in found.outputs],
    )
    return {"decisions": 0}
