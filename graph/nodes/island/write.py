"""Turns a proposal into a candidate's file and claims its evaluation."""

from __future__ import annotations

import hashlib
from typing import Any

from foundry.agents.tuning import asks_tuner
from foundry.graph.run.run_directory import Decision
from foundry.graph.run.services import Services
from foundry.graph.search.briefing import brief_for
from foundry.graph.search.claims import claim_evaluation, text_of
from foundry.graph.search.experts import recorded_answer
from foundry.graph.search.orders import USER, begin_again
from foundry.graph.search.state import IslandState, Stop, Update
from foundry.graph.search.tuning import with_numbers
from foundry.knowledge.candidate import Candidate, Recipe
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.step_words import step_words
from foundry.knowledge.thought import Proposal


async def write(state: IslandState, services: Services) -> Update:
    """Writes the proposal of the expert at work as a candidate's file and claims its evaluation.

    A file that was claimed before, or cannot be written, is a miss; a start that the user ordered then holds for the
    next step too.
    """
    missed: Update = {
        "misses": state["misses"] + 1,
        "idle": state["idle"] + 1,
        "broken": "",
        "orders": begin_again(state),
    }
    brief, step = await brief_for(state, services), state["step"]
    proposal = recorded_answer(state, services, state["turns"]).proposal
    assert proposal is not None
    if asks_tuner(proposal):
        services.flight.note_step(state["island"], step)  # a sweep is no thought about the parent
        tuned = await with_numbers(proposal, brief, services)
        if tuned is None:
            return missed
        proposal = tuned
    try:
        text, recipe = await text_of(proposal, brief.parent_text, services)
    except (CannotLower, ValueError) as error:
        if proposal.recipe is not None:
            services.run.add_tried([proposal.recipe.digest])
        services.log.note_once("note", "proposal failed", proposal=proposal.id, reason=str(error))
        return missed
    digest = hashlib.sha256(text.encode()).hexdigest()
    claim = services.journal.plain(f"{step}/claim", "outside", lambda: claim_evaluation(digest, step, services))
    if claim["refused"]:
        return {"stop": Stop(kind="budget", text=claim["refused"])}
    services.run.add_tried(_digests(proposal, recipe, digest))
    if not claim["fresh"]:
        services.log.note_once("note", "duplicate", proposal=proposal.id, candidate=claim["candidate"])
        return missed
    candidate = Candidate(
        id=claim["candidate"],
        island=state["island"],
        generation=state["generation"],
        target=services.device.target,
        origin=recipe.origin if recipe is not None else "user" if proposal.expert == USER else "model",
        source=services.run.keep(text),
        recipe=recipe,
        parents=(proposal.parent,),
        proposal=proposal.id,
    )
    services.flight.note_step(state["island"], step, state["parent"], candidate.id)
    if services.run.add_decision(Decision(step, state["island"], candidate, state["diagnosis"], proposal)):
        services.log.note("proposal", proposal.expert, **_proposal_facts(candidate, proposal, state.get("ordered", 0)))
    return {"candidate": candidate.id, "text": candidate.source, "misses": 0}


def _digests(proposal: Proposal, recipe: Recipe | None, text: str) -> list[str]:
    """Digests by which this step counts as tried: the proposed and the final recipe's, and the text's."""
    recipes = [item.digest for item in (proposal.recipe, recipe) if item is not None]
    return list(dict.fromkeys([*recipes, text]))


def _proposal_facts(candidate: Candidate, proposal: Proposal, ordered: int) -> dict[str, Any]:
    """The facts of a proposal that the trace keeps; `ordered` is the id of the directive that it follows, or 0."""
    names_kernels = candidate.recipe is not None and len(candidate.recipe.choices) > 1
    return {
        "candidate": candidate.id,
        "parent": proposal.parent,
        "words": step_words(proposal.moves, names_kernels=names_kernels),
        "moves": [move.key for move in proposal.moves],
        "rationale": proposal.rationale,
        "expected": proposal.expected,
        "cites": [*proposal.cites, *([f"d{ordered}"] if ordered else [])],
        "brain": proposal.brain,
    }
