"""Builds the brief that experts are shown at a step, from the run's records: the same again in a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from foundry.agents.brief import Attempt, Brief, Example
from foundry.agents.prompt_text.findings import brief_words
from foundry.agents.prompt_text.standing import FIRST
from foundry.graph.run.run_directory import Mark
from foundry.graph.run.services import Recalled, Services
from foundry.graph.search.known import known_kernels
from foundry.graph.search.lessons import query
from foundry.graph.search.state import BudgetLeft, IslandState, island_of, step_name
from foundry.knowledge.candidate import REFERENCE, Evaluation, candidate_number
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.merit import CORRECT
from foundry.knowledge.opgraph import Signature
from foundry.knowledge.ruling import objection
from foundry.knowledge.thought import Diagnosis

SHOWN_ATTEMPTS = 8


async def brief_for(state: IslandState, services: Services) -> Brief:
    """The brief of the step at hand, built once a step.

    A process that goes on with a step of another process builds the same brief again, from the state and the run's
    records.
    """
    brief = services.briefs.get(state["step"])
    if brief is None:
        brief = _remember(await _build_brief(state, services), services)
    diagnosis = state["diagnosis"]
    return brief if diagnosis is None else await add_diagnosis(brief, diagnosis, services)


async def add_diagnosis(brief: Brief, diagnosis: Diagnosis, services: Services) -> Brief:
    """The brief with the diagnosis, and what the store knows about it on graphs like this one. One that has a diagnosis
    stays as it is."""
    if brief.diagnosis is None:
        recalled = Recalled()
        if brief.graph is not None:
            limiter = diagnosis.failure or diagnosis.limiter or ""
            asked = query(brief.graph, services.device, limiter, diagnosis.action)
            recalled = await services.recall(f"{brief.step}/recalled", asked)
        brief = _remember(replace(brief, diagnosis=diagnosis, hits=recalled.hits, credits=recalled.credits), services)
    return brief


def _remember(brief: Brief, services: Services) -> Brief:
    """Keeps the brief until the island's next step. Returns it."""
    services.briefs.pop(step_name(brief.island, brief.generation - 1), None)
    services.briefs[brief.step] = brief
    return brief


async def look_closer(brief: Brief, services: Services) -> Brief:
    """The brief with hardware counters of its parent.

    Unchanged unless the device has counters, the island stagnates, and the parent is a right kernel and one of its
    elites; also if the budget of such profiles is used up.
    """
    parent = brief.parent
    is_elite = parent.candidate.id in {elite.candidate.id for elite in brief.elites}
    if not services.device.traits.has_counters or not brief.stagnant_generations or not is_elite or objection(parent):
        return brief
    if parent.candidate.id == REFERENCE:
        return brief
    key, text = f"{brief.step}/closer", brief.parent_text
    if not services.journal.plain(key, "outside", lambda: services.measure.may_count(text, services.effort.counted)):
        return brief
    profile = await services.measure.counted(text, parent, brief.lowered)
    return _remember(replace(brief, parent=replace(parent, profile=profile)), services)


async def _build_brief(state: IslandState, services: Services) -> Brief:
    """Collects everything that an expert is shown at this step; the parent is lowered again if it has a recipe."""
    parent = services.latest(state["parent"])
    lowered: Lowered | None = None
    if parent.candidate.recipe is not None:
        with contextlib.suppress(CannotLower):
            lowered = await services.lower(parent.candidate.recipe)
    graphs = await services.graphs()
    best = _best(state)
    elites = (services.latest(best),) if best else ()
    intake = await services.measure.intake()
    examples, idle = _examples(state, services, best), state["idle"]
    return Brief(
        task=services.task,
        graph=graphs[0] if graphs else None,
        device=services.device,
        baseline=await services.measure.baseline(),
        role=state["orders"]["role"] or "any",
        island=state["island"],
        generation=state["generation"],
        step=state["step"],
        seed=services.request.seed,
        parent=parent,
        parent_text=services.text(parent),
        lowered=lowered,
        diagnosis=None,
        directives=tuple(item for item in services.directives() if item.id in state["directives"]),
        stagnant_generations=idle if idle >= services.effort.stagnation else 0,
        known=await known_kernels(Mark(*state["outside"]["mark"]), services),
        elites=elites,
        records=_records([parent, *elites, *(item.evaluation for item in examples)], state, services),
        tried=services.tried(state["outside"]["tried"]),
        tune_s=services.effort.tune_s if services.device.present else 0.0,
        further_graphs=tuple(graphs[1:]),
        ran=tuple(intake.ran),
        seen=Signature(tuple(intake.inputs), tuple(intake.outputs)),
        first=_first(services),
        compiled=(await services.measure.rivals()).rival("compile") if state["outside"]["rivals"] else None,
        attempts=_attempts(state, services),
        examples=examples,
        budget=_budget_words(state["outside"]["budget"]),
        thinking=tuple(parent for _, parent in state["outside"]["thinking"]),
        others=_others(state, services),
    )


def _others(state: IslandState, services: Services) -> tuple[str, ...]:
    """A line for each other island that now works on a step from this parent, with its last step if it has one."""
    history, mark = services.recorded or services.run, Mark(*state["outside"]["mark"])
    made = {item.island: item for item in history.decisions(mark) if item.proposal is not None}
    found = []
    for step, parent in state["outside"]["thinking"]:
        if parent == state["parent"]:
            island = island_of(step)
            last = made[island].proposal if island in made else None
            before = f', whose last step was: "{brief_words(last.rationale)}"' if last else ""
            found.append(f"island {island}{before}")
    return tuple(dict.fromkeys(found))


def _budget_words(left: BudgetLeft) -> str:
    """The search's remaining budget and the cost of a step, as a paragraph for a model."""
    under_way = f", {left['reserved']} are kept for other steps under way" if left["reserved"] else ""
    tries = f"{max(0, left['tries'] - left['tried'])} of {left['tries']}"
    return (
        f"Budget of the search, all islands together: {left['spent']} of {left['allowed']} evaluations are spent"
        f"{under_way}; {left['minutes']:.1f} of {left['allowed_minutes']:.3g} minutes. A kernel counts once, whether "
        f"a step proposes it or a tool works on it; tools may work on {tries} more that no step proposes. The search "
        "ends when it is used up."
    )


def _records(shown: Sequence[Evaluation], state: IslandState, services: Services) -> dict[str, tuple[Evaluation, ...]]:
    """The records of these candidates by id, as they were when this step began."""
    history, mark = services.recorded or services.run, Mark(*state["outside"]["mark"])
    return {item.candidate.id: tuple(history.records(item.candidate.id, up_to=mark)) for item in shown}


def _first(services: Services) -> str:
    """The text of the run's first candidate if the kernel compiler wrote it, else ""."""
    made = services.run.decision(FIRST)
    is_library = made is not None and made.candidate.recipe is not None and made.candidate.recipe.authored is None
    return services.run.text(made.candidate.source) if made is not None and is_library else ""


def _attempts(state: IslandState, services: Services) -> tuple[Attempt, ...]:
    """The latest steps of this run when this one began, those from this parent first, then those of this island."""
    history, mark = services.recorded or services.run, Mark(*state["outside"]["mark"])
    made = [item for item in history.decisions(mark) if item.proposal is not None and item.step != state["step"]]
    made.sort(key=lambda item: candidate_number(item.candidate.id), reverse=True)
    made.sort(key=lambda item: (item.candidate.parents[:1] != (state["parent"],), item.island != state["island"]))
    return tuple(
        Attempt(item.candidate.id, item.proposal, tuple(history.records(item.candidate.id, up_to=mark)))
        for item in made[:SHOWN_ATTEMPTS]
        if item.proposal is not None
    )


def _best(state: IslandState) -> str:
    """The island's best correct candidate, of equals the older one; "" while there is none."""
    correct = [name for name, value in state["population"].items() if value >= CORRECT]
    return min(correct, key=lambda name: (-state["population"][name], candidate_number(name)), default="")


def _examples(state: IslandState, services: Services, own: str) -> tuple[Example, ...]:
    """The best kernel of the run when this step began, and that of this island; without the parent, which is shown
    anyway."""
    history, mark = services.recorded or services.run, Mark(*state["outside"]["mark"])
    reasons = dict.fromkeys(history.ranking(1, mark), "the best kernel of this run")
    if own and own != REFERENCE:
        reasons.setdefault(own, "the best kernel of this island")
    shown = [(history.records(name, up_to=mark)[-1], why) for name, why in reasons.items() if name != state["parent"]]
    return tuple(Example(found, services.text(found), why) for found, why in shown)
