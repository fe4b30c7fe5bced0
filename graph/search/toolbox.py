"""The experts' tools at work: what a chat model asks before it proposes a step, answered by the run's own means.

A kernel that is asked about walks the same path as every candidate, in the same confined processes, and is measured
once however often it is asked about. It counts as one evaluation of the run's budget.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from foundry.agents.brief import Brief
from foundry.agents.expert import experts
from foundry.agents.playbook.diagnosis import diagnose
from foundry.agents.prompt_text.authored import authored_words
from foundry.agents.prompt_text.findings import (
    attempt_line,
    beside_line,
    build_lines,
    check_lines,
    code_lines,
    lesson_line,
    measured,
    profile_lines,
    time_lines,
)
from foundry.agents.prompt_text.load import load_words
from foundry.agents.prompt_text.sections import cut
from foundry.agents.prompt_text.source import WHOLE_CHARS, code_words
from foundry.agents.talk import TOOLS, ToolAnswer, ToolCall, ToolRequest
from foundry.graph.run.database import StorageFailed
from foundry.graph.run.services import Services
from foundry.graph.search.tuning import NoNumbers, find_numbers
from foundry.knowledge.candidate import REFERENCE, Candidate, Evaluation, candidate_number
from foundry.knowledge.codec import decode
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.errors import FoundryError, UsageError
from foundry.knowledge.step_words import change_words
from foundry.knowledge.thought import ExpertName

if TYPE_CHECKING:
    from foundry.tools.grade.host.examine import Step

ANSWER_CHARS = 4_000
ATTEMPTS = 14
LESSONS = 8
SHOWN_CHARS = 160  # characters of an answer in the trace


def tools_of(expert: ExpertName, services: Services, *, is_traced: bool = True) -> tuple[str, ...]:
    """Names of the tools that an expert may call in this run; without a graph (`is_traced`) not "tune"."""
    absent = set()
    if not services.request.learn:
        absent.add("search_experience")
    if not (services.effort.tune_s and is_traced):
        absent.add("tune")
    return tuple(name for name in experts()[expert].calls if name not in absent)


@dataclass(frozen=True)
class Kernel:
    """The kernel that an expert thinks about, or that a call names. `brief`: that of the step, None without a step."""

    candidate: Candidate
    text: str
    lowered: Lowered | None
    records: tuple[Evaluation, ...] = ()
    brief: Brief | None = None

    @classmethod
    def of(cls, brief: Brief) -> Kernel:
        """The parent of a step as a Kernel."""
        return cls(brief.parent.candidate, brief.parent_text, brief.lowered, (brief.parent,), brief)


async def answer_all(
    request: ToolRequest, place: str, expert: ExpertName, kernel: Kernel, services: Services
) -> tuple[ToolAnswer, ...]:
    """Makes the calls of a request and records each answer in the journal at `place`. Returns the answers in order.

    A call that was answered before the run was killed is not made again.
    """

    async def work(call: ToolCall) -> ToolAnswer:
        """Answers one call in a span of the trace, which keeps the answer's text."""
        with services.log.span("call", call.name, expert=expert, question=call.digest) as span:
            found = await answer(call, kernel, services)
            span.data["answer"] = found.text[:SHOWN_CHARS]
            span.data["whole"] = services.run.keep(found.text)
        return found

    keys = _keys(request, place)
    return tuple(
        [
            await services.journal.record(key, "outside", ToolAnswer, partial(work, call))
            for key, call in zip(keys, request.calls, strict=True)
        ]
    )


def answered(request: ToolRequest, place: str, services: Services) -> tuple[ToolAnswer, ...]:
    """The answers that `answer_all` recorded in the journal."""
    return tuple(decode(ToolAnswer, services.journal.lookup(key) or "") for key in _keys(request, place))


def _keys(request: ToolRequest, place: str) -> list[str]:
    """The journal's keys of the answers; each holds the call's digest, so that no other question gets the answer."""
    return [f"{place}.{number}/{call.digest}" for number, call in enumerate(request.calls)]


async def answer(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Makes a call. Returns the answer for the model, at most ANSWER_CHARS characters (more for "show").

    A call that cannot be made gives an answer that says why. Raises only StorageFailed.
    """
    if call.problem:
        return ToolAnswer(f"Not called: {call.problem}.")
    try:
        found = await _WAYS[call.name](call, kernel, services)
    except StorageFailed:
        raise  # the run must stop and say so
    except FoundryError as error:
        return ToolAnswer(cut(f"Not called: {error.problem}.", ANSWER_CHARS))
    most = WHOLE_CHARS + ANSWER_CHARS if call.name == "show" else ANSWER_CHARS
    return ToolAnswer(cut(found.text, most), found.recipe, found.moves)


async def _named(call: ToolCall, kernel: Kernel, services: Services) -> Kernel:
    """The kernel that a call names, or the one at hand; raises UsageError, CannotLower."""
    if call.text or call.recipe is not None:
        lowered = await services.lower(call.recipe) if call.recipe is not None else None
        text = lowered.source if lowered is not None else call.text
        kept = services.run.keep(text)
        made = Candidate("draft", -1, 0, services.device.target, "model", source=kept, recipe=call.recipe)
        return Kernel(made, text, lowered)
    name = call.candidate or kernel.candidate.id
    if name == REFERENCE:
        raise UsageError(f"{REFERENCE} is the reference, which is no kernel: give one")
    if name == kernel.candidate.id:
        return kernel
    found, recipe = services.evaluation(name), services.candidate(name).recipe
    lowered = await services.lower(recipe) if recipe else None
    return Kernel(found.candidate, services.text(found), lowered, tuple(services.records(name)))


async def _examine(call: ToolCall, kernel: Kernel, services: Services, upto: Step) -> Evaluation:
    """Examines a call's kernel up to a step. Raises UsageError if the budget does not pay for it."""
    kernel = await _named(call, kernel, services)
    digest = hashlib.sha256(kernel.text.encode()).hexdigest()
    if why := services.ledger.why_no_trial(digest, services.flight.reserved()):
        raise UsageError(f"{why}; answer with what you know")
    services.run.add_trial(digest)
    best = services.best() if upto == "time" else None
    incumbent_ms = best.timing.candidate_ms if best and best.timing else None  # a screen ends early for a slower one
    return await services.measure.examine(
        kernel.candidate, kernel.text, "screen", upto=upto, lowered=kernel.lowered, incumbent_ms=incumbent_ms
    )


async def _compile(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Builds the call's kernel, if the budget allows; answers with the first error or the compiler's report."""
    return ToolAnswer("\n".join(build_lines(await _examine(call, kernel, services, "build"))))


async def _check(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Builds, verifies and audits the call's kernel, if the budget allows; answers with outcome, errors and failed
    gates."""
    return ToolAnswer("\n".join(check_lines(await _examine(call, kernel, services, "audit"))))


async def _quick_time(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Times the kernel in turns with eager, and a draft in turns with its parent too. Returns both as text."""
    found = await _examine(call, kernel, services, "time")
    lines = time_lines(found)
    timing, parent = found.timing, kernel.records[-1] if kernel.records else None
    if timing is None or timing.problem or parent is None or parent.timing is None:
        return ToolAnswer("\n".join(lines))
    if parent.candidate.id != REFERENCE and found.candidate.id != parent.candidate.id:
        draft = (await _named(call, kernel, services)).text
        turns = await services.measure.time_beside(draft, found.build, kernel.text)
        lines.append(beside_line(parent.candidate.id, turns))
    lines.append(load_words(await services.measure.baseline(), [timing]))
    return ToolAnswer("\n".join(filter(None, lines)))


async def _profile(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Profiles the kernel. Returns its report, with a limiter from the numbers if the profiler named none."""
    found = await _examine(call, kernel, services, "profile")
    lines = profile_lines(found)
    if kernel.brief is not None and found.profile is not None and not found.profile.limiter:
        named = await _named(call, kernel, services)
        limits = diagnose(replace(kernel.brief, parent=found, parent_text=named.text, lowered=named.lowered))
        lines.append(f"{limits.failure or limits.limiter}: {limits.evidence}. {limits.action}")
    return ToolAnswer("\n".join(lines))


async def _sass(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Builds the call's kernel, if the budget allows; answers with counts of its instructions by class."""
    return ToolAnswer("\n".join(code_lines(await _examine(call, kernel, services, "build"))))


async def _show(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Tool "show": the named candidate's measurements and its code. Raises UsageError without a name."""
    if not call.candidate:
        raise UsageError("name a candidate")
    named = await _named(call, kernel, services)
    known = measured(named.records) if named.records else "not evaluated yet"
    recipe = named.candidate.recipe
    is_authored = recipe is not None and recipe.authored is not None
    text = authored_words(recipe) if recipe is not None and is_authored else code_words(named.text, WHOLE_CHARS)
    return ToolAnswer(f"{named.candidate.id}: {known}\n{text}")


async def _history(_call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Tool "history": one line for each of the latest steps, those from this parent first."""
    parent = kernel.candidate.id
    made = [(item.candidate.id, item.proposal) for item in services.run.decisions() if item.proposal is not None]
    newest = sorted(made, key=lambda item: (item[1].parent != parent, -candidate_number(item[0])))
    lines = [attempt_line(name, proposal, services.records(name)) for name, proposal in newest[:ATTEMPTS]]
    left = len(newest) - len(lines)
    return ToolAnswer("\n".join([*lines, f"({left} earlier steps are not shown)"] if left else lines) or "No step yet.")


async def _search_experience(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Tool "search": lessons in the store that match the query's words. Raises UsageError without a store or without
    words."""
    store = services.store
    if store is None or not call.query:
        raise UsageError("there is no store of experience here" if store is None else "say what is looked for")
    found = await asyncio.to_thread(store.search, call.query, services.device.target, LESSONS)
    return ToolAnswer("\n".join(lesson_line(record) for record, _ in found) or "Nothing is known of that.")


async def _tune(call: ToolCall, kernel: Kernel, services: Services) -> ToolAnswer:
    """Tunes the kernel that a call names. Returns the best numbers as text and recipe, or why there are none.

    Only numbers of the parent are moves from it; a draft's have none. Raises UsageError if no kernel can be proposed
    here.
    """
    if kernel.brief is None:
        raise UsageError("no kernel is proposed here")
    named = await _named(call, kernel, services)
    found = await find_numbers(kernel.brief, named.lowered, services)
    if isinstance(found, NoNumbers):
        return ToolAnswer(f"No better numbers: {found.reason}.")
    settings = ", ".join(
        f"{change_words(move.name, move.was, move.value, move.unit)} in {move.kernel}" for move in found.moves
    )
    is_parent = named.candidate.id == kernel.candidate.id
    return ToolAnswer(
        f"{found.told} Best: {settings}: {found.expected}. Propose it as `draft`.",
        found.recipe,
        found.moves if is_parent else (),
    )


_WAYS: Mapping[str, Callable[[ToolCall, Kernel, Services], Awaitable[ToolAnswer]]] = {
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
