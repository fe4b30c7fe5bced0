"""An expert thinks about one step from the parent."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from foundry.agents.brain import NoAnswer
from foundry.agents.brief import Brief
from foundry.agents.models.models import PLAYBOOK
from foundry.agents.talk import Talk, ToolRequest, Turn
from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.services import Services
from foundry.graph.run.thinking import wait_for_model
from foundry.graph.search.briefing import brief_for
from foundry.graph.search.experts import ExpertAnswer, answer_key, request_of, tools_place
from foundry.graph.search.orders import users_proposal
from foundry.graph.search.state import IslandState, Update
from foundry.graph.search.strategy import show
from foundry.graph.search.toolbox import answered, tools_of
from foundry.knowledge.thought import ExpertName


def ask(expert: ExpertName) -> Callable[[IslandState, Services], Awaitable[Update]]:
    """The node of an expert: it thinks about one step from the parent."""

    async def think(state: IslandState, services: Services) -> Update:
        """The expert's turn: builds its brief, asks for an answer and says where the island goes next.

        That is the tools, the writing of a file, or the next expert if it has no step.
        """
        if state["given"]:
            return await _hand_on_file(expert, state, services)
        brief = await brief_for(state, services)
        if services.brain.name != PLAYBOOK:
            model = _in_turns(services.request.models.of(expert), state)
            tools = tools_of(expert, services, is_traced=brief.graph is not None)
            brief = replace(brief, model=model, tools=tools, talk=_read_talk(state, services))
        brief = await show(brief, state, services, expert)
        with services.log.span("expert", expert, purpose="propose", parent=state["parent"]) as span:
            answer = await _answer(services, expert, brief, state["turns"])
            span.data["proposal"] = _in_words(answer)
        if answer.request is not None:
            return {"wants": "tools"}
        return {"wants": "write"} if answer.proposal is not None else await _pass_on(state, services, answer)

    think.__doc__ = f"The {expert} expert thinks about one step from the parent."
    return think


def _in_turns(models: Sequence[str], state: IslandState) -> str:
    """The model whose turn it is among those of an expert; "" if it has none."""
    return models[(state["island"] + state["generation"]) % len(models)] if models else ""


async def _hand_on_file(expert: ExpertName, state: IslandState, services: Services) -> Update:
    """Records the user's file as this step's proposal, without asking the expert."""
    directive = next(item for item in services.directives() if item.id == state["given"])
    text = services.read_text(str(directive.command["text"]))
    answer = ExpertAnswer(users_proposal(directive, state["step"], state["parent"], text))

    async def given() -> ExpertAnswer:
        """Returns the answer that is already known."""
        return answer

    await services.journal.record(answer_key(state["step"], expert, 0), "outside", ExpertAnswer, given)
    return {"wants": "write"}


async def _answer(services: Services, expert: ExpertName, brief: Brief, turn: int) -> ExpertAnswer:
    """The expert's answer, journalled as a thought."""

    async def think() -> ExpertAnswer:
        """Asks the brain; an unanswered question becomes its reason. No model is asked after the search's end."""
        if services.brain.name != PLAYBOOK and find_wanted_state(services.directives())[0] == "stop":
            return ExpertAnswer(unanswered="the user has stopped the run: no model is asked any more")
        if services.brain.name != PLAYBOOK and math.isfinite(services.ledger.left_s()):
            return ExpertAnswer(unanswered="the search's time is over: no model is asked any more")
        try:
            found = await services.brain.propose(expert, brief)
        except NoAnswer as error:
            return ExpertAnswer(None, str(error) or "no answer", error.retry_s or 0.0)
        return ExpertAnswer(request=found) if isinstance(found, ToolRequest) else ExpertAnswer(found)

    return await services.journal.record(answer_key(brief.step, expert, turn), "thought", ExpertAnswer, think)


def _in_words(answer: ExpertAnswer) -> str:
    """The answer as one line for the trace."""
    if answer.request is not None:
        return f"calls {', '.join(call.name for call in answer.request.calls)}"
    return answer.proposal.rationale if answer.proposal else answer.unanswered or "nothing left to try"


def _read_talk(state: IslandState, services: Services) -> Talk:
    """The tool calls of the expert at work in this step with their answers, from the journal."""
    requests = [request_of(state, services, turn) for turn in range(state["turns"])]
    return Talk(
        tuple(
            Turn(request, answered(request, tools_place(state, turn), services))
            for turn, request in enumerate(requests)
        )
    )


async def _pass_on(state: IslandState, services: Services, answer: ExpertAnswer) -> Update:
    """Passes the step to the next expert, because this one has no proposal. After the last one the step ends.

    The parent is then exhausted, unless a model gave no answer: the search waits for a model that is away, and counts
    a miss for one that answers nonsense.
    """
    others = state["experts"][1:]
    silent_s = answer.retry_s if answer.unanswered else state.get("silent_s")
    if others:
        return {"experts": others, "silent_s": silent_s, "wants": "", "turns": 0}
    ended: Update = {"experts": [], "broken": "", "wants": "", "idle": state["idle"] + 1}
    if silent_s is None:
        return {**ended, "dry": [*state["dry"], state["parent"]]}
    await wait_for_model(services, silent_s)
    return {**ended, "misses": state.get("misses", 0) + (silent_s <= 0.0)}
