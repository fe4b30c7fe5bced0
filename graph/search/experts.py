"""What the experts of an island do with a step: each is a node that thinks; what one of them proposes is written."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from foundry.agents.brain import NoAnswer
from foundry.agents.brief import Brief
from foundry.agents.tuning import asks_tuner
from foundry.graph.run.run_directory import Decision
from foundry.graph.run.services import Services
from foundry.graph.run.thinking import wait_for_model
from foundry.graph.search.briefing import brief_for
from foundry.graph.search.state import IslandState, Update
from foundry.graph.search.tuning import with_numbers
from foundry.knowledge.candidate import Candidate, Recipe
from foundry.knowledge.codec import decode
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.thought import ExpertName, Proposal, apply_edits


@dataclass(frozen=True)
class ExpertAnswer:
    """What an expert answered; None: nothing left to try, or `unanswered` says why its model gave no answer.
    `retry_s`: when the model may be asked again."""

    proposal: Proposal | None = None
    unanswered: str = ""
    retry_s: float = 0.0


def ask(expert: ExpertName) -> Callable[[IslandState, Services], Awaitable[Update]]:
    """The node of an expert: it thinks about one step from the parent."""

    async def think(state: IslandState, services: Services) -> Update:
        brief = await brief_for(state, services)
        with services.log.span("expert", expert, purpose="propose", parent=state["parent"]) as span:
            answer = await _answer(services, expert, brief)
            proposal = answer.proposal
            span.data["proposal"] = proposal.rationale if proposal else answer.unanswered or "nothing left to try"
        if proposal is not None:
            return {"wants": "write"}
        return await _pass_on(state, services, answer)

    think.__doc__ = f"The {expert} expert thinks about one step from the parent."
    return think


async def _answer(services: Services, expert: ExpertName, brief: Brief) -> ExpertAnswer:
    async def think() -> ExpertAnswer:
        try:
            return ExpertAnswer(await services.brain.propose(expert, brief))
        except NoAnswer as error:
            return ExpertAnswer(None, str(error) or "no answer", error.retry_s or 0.0)

    return await services.journal.record(_key(brief.step, expert), "thought", ExpertAnswer, think)


def _key(step: str, expert: ExpertName) -> str:
    """Where the journal keeps an expert's answer."""
    return f"{step}/proposal/{expert}"


async def _pass_on(state: IslandState, services: Services, answer: ExpertAnswer) -> Update:
    """The expert has no step: the next one is asked. After the last the step ends: the parent is exhausted, unless a
    model gave no answer; one that is away is waited for, one that answers nonsense is a miss."""
    others = state["experts"][1:]
    silent_s = answer.retry_s if answer.unanswered else state.get("silent_s")
    if others:
        return {"experts": others, "silent_s": silent_s, "wants": ""}
    ended: Update = {"experts": [], "broken": "", "wants": ""}
    if silent_s is None:
        return {**ended, "dry": [*state["dry"], state["parent"]]}
    await wait_for_model(services, silent_s)
    return {**ended, "misses": state.get("misses", 0) + (silent_s <= 0.0)}


async def write(state: IslandState, services: Services) -> Update:
    """Turns what the expert at work proposed into a candidate's file and claims its evaluation. A file that was claimed
    before, or cannot be written, is a miss."""
    missed: Update = {"misses": state.get("misses", 0) + 1, "broken": ""}
    brief, step = await brief_for(state, services), state["step"]
    proposal = _read_proposal(state, services)
    if asks_tuner(proposal):
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
    claim = services.journal.plain(f"{step}/claim", "outside", lambda: services.run.claim_as_plain(digest, step))
    services.run.add_tried(_digests(proposal, recipe, digest))
    if not claim["fresh"]:
        services.log.note_once("note", "duplicate", proposal=proposal.id, candidate=claim["candidate"])
        return missed
    candidate = Candidate(
        id=claim["candidate"],
        island=state["island"],
        generation=state["generation"],
        target=services.device.target,
        origin="library" if recipe is not None else "model",
        source=services.run.keep(text),
        recipe=recipe,
        parents=(proposal.parent,),
        proposal=proposal.id,
    )
    if services.run.add_decision(Decision(step, state["island"], candidate, state["diagnosis"], proposal)):
        services.log.note("proposal", proposal.expert, **_proposal_facts(candidate, proposal))
    return {"candidate": candidate.id, "text": candidate.source, "misses": 0}


def _read_proposal(state: IslandState, services: Services) -> Proposal:
    """What the expert at work has proposed; its node recorded it."""
    kept = services.journal.lookup(_key(state["step"], state["experts"][0]))
    answer = decode(ExpertAnswer, kept or "")
    assert answer.proposal is not None
    return answer.proposal


async def text_of(proposal: Proposal, parent_text: str, services: Services) -> tuple[str, Recipe | None]:
    """The file a proposal means. Raises CannotLower, or ValueError when its edits do not fit the parent."""
    if proposal.recipe is not None:
        lowered = await services.lower(proposal.recipe)
        return lowered.source, lowered.recipe
    if proposal.source:
        return proposal.source, None
    text = apply_edits(parent_text, proposal.edits)
    if text == parent_text:
        raise ValueError(f"proposal {proposal.id} changes nothing")
    return text, None


def _digests(proposal: Proposal, recipe: Recipe | None, text: str) -> list[str]:
    recipes = [item.digest for item in (proposal.recipe, recipe) if item is not None]
    return list(dict.fromkeys([*recipes, text]))


def _proposal_facts(candidate: Candidate, proposal: Proposal) -> dict[str, Any]:
    return {
        "candidate": candidate.id,
        "parent": proposal.parent,
        "moves": [move.key for move in proposal.moves],
        "rationale": proposal.rationale,
        "expected": proposal.expected,
        "cites": list(proposal.cites),
        "brain": proposal.brain,
    }
