"""Reports the operator graph of the task."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.orders import check_instructions
from foundry.graph.search.state import RunState, Update
from foundry.knowledge.roofline import floors
from foundry.knowledge.task import foreign_imports


async def capture(state: RunState, services: Services) -> Update:
    """Reports the operator graph: its operators, and the least time that the device's ceilings allow.

    `lowerable` is False if the task could not be captured. Raises TaskError for instructions that no kernel can follow.
    """
    found = await services.measure.intake()
    if not found.graphs:
        services.log.note_once("note", "not captured", reason=found.capture_note)
        more = "; a chat model may write a kernel (--model NAME)" if services.brain.name == "playbook" else ""
        return {"lowerable": False, "ending": f"the task could not be captured: {found.capture_note}{more}"}
    graph = found.graphs[0]
    services.log.note_once(
        "note",
        "graph",
        operators=graph.op_counts(),
        flops=graph.flops,
        min_bytes=graph.min_bytes,
        floor_ms=floors(services.device, graph, services.task.options.policy).allowed_ms,
        signature=graph.signature,
        tracer=graph.tracer,
        shapes=len(found.graphs),
    )
    if graph.kept_class:
        needed = ", ".join(foreign_imports(services.task.text))
        reason = f"the kernel's file needs {needed} where it is used, because {graph.kept_class}"
        services.log.note_once("note", "more than torch", reason=reason)
    if graph.assumptions:
        services.log.note_once("note", "assumed", reason="; ".join(graph.assumptions) + ": the proof decides")
    await check_instructions(services)
    return {"lowerable": True}
