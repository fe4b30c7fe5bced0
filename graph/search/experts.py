"""What the experts of an island do with a step: each is a node that thinks, and may call tools; what one of them
proposes is written."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from foundry.agents.brain import NoAnswer
from foundry.agents.brief import Brief
from foundry.agents.models.models import PLAYBOOK
from foundry.agents.talk import Talk, ToolRequest, Turn
from foundry.agents.tuning import asks_tuner
from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.run_directory import Decision
from foundry.graph.run.services import Services
from foundry.graph.run.thinking import choose_model, wait_for_model
from foundry.graph.search.briefing import brief_for
from foundry.graph.search.orders import USER, begin_again, users_proposal
from foundry.graph.search.state import IslandState, Stop, Update
from foundry.graph.search.strategies.prompt_texts import choose_text
from foundry.graph.search.toolbox import Kernel, answer_all, answered, tools_of
from foundry.graph.search.tuning import with_numbers
from foundry.knowledge.candidate import Candidate, Recipe
from foundry.knowledge.codec import decode
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.thought import ExpertName, Proposal, apply_edits


@dataclass(frozen=True)
class ExpertAnswer:
    """What an expert answered: a step, or calls of tools that it wants answered first. Neither: nothing left to try, or
    `unanswered` says why its model gave no answer. `retry_s`: when the model may be asked again."""

    proposal: Proposal | None = None
    unanswered: str = ""
    retry_s: float = 0.0
    request: ToolRequest | None = None


def ask(expert: ExpertName) -> Callable[[IslandState, Services], Awaitable[Update]]:
    """The node of an expert: it thinks about one step from the parent."""

    async def think(state: IslandState, services: Services) -> Update:
        if state["given"]:
            return await _hand_on_file(expert, state, services)
        brief = await brief_for(state, services)
        if services.brain.name != PLAYBOOK:
            model = choose_model(services, expert, brief.step)
            tools = tools_of(expert, services, is_traced=brief.graph is not None)
            brief = replace(brief, model=model, tools=tools, talk=_read_talk(state, services))
            brief = replace(brief, prompt=await choose_text(services, expert, brief.step))
        with services.log.span("expert", expert, purpose="propose", parent=state["parent"]) as span:
            answer = await _answer(services, expert, brief, state["turns"])
            span.data["proposal"] = _in_words(answer)
        if answer.request is not None:
            return {"wants": "tools"}
        return {"wants": "write"} if answer.proposal is not None else await _pass_on(state, services, answer)

    think.__doc__ = f"The {expert} expert thinks about one step from the parent."
    return think


async def _hand_on_file(expert: ExpertName, state: IslandState, services: Services) -> Update:
    """The user's file is this step's proposal; nobody thinks."""
    directive = next(item for item in services.directives() if item.id == state["given"])
    text = services.read_text(str(directive.command["text"]))
    answer = ExpertAnswer(users_proposal(directive, state["step"], state["parent"], text))

    async def given() -> ExpertAnswer:
        return answer

    await services.journal.record(_key(state["step"], expert, 0), "outside", ExpertAnswer, given)
    return {"wants": "write"}


async def _answer(services: Services, expert: ExpertName, brief: Brief, turn: int) -> ExpertAnswer:
    async def think() -> ExpertAnswer:
        if services.brain.name != PLAYBOOK and find_wanted_state(services.directives())[0] == "stop":
            return ExpertAnswer(unanswered="the user has stopped the run: no model is asked any more")
        if services.brain.name != PLAYBOOK and math.isfinite(services.ledger.left_s()):
            return ExpertAnswer(unanswered="the search's time is over: no model is asked any more")
        try:
            found = await services.brain.propose(expert, brief)
        except NoAnswer as error:
            return ExpertAnswer(None, str(error) or "no answer", error.retry_s or 0.0)
        return ExpertAnswer(request=found) if isinstance(found, ToolRequest) else ExpertAnswer(found)

    return await services.journal.record(_key(brief.step, expert, turn), "thought", ExpertAnswer, think)


def _in_words(answer: ExpertAnswer) -> str:
    if answer.request is not None:
        return f"calls {', '.join(call.name for call in answer.request.calls)}"
    return answer.proposal.rationale if answer.proposal else answer.unanswered or "nothing left to try"


def _key(step: str, expert: ExpertName, turn: int) -> str:
    """Where the journal keeps what an expert answered after calling tools so often."""
    return f"{step}/proposal/{expert}/{turn}"


def _place(state: IslandState, turn: int) -> str:
    """Where the journal keeps the answers to what the expert at work called."""
    return f"{state['step']}/call/{state['experts'][0]}/{turn}"


async def use_tools(state: IslandState, services: Services) -> Update:
    """Answers what the expert at work has called."""
    brief, turn = await brief_for(state, services), state["turns"]
    request = _request_of(state, services, turn)
    await answer_all(request, _place(state, turn), state["experts"][0], Kernel.of(brief), services)
    return {"turns": turn + 1, "wants": ""}


def _read_talk(state: IslandState, services: Services) -> Talk:
    """What the expert at work has asked and heard in this step, from the journal."""
    requests = [_request_of(state, services, turn) for turn in range(state["turns"])]
    return Talk(
        tuple(Turn(request, answered(request, _place(state, turn), services)) for turn, request in enumerate(requests))
    )


def _request_of(state: IslandState, services: Services, turn: int) -> ToolRequest:
    found = _recorded(state, services, turn).request
    assert found is not None
    return found


def _recorded(state: IslandState, services: Services, turn: int) -> ExpertAnswer:
    """What the expert at work answered; its node recorded it."""
    return decode(ExpertAnswer, services.journal.lookup(_key(state["step"], state["experts"][0], turn)) or "")


async def _pass_on(state: IslandState, services: Services, answer: ExpertAnswer) -> Update:
    """The expert has no step: the next one is asked. After the last the step ends: the parent is exhausted, unless a
    model gave no answer; one that is away is waited for, one that answers nonsense is a miss."""
    others = state["experts"][1:]
    silent_s = answer.retry_s if answer.unanswered else state.get("silent_s")
    if others:
        return {"experts": others, "silent_s": silent_s, "wants": "", "turns": 0}
    ended: Update = {"experts": [], "broken": "", "wants": ""}
    if silent_s is None:
        return {**ended, "dry": [*state["dry"], state["parent"]]}
    await wait_for_model(services, silent_s)
    return {**ended, "misses": state.get("misses", 0) + (silent_s <= 0.0)}


async def write(state: IslandState, services: Services) -> Update:
    """Turns what the expert at work proposed into a candidate's file and claims its evaluation. A file that was claimed
    before, or cannot be written, is a miss; a user's order where to begin then holds for the next step too."""
    missed: Update = {"misses": state.get("misses", 0) + 1, "broken": "", "orders": begin_again(state)}
    brief, step = await brief_for(state, services), state["step"]
    proposal = _recorded(state, services, state["turns"]).proposal
    assert proposal is not None
    if asks_tuner(proposal):
        services.flight.tell((state["island"], state["strand"]), step)  # nobody thinks about the parent while it sweeps
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
    services.flight.tell((state["island"], state["strand"]), step, state["parent"], candidate.id)
    if services.run.add_decision(Decision(step, state["island"], candidate, state["diagnosis"], proposal)):
        services.log.note("proposal", proposal.expert, **_proposal_facts(candidate, proposal, state.get("ordered", 0)))
    return {"candidate": candidate.id, "text": candidate.source, "misses": 0}


def claim_evaluation(digest: str, step: str, services: Services) -> dict[str, Any]:
    """The right to evaluate a text, and why the budget refuses it, if so."""
    if refused := services.ledger.why_no_claim(digest):
        return {"candidate": "", "fresh": False, "refused": refused}
    return {**services.run.claim_as_plain(digest, step), "refused": ""}


async def text_of(proposal: Proposal, parent_text: str, services: Services) -> tuple[str, Recipe | None]:
    """The file a proposal means. Raises CannotLower, or ValueError when its edits do not fit the parent."""
    if proposal.recipe is not None:
        lowered = await services.lower_to_try(proposal.recipe)
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


def _proposal_facts(candidate: Candidate, proposal: Proposal, ordered: int) -> dict[str, Any]:
    return {
        "candidate": candidate.id,
        "parent": proposal.parent,
        "moves": [move.key for move in proposal.moves],
        "rationale": proposal.rationale,
        "expected": proposal.expected,
        "cites": [*proposal.cites, *([f"d{ordered}"] if ordered else [])],
        "brain": proposal.brain,
    }
