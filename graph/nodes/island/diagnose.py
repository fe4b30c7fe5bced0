"""Says what broke or limits the parent."""

from __future__ import annotations

from foundry.graph.run.services import Services
from foundry.graph.search.briefing import add_diagnosis, brief_for, look_closer
from foundry.graph.search.state import IslandState, Update
from foundry.graph.search.strategy import show
from foundry.knowledge.thought import Diagnosis


async def diagnose(state: IslandState, services: Services) -> Update:
    """Finds what broke or limits the parent and asks the store about it. Returns the diagnosis and the experts to ask.

    Their order follows from diagnosis, role and directives. A user's file needs no diagnosis.
    """
    from foundry.agents.route import ranking

    if state["given"]:  # a user's file needs no diagnosis: who would mend it hands it on
        return {"diagnosis": None, "experts": ["diagnostician"]}
    brief = await look_closer(await brief_for(state, services), services)
    with services.log.span("expert", "diagnostician", purpose="diagnose", candidate=state["parent"]) as span:
        diagnosis = await services.journal.record(
            f"{state['step']}/diagnosis", "thought", Diagnosis, lambda: services.brain.diagnose(brief)
        )
        span.data["found"] = diagnosis.failure or diagnosis.limiter
        span.data["evidence"] = diagnosis.evidence
        span.data["action"] = diagnosis.action
    brief = await add_diagnosis(brief, diagnosis, services)
    return {"diagnosis": diagnosis, "experts": list(ranking(await show(brief, state, services), diagnosis))}
