"""Spends a full protocol on a candidate that deserves it."""

from __future__ import annotations

from typing import Any

from foundry.graph.proofs.early import prove_early
from foundry.graph.run.services import Services
from foundry.graph.search.measure import examine_step, objection_to
from foundry.graph.search.state import IslandState, Update
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.merit import Estimate, estimate_of

CLEARLY = 1.03  # ratio to the best so far from which a candidate deserves the full protocol
LIKELY = 0.84  # least probability that it reaches this ratio
LATE = 0.85  # share of the budget after which candidates are proven only at the end, among the finalists


async def prove(state: IslandState, services: Services) -> Update:
    """Proves the first right kernel of a structure early, and a candidate that is clearly better than all others fully.

    Returns {} if neither is due, else `proven` and the objection as `outcome`.
    """
    screened = await examine_step(state, services, "screen")
    if refused := await _prove_early(state, services, screened):
        return {"proven": True, "outcome": refused}
    found = estimate_of([screened])
    bar = services.journal.plain(f"{state['step']}/bar", "outside", lambda: _bar(services))
    if found is None or not bar["is_open"]:
        return {}
    if bar["best"] and found.chance_beyond(Estimate(*bar["best"]), CLEARLY) < LIKELY:
        return {}
    return {"proven": True, "outcome": objection_to(await examine_step(state, services, "full"))}


async def _prove_early(state: IslandState, services: Services, screened: Evaluation) -> str:
    """The reason why an early proof refuses the candidate; "" if it does not, or none is due."""
    if objection_to(screened) or screened.timing is None:
        return ""
    candidate, text = screened.candidate, services.run.text(state["text"])
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    found = await prove_early(services, screened, text, lowered, state["step"])
    return objection_to(found) if found else ""


def _bar(services: Services) -> dict[str, Any]:
    """{"is_open": True if the budget has room for another proof, "best": the estimate to beat or []}."""
    spent, allowed = services.ledger.spent(), services.ledger.allowed()
    late = spent.minutes > LATE * allowed.minutes or spent.evaluations > LATE * allowed.evaluations
    best = services.best()
    known = estimate_of(services.run.records(best.candidate.id)) if best else None
    return {
        "is_open": not late and services.run.count("full") < services.effort.proofs,
        "best": [known.log_speedup, known.deviation] if known else [],
    }
