"""Writes and evaluates the first candidates."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.proofs.causes import tf32_words
from foundry.graph.proofs.early import prove_early
from foundry.graph.run.closing import EARLY
from foundry.graph.run.journal import Diverged
from foundry.graph.run.run_directory import Decision
from foundry.graph.run.services import Services
from foundry.graph.search.claims import claim_evaluation
from foundry.graph.search.first_texts import ARITHMETIC, accurate_text, first_texts
from foundry.graph.search.lessons import lessons
from foundry.graph.search.measure import evaluation_facts
from foundry.graph.search.state import RunState, Update
from foundry.knowledge.candidate import (
    REFERENCE,
    Audit,
    Build,
    Candidate,
    Evaluation,
    Recipe,
    Timing,
    Verdict,
    candidate_number,
)
from foundry.knowledge.experience.record import SEED
from foundry.knowledge.merit import CORRECT, merit
from foundry.knowledge.ruling import rule
from foundry.knowledge.step_words import origin_words

SEEDS_AT_ONCE = 2
SHORTEST_MINUTES = 0.5  # shortest search with time for torch.compile beside it
LONG_MINUTES = 12.0  # a process for a model ends after 15
STRICT = (
    "strict refuses kernels that are compiled for the task's shapes, as all of its own are: what is found "
    "here can be accepted only when it is a start file's or a chat model's"
)


async def seed(state: RunState, services: Services) -> Update:
    """Writes and evaluates the first candidates. Returns their ids, those that an early proof refuses, and an ending.

    The safest is evaluated first and alone, so that there is a right one early. While none is right, accurate variants
    of inaccurate ones follow, then the library's further ones.
    """
    asked, further, problem = await first_texts(services, state.get("lowerable", False))
    if problem:
        services.log.note_once("note", "cannot lower", reason=problem)
    if services.task.options.policy == "strict" and any(recipe for _, recipe, _ in asked):
        services.log.note_once("note", "policy", reason=STRICT)
    numbers = itertools.count()
    made = [found for text in asked if (found := _claim(services, f"seed{next(numbers)}", *text))]
    if not made:
        if services.brain.name != "playbook" and services.device.present:  # give a model something to rewrite
            _time_rivals(services)
            services.run.add_evaluation(await _reference(services), "screen", "reference")
        ending = state.get("ending") or problem or "the kernel compiler has no first candidate for this task"
        return {"seeds": [], "lowerable": False, "ending": ending}
    seeds = _Seeds()
    await _evaluate_seed(services, made[0], seeds)
    await _mend_inaccurate(services, made[0], seeds)
    await _expect_contest(services)
    if not services.device.traits.uses_host_cores:
        _time_rivals(services)
    gate = asyncio.Semaphore(SEEDS_AT_ONCE)

    async def one(decision: Decision) -> None:
        """Evaluates one first candidate if there is time, a few at once."""
        async with gate:
            if _has_time(services, decision, seeds):
                await _evaluate_seed(services, decision, seeds)

    await asyncio.gather(*(one(decision) for decision in made[1:]))
    for decision in made[1:]:
        await _mend_inaccurate(services, decision, seeds)
    for text in further:
        if not services.device.present or seeds.correct:
            break
        more = _claim(services, f"seed{next(numbers)}", *text)
        if more is not None and _has_time(services, more, seeds):
            await _evaluate_seed(services, more, seeds)
            await _mend_inaccurate(services, more, seeds)
    _time_rivals(services)
    ending = "" if services.device.present else f"no {services.device.target} device is here to run on"
    return {"seeds": by_number(seeds.evaluated), "refused": by_number(seeds.refused), "ending": ending}


async def _expect_contest(services: Services) -> None:
    """Compiles the baselines of the final comparison during the search.

    Does so only in a short run without a model: processes of a long run would grow old, and with a model they are
    timed before.
    """
    machine, request = services.measure.machine, services.request
    is_short = services.brain.name == PLAYBOOK and request.total_minutes < LONG_MINUTES
    if machine is not None and request.rivals and is_short:
        await machine.expect_contest(request.rivals)


def _time_rivals(services: Services) -> None:
    """Starts to time torch.compile beside the search, if a model is to be told of it.

    On a GPU this happens while the first candidates are tested. On a CPU its compiler takes the cores, so it happens
    while the model thinks for the first time.
    """
    request = services.request
    wanted = services.brain.name != PLAYBOOK and "compile" in request.rivals and request.max_minutes >= SHORTEST_MINUTES
    if wanted and services.device.present:
        services.measure.begin_rivals()


@dataclass
class _Seeds:
    """Ids of first candidates by result; a candidate may be in several lists."""

    evaluated: list[str] = field(default_factory=list)
    correct: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    inaccurate: list[str] = field(default_factory=list)
    first: Recipe | None = None  # the recipe of the first candidate


async def _mend_inaccurate(services: Services, decision: Decision, seeds: _Seeds) -> None:
    """Evaluates an inaccurate first candidate's accurate variant next, as long as none is right."""
    name, recipe = decision.candidate.id, decision.candidate.recipe
    if name not in seeds.inaccurate or seeds.correct or recipe is None or not recipe.rounded:
        return
    text = await accurate_text(recipe, services)
    mended = _claim(services, f"{decision.step}-accurate", *text) if text else None
    if mended is None or not _has_time(services, mended, seeds):
        return
    reason = f"{name} is inaccurate, and {tf32_words(recipe.rounded)}: {mended.candidate.id} has accurate products"
    services.log.note_once("note", ARITHMETIC, candidate=name, reason=reason)
    await _evaluate_seed(services, mended, seeds)


def _has_time(services: Services, decision: Decision, seeds: _Seeds) -> bool:
    """True if there is time for another first candidate: the search's time, or twice that while none is right."""

    def look() -> bool:
        """True while the budget's minutes last; twice as long if no first candidate is correct yet."""
        patience = 1.0 if seeds.correct else 2.0
        return services.ledger.spent().minutes < patience * services.ledger.allowed().minutes

    try:
        return bool(services.journal.plain(f"{decision.step}/time", "outside", look))
    except Diverged:  # a recording from before this was asked
        return True


def by_number(names: Iterable[str]) -> list[str]:
    """Candidates in the order in which they were claimed."""
    return sorted(names, key=candidate_number)


def _claim(services: Services, step: str, text: str, recipe: Recipe | None, why: str) -> Decision | None:
    """The decision to evaluate a first file; None if an earlier one is the same or the budget does not pay for it."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    claim = services.journal.plain(f"{step}/claim", "outside", lambda: claim_evaluation(digest, step, services))
    services.run.add_tried([*([recipe.digest] if recipe else []), digest])
    if not claim["fresh"]:
        return None
    candidate = Candidate(
        id=claim["candidate"],
        island=-1,
        generation=0,
        target=services.device.target,
        origin="user" if why == "user" or recipe is None else recipe.origin,
        source=services.run.keep(text),
        recipe=recipe,
        proposal=why,
    )
    decision = Decision(step, -1, candidate)
    services.run.add_decision(decision)
    return decision


async def _evaluate_seed(services: Services, decision: Decision, seeds: _Seeds) -> None:
    """Compiles and evaluates one first candidate, records it, proves it early if it is right, and keeps its lesson."""
    candidate = decision.candidate
    seeds.evaluated.append(candidate.id)
    seeds.first = seeds.first or candidate.recipe
    with services.log.at(None, decision.step):
        lowered = await services.lower(candidate.recipe) if candidate.recipe else None
        text = services.run.text(candidate.source)
        if services.device.present:
            evaluation = await services.measure.examine(candidate, text, "screen", lowered=lowered)
        else:
            evaluation = await _only_built(services, candidate, text)
        services.run.add_evaluation(evaluation, "screen", decision.step)
        facts = evaluation_facts(evaluation)
        made = origin_words(candidate.proposal, candidate.recipe, seeds.first)
        services.log.note_once("evaluation", candidate.id, **facts, expert=candidate.proposal, made=made)
        if services.device.present and merit([evaluation]) >= CORRECT:
            evaluation = await _prove_seed(services, evaluation, text, decision.step, seeds)
        if rule(evaluation).outcome == "inaccurate":
            seeds.inaccurate.append(candidate.id)
        graphs = await services.graphs()
        if graphs and services.device.present:
            await services.learn(
                lessons(
                    run=services.run.id,
                    step=decision.step,
                    task=services.task.name,
                    graph=graphs[0],
                    device=services.device,
                    diagnosis=None,
                    filed={SEED: 1},
                    parent=(),
                    child=[evaluation],
                    kernels=lowered.kernels if lowered else (),
                )
            )


async def _prove_seed(services: Services, evaluation: Evaluation, text: str, step: str, seeds: _Seeds) -> Evaluation:
    """The evaluation of a right first candidate: its screen's, or that of an early proof that refuses it."""
    candidate = evaluation.candidate
    lowered = await services.lower(candidate.recipe) if candidate.recipe else None
    refused = await prove_early(services, evaluation, text, lowered, step)
    if refused is None:
        seeds.correct.append(candidate.id)
        return evaluation
    seeds.refused.append(candidate.id)
    services.run.add_evaluation(refused, "full", step)
    with services.log.at(None, f"early/{candidate.id}"):
        services.log.note_once("evaluation", candidate.id, **evaluation_facts(refused), expert=EARLY)
    return refused


async def _only_built(services: Services, candidate: Candidate, text: str) -> Evaluation:
    """The evaluation of a candidate for a device that is not here: it is compiled, nothing is proven."""
    found = await services.measure.examine(candidate, text, "screen", upto="build")
    verdict = Verdict("unproven", "screen", evidence=f"no {candidate.target} device is here")
    return Evaluation(candidate, found.build, verdict) if found.build.ok else found


async def _reference(services: Services) -> Evaluation:
    """The task's own module as candidate c0, with speedup 1: the parent of a model's first kernel."""
    found = await services.measure.baseline()
    candidate = Candidate(
        REFERENCE,
        -1,
        0,
        services.device.target,
        "user",
        source=services.run.keep(services.task.text),
        proposal="reference",
    )
    services.run.add_decision(Decision("reference", -1, candidate))
    return Evaluation(
        candidate,
        Build(ok=True, seconds=0.0),
        Verdict("correct", "screen"),
        Audit(True, services.task.options.policy, labels=("reference",)),
        Timing(
            "screen",
            found.eager_ms,
            found.eager_ms,
            1.0,
            (1.0, 1.0),
            pairs=0,
            noise=found.noise,
            wall_ratio=1.0,
        ),
    )
