"""What the experts are shown at a step, put together from the run's records: the same again when replayed."""

from __future__ import annotations

import contextlib

from foundry.agents.brief import Brief
from foundry.graph.run.services import Recalled, Services
from foundry.graph.search.archive import candidate_number
from foundry.graph.search.gradients import hints
from foundry.graph.search.lessons import query
from foundry.graph.search.state import IslandState
from foundry.knowledge.candidate import Stage
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.thought import Diagnosis

SHOWN_ELITES = 6


async def brief_for(
    state: IslandState, services: Services, diagnosis: Diagnosis | None = None, recalled: Recalled | None = None
) -> Brief:
    """The brief of the step at hand; `diagnosis` and `recalled` join it once they are known."""
    step = f"i{state['island']}g{state['generation']}"
    view = services.journal.plain(f"{step}/gate", "outside", dict)
    stages: dict[str, Stage] = view["stages"]
    parent = services.evaluation(state["parent"], stages.get(state["parent"]))
    lowered: Lowered | None = None
    if parent.candidate.recipe is not None:
        with contextlib.suppress(CannotLower):
            lowered = await services.lower(parent.candidate.recipe)
    graphs = await services.graphs()
    elites = sorted(
        state["archive"].values(), key=lambda elite: (-elite["merit"], candidate_number(elite["candidate"]))
    )
    cell = state["population"][state["parent"]][0] if state["parent"] in state["population"] else "000"
    idle = state.get("idle", 0)
    return Brief(
        task=services.task,
        graph=graphs[0] if graphs else None,
        device=services.device,
        baseline=await services.measure.baseline(),
        role=state["role"],
        island=state["island"],
        generation=state["generation"],
        step=step,
        seed=services.request.seed,
        parent=parent,
        parent_text=services.text(parent),
        lowered=lowered,
        diagnosis=diagnosis,
        hits=recalled.hits if recalled else (),
        lifts=recalled.lifts if recalled else (),
        directives=tuple(item for item in services.directives() if item.id in state["active"]),
        hints=hints(cell, state["transitions"], state["archive"]),
        stagnant_generations=idle if idle >= services.effort.stagnation else 0,
        elites=tuple(
            services.evaluation(elite["candidate"], stages.get(elite["candidate"])) for elite in elites[:SHOWN_ELITES]
        ),
        tried=services.tried(view["tried"]),
        further_graphs=tuple(graphs[1:]),
    )


async def recalled_for(step: str, services: Services, diagnosis: Diagnosis) -> Recalled:
    """What the store knows about this diagnosis on graphs like this one."""
    graphs = await services.graphs()
    if not graphs:
        return Recalled()
    limiter = diagnosis.failure or diagnosis.limiter or ""
    return await services.recall(f"{step}/recalled", query(graphs[0], services.device, limiter, diagnosis.action))
