"""The experts' tools at work: what a chat model asks before it proposes a step, answered by the run's own means.

A kernel that is asked about walks the same path as every candidate, in the same confined processes, and is measured
once however often it is asked about. It counts as one evaluation of the run's budget.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foundry.agents.brief import Brief
from foundry.agents.expert import experts
from foundry.agents.talk import TOOLS, ToolAnswer, ToolCall
from foundry.agents.words.findings import (
    attempt_line,
    build_lines,
    check_lines,
    code_lines,
    lesson_line,
    measured,
    profile_lines,
    time_lines,
)
from foundry.agents.words.sections import cut
from foundry.agents.words.source import show
from foundry.graph.run.database import StorageFailed
from foundry.graph.run.services import Services
from foundry.graph.search.archive import candidate_number
from foundry.graph.search.tuning import find_numbers
from foundry.knowledge.candidate import REFERENCE, Candidate, Evaluation
from foundry.knowledge.errors import FoundryError, UsageError
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.thought import ExpertName

if TYPE_CHECKING:
    from foundry.tools.grade.examine import Step

ANSWER_CHARS = 4_000
FILE_CHARS = 16_000
ATTEMPTS = 14
LESSONS = 8


def tools_of(expert: ExpertName, services: Services) -> tuple[str, ...]:
    """The tools that an expert may call in this run."""
    absent = set()
    if services.store is None:
        absent.add("search_experience")
    if not services.effort.tune_s:
        absent.add("tune")
    return tuple(name for name in experts()[expert].calls if name not in absent)


async def answer(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    """What a call gives, as the model is told it: never more than so many characters. Nothing is raised for a call that
    cannot be made."""
    if call.problem:
        return ToolAnswer(f"Not called: {call.problem}.")
    try:
        found = await _WAYS[call.name](call, brief, services)
    except StorageFailed:
        raise  # the run must stop and say so
    except FoundryError as error:
        return ToolAnswer(cut(f"Not called: {error.problem}.", ANSWER_CHARS))
    most = FILE_CHARS if call.name == "show" else ANSWER_CHARS
    return ToolAnswer(cut(found.text, most), found.recipe, found.moves)


@dataclass(frozen=True)
class _Kernel:
    """What a call is about."""

    candidate: Candidate
    text: str
    lowered: Lowered | None


async def _kernel(call: ToolCall, brief: Brief, services: Services) -> _Kernel:
    """The kernel that a call names; raises UsageError."""
    if call.recipe is not None:
        lowered = await services.lower(call.recipe)
        digest, target = services.run.keep(lowered.source), services.device.target
        written = Candidate("draft", brief.island, brief.generation, target, "model", digest, lowered.recipe)
        return _Kernel(written, lowered.source, lowered)
    if call.text:
        digest = services.run.keep(call.text)
        made = Candidate("draft", brief.island, brief.generation, services.device.target, "model", digest)
        return _Kernel(made, call.text, None)
    parent = brief.parent.candidate
    name = call.candidate or parent.id
    if name == REFERENCE:
        raise UsageError(f"{REFERENCE} is the reference, which is no kernel: give source")
    if name == parent.id:
        return _Kernel(parent, brief.parent_text, brief.lowered)
    found = services.evaluation(name)
    recipe = found.candidate.recipe
    return _Kernel(found.candidate, services.text(found), await services.lower(recipe) if recipe else None)


async def _examine(call: ToolCall, brief: Brief, services: Services, upto: Step) -> Evaluation:
    """The records of a call's kernel up to a step; raises UsageError where the budget does not pay for it."""
    kernel = await _kernel(call, brief, services)
    digest = hashlib.sha256(kernel.text.encode()).hexdigest()
    if why := services.ledger.why_no_trial(digest):
        raise UsageError(f"{why}; answer with what you know")
    services.run.add_trial(digest)
    best = services.best() if upto == "time" else None
    incumbent_ms = best.timing.candidate_ms if best and best.timing else None  # a screen ends early for a slower one
    return await services.measure.examine(
        kernel.candidate, kernel.text, "screen", upto=upto, lowered=kernel.lowered, incumbent_ms=incumbent_ms
    )


async def _compile(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    return ToolAnswer("\n".join(build_lines(await _examine(call, brief, services, "build"))))


async def _check(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    return ToolAnswer("\n".join(check_lines(await _examine(call, brief, services, "audit"))))


async def _quick_time(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    found = await _examine(call, brief, services, "time")
    return ToolAnswer("\n".join([*time_lines(found), f"The parent: {measured(brief.parent)}."]))


async def _profile(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    return ToolAnswer("\n".join(profile_lines(await _examine(call, brief, services, "profile"))))


async def _sass(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    return ToolAnswer("\n".join(code_lines(await _examine(call, brief, services, "build"))))


async def _show(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    if not call.candidate:
        raise UsageError("name a candidate")
    kernel = await _kernel(call, brief, services)
    records = services.records(kernel.candidate.id)
    known = measured(records[-1]) if records else "not evaluated yet"
    return ToolAnswer(f"{kernel.candidate.id}: {known}\n{show(kernel.text)}")


async def _history(_call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    parent = brief.parent.candidate.id
    made = [(item.candidate.id, item.proposal) for item in services.run.decisions() if item.proposal is not None]
    newest = sorted(made, key=lambda item: (item[1].parent != parent, -candidate_number(item[0])))
    lines = [attempt_line(name, proposal, services.records(name)) for name, proposal in newest[:ATTEMPTS]]
    left = len(newest) - len(lines)
    return ToolAnswer("\n".join([*lines, f"({left} earlier steps are not shown)"] if left else lines) or "No step yet.")


async def _search_experience(call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    store = services.store
    if store is None or not call.query:
        raise UsageError("there is no store of experience here" if store is None else "say what is looked for")
    found = await asyncio.to_thread(store.search, call.query, services.device.target, LESSONS)
    return ToolAnswer("\n".join(lesson_line(record) for record, _ in found) or "Nothing is known of that.")


async def _tune(_call: ToolCall, brief: Brief, services: Services) -> ToolAnswer:
    found = await find_numbers(brief, services)
    if found is None:
        return ToolAnswer("No better numbers: swept before in this run, nothing to sweep, no time left, or none found.")
    settings = ", ".join(f"{move.kernel}.{move.name} = {move.value} (was {move.was})" for move in found.moves)
    return ToolAnswer(f"{found.told} Best: {settings}: {found.expected}.", found.recipe, found.moves)


_WAYS: Mapping[str, Callable[[ToolCall, Brief, Services], Awaitable[ToolAnswer]]] = {
    "compile": _compile,
    "check": _check,
    "quick_time": _quick_time,
    "profile": _profile,
    "sass": _sass,
    "show": _show,
    "history": _history,
    "search_experience": _search_experience,
    "tune": _tune,
}
assert set(_WAYS) == set(TOOLS)
