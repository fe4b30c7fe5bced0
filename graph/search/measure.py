"""The tests an island puts a candidate through: build, verify, audit, time, profile, prove.

Each node asks for one measurement and says in `outcome` why the candidate ends there, "" while it goes on.
"""

from __future__ import annotations

from typing import Any

from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandState
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.merit import Estimate, estimate_of

CLEARLY = 1.03  # a candidate deserves the full protocol when it is so much faster than the best so far,
LIKELY = 0.84  # with this probability
LATE = 0.85  # of the budget: what is found later is proven at the end, among the finalists

Update = dict[str, Any]


async def build(state: IslandState, services: Services) -> Update:
    """Compiles the candidate."""
    built = await services.measure.build(services.run.text(state["text"]))
    return {"outcome": "" if built.ok else "compile_error"}


async def verify(state: IslandState, services: Services) -> Update:
    """Checks its results, by the quick screen."""
    verdict = await services.measure.verify(services.run.text(state["text"]), "screen")
    return {"outcome": "" if verdict.correct else verdict.outcome}


async def audit(state: IslandState, services: Services) -> Update:
    """Asks the auditor's executable gates."""
    found = await services.measure.audit(services.run.text(state["text"]), "screen")
    return {"outcome": "" if found.clean else "cheating"}


async def time(state: IslandState, services: Services) -> Update:
    """Times it against the baseline, a few pairs."""
    best = services.best()
    incumbent = best.timing.candidate_ms if best and best.timing else None
    timing = await services.measure.time(services.run.text(state["text"]), "screen", incumbent)
    return {"outcome": "untimed" if timing.problem else ""}


async def profile(state: IslandState, services: Services) -> Update:
    """Finds what limits it and where in the archive it belongs."""
    await screened(state, services)
    return {}


async def prove(state: IslandState, services: Services) -> Update:
    """Spends one of the run's full protocols on a candidate that is clearly better than every other so far."""
    found = estimate_of([await screened(state, services)])
    bar = services.journal.plain(f"{state['step']}/bar", "outside", lambda: _bar(services))
    if found is None or not bar["is_open"]:
        return {}
    if bar["best"] and found.chance_beyond(Estimate(*bar["best"]), CLEARLY) < LIKELY:
        return {}
    text = services.run.text(state["text"])
    verdict = await services.measure.verify(text, "full")
    if not verdict.correct:
        return {"proven": True, "outcome": verdict.outcome}
    audited = await services.measure.audit(text, "full")
    if not audited.clean:
        return {"proven": True, "outcome": "cheating"}
    timing = await services.measure.time(text, "full")
    return {"proven": True, "outcome": "untimed" if timing.problem else ""}


def _bar(services: Services) -> dict[str, Any]:
    """Whether a proof is left, and time to use one; and the estimate to beat for it, empty while there is none."""
    spent, allowed = services.ledger.spent(), services.ledger.allowed()
    late = spent.minutes > LATE * allowed.minutes or spent.evaluations > LATE * allowed.evaluations
    best = services.best()
    known = estimate_of(services.run.records(best.candidate.id)) if best else None
    return {
        "is_open": not late and services.run.count("full") < services.effort.proofs,
        "best": [known.log_speedup, known.deviation] if known else [],
    }


async def screened(state: IslandState, services: Services) -> Evaluation:
    """What the screen says of the step's candidate, from the journal where the nodes have asked."""
    candidate = services.candidate(state["candidate"])
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    return await services.measure.evaluation(candidate, services.run.text(state["text"]), "screen", lowered)
