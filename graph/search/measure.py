"""The tests an island puts a candidate through: build, verify, audit, time, profile, prove.

Each node walks the one path (tools/grade/host/examine.py) one step further and sets `outcome`: why the candidate's
tests end there, or "".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foundry.graph.proofs.early import prove_early
from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandState, Update
from foundry.knowledge.candidate import Evaluation, Stage
from foundry.knowledge.merit import Estimate, estimate_of
from foundry.knowledge.ruling import objection

if TYPE_CHECKING:
    from foundry.tools.grade.host.examine import Step

CLEARLY = 1.03  # a candidate deserves the full protocol when it is so much faster than the best so far,
LIKELY = 0.84  # with this probability
LATE = 0.85  # of the budget: what is found later is proven at the end, among the finalists


async def build(state: IslandState, services: Services) -> Update:
    """Compiles the candidate."""
    return await _screen(state, services, "build")


async def verify(state: IslandState, services: Services) -> Update:
    """Checks its results, by the quick screen."""
    return await _screen(state, services, "verify")


async def audit(state: IslandState, services: Services) -> Update:
    """Asks the auditor's executable gates."""
    return await _screen(state, services, "audit")


async def time(state: IslandState, services: Services) -> Update:
    """Times it against the baseline, a few pairs."""
    return await _screen(state, services, "time")


async def profile(state: IslandState, services: Services) -> Update:
    """Finds what limits it and where in the archive it belongs."""
    return await _screen(state, services, "profile")


async def prove(state: IslandState, services: Services) -> Update:
    """Asks the proof's questions of the first right kernel of a structure, and spends one of the run's full protocols
    on a candidate that is clearly better than every other so far."""
    screened = await examine_step(state, services, "screen")
    if refused := await _prove_early(state, services, screened):
        return {"proven": True, "outcome": refused}
    found = estimate_of([screened])
    bar = services.journal.plain(f"{state['step']}/bar", "outside", lambda: _bar(services))
    if found is None or not bar["is_open"]:
        return {}
    if bar["best"] and found.chance_beyond(Estimate(*bar["best"]), CLEARLY) < LIKELY:
        return {}
    return {"proven": True, "outcome": _objection(await examine_step(state, services, "full"))}


async def _prove_early(state: IslandState, services: Services, screened: Evaluation) -> str:
    """Why an early proof refuses the candidate; "" if it does not, or none is due."""
    if _objection(screened) or screened.timing is None:
        return ""
    candidate, text = screened.candidate, services.run.text(state["text"])
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    found = await prove_early(services, screened, text, lowered, state["step"])
    return _objection(found) if found else ""


async def examine_step(state: IslandState, services: Services, stage: Stage, upto: Step = "profile") -> Evaluation:
    """The records of the step's candidate up to `upto`, or up to the test that it failed."""
    candidate = services.candidate(state["candidate"])
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    best = services.best() if (stage, upto) == ("screen", "time") else None
    incumbent_ms = best.timing.candidate_ms if best and best.timing else None  # a screen ends early for a slower one
    text = services.run.text(state["text"])
    return await services.measure.examine(candidate, text, stage, upto=upto, lowered=lowered, incumbent_ms=incumbent_ms)


async def _screen(state: IslandState, services: Services, upto: Step) -> Update:
    return {"outcome": _objection(await examine_step(state, services, "screen", upto))}


def _objection(evaluation: Evaluation) -> str:
    """Why the candidate's tests end here, "" while they go on."""
    found = objection(evaluation)
    return found.outcome if found else ""


def _bar(services: Services) -> dict[str, Any]:
    """Whether the budget has room for another proof, and the estimate that a candidate must beat to get it."""
    spent, allowed = services.ledger.spent(), services.ledger.allowed()
    late = spent.minutes > LATE * allowed.minutes or spent.evaluations > LATE * allowed.evaluations
    best = services.best()
    known = estimate_of(services.run.records(best.candidate.id)) if best else None
    return {
        "is_open": not late and services.run.count("full") < services.effort.proofs,
        "best": [known.log_speedup, known.deviation] if known else [],
    }
