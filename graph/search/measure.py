"""The tests of a step's candidate, each one step further on the one path (tools/grade/host/examine.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandState, Update
from foundry.knowledge.candidate import Evaluation, Stage
from foundry.knowledge.ruling import objection, rule

if TYPE_CHECKING:
    from foundry.tools.grade.host.examine import Step


async def examine_step(state: IslandState, services: Services, stage: Stage, upto: Step = "profile") -> Evaluation:
    """The records of the step's candidate up to `upto`, or up to the test that it failed."""
    candidate = services.candidate(state["candidate"])
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    best = services.best() if (stage, upto) == ("screen", "time") else None
    incumbent_ms = best.timing.candidate_ms if best and best.timing else None  # a screen ends early for a slower one
    text = services.run.text(state["text"])
    return await services.measure.examine(candidate, text, stage, upto=upto, lowered=lowered, incumbent_ms=incumbent_ms)


async def screen(state: IslandState, services: Services, upto: Step) -> Update:
    """Walks the one path one test further; `outcome` says why the tests end there, "" while they go on."""
    return {"outcome": objection_to(await examine_step(state, services, "screen", upto))}


def objection_to(evaluation: Evaluation) -> str:
    """The reason why the candidate's tests end here, "" if they go on."""
    found = objection(evaluation)
    return found.outcome if found else ""


def evaluation_facts(evaluation: Evaluation) -> dict[str, Any]:
    """Facts of an evaluation for the trace and the live progress; None for what was not measured."""
    timing, profile, ruling = evaluation.timing, evaluation.profile, rule(evaluation)
    return {
        "outcome": ruling.outcome,
        "speedup": timing.speedup if timing else None,
        "speedup_ci95": list(timing.speedup_ci95) if timing else None,
        "candidate_ms": timing.candidate_ms if timing else None,
        "stage": timing.stage if timing else None,
        "fraction_of_floor": profile.fraction_of_floor if profile else None,
        "evidence": ruling.evidence,
    }
