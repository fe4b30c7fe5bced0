"""Reads the answers of a step's experts so far from the journal."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.agents.talk import ToolRequest
from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandState
from foundry.knowledge.codec import decode
from foundry.knowledge.thought import ExpertName, Proposal


@dataclass(frozen=True)
class ExpertAnswer:
    """An expert's answer: a step, or calls of tools that it wants answered first.

    Without both, nothing is left to try, or `unanswered` says why its model gave no answer. `retry_s`: seconds until
    the model may be asked again.
    """

    proposal: Proposal | None = None
    unanswered: str = ""
    retry_s: float = 0.0
    request: ToolRequest | None = None


def answer_key(step: str, expert: ExpertName, turn: int) -> str:
    """The journal's key of an expert's answer after `turn` rounds of tool calls."""
    return f"{step}/proposal/{expert}/{turn}"


def tools_place(state: IslandState, turn: int) -> str:
    """The journal's place for answers to the tool calls of the expert at work."""
    return f"{state['step']}/call/{state['experts'][0]}/{turn}"


def request_of(state: IslandState, services: Services, turn: int) -> ToolRequest:
    """The tool calls of a turn of this step, from the journal."""
    found = recorded_answer(state, services, turn).request
    assert found is not None
    return found


def recorded_answer(state: IslandState, services: Services, turn: int) -> ExpertAnswer:
    """The answer of the expert at work, which its node recorded in the journal."""
    return decode(ExpertAnswer, services.journal.lookup(answer_key(state["step"], state["experts"][0], turn)) or "")
