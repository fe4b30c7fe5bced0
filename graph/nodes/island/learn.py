"""Records what came of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foundry.graph.run.services import Services
from foundry.graph.search.lessons import counted, lessons
from foundry.graph.search.measure import evaluation_facts, examine_step
from foundry.graph.search.state import (
    IslandState,
    Update,
)
from foundry.graph.search.strategies.archive import ONE_CELL, Gain, cell_of, insert
from foundry.graph.search.strategies.gradients import remember
from foundry.knowledge.candidate import Candidate, Evaluation
from foundry.knowledge.compiler.moves import name_kernel
from foundry.knowledge.merit import CORRECT, WRONG, merit

GAIN = 1.005  # the merit that counts as a better candidate
KEPT = 64  # candidates an island remembers as possible parents
REPAIRS = {"library": 1, "model": 2, "user": 1}  # tries to repair a broken candidate, by origin


async def learn(state: IslandState, services: Services) -> Update:
    """Records the evaluation, takes the candidate in as a possible parent, and leaves the lesson in the store."""
    step = state["step"]
    candidate = services.candidate(state["candidate"])
    evaluation = await examine_step(state, services, "screen")
    services.run.add_evaluation(evaluation, "screen", step)
    records = [evaluation]
    if state.get("proven"):
        evaluation = await examine_step(state, services, "full")
        services.run.add_evaluation(evaluation, "full", step)
        records.append(evaluation)
    found, gain = _take_in(state, records, services)
    facts = evaluation_facts(evaluation, gain)
    services.log.note_once("evaluation", candidate.id, **facts, expert=_expert_of(services, candidate))
    await _teach(state, services, records)
    value = merit(records)
    repairs = state.get("repairs", 0) + 1 if state.get("broken") else 0
    mend = value < CORRECT and repairs < REPAIRS[candidate.origin]
    return {**found, "broken": candidate.id if mend else "", "repairs": repairs if mend else 0}


def _take_in(state: IslandState, records: Sequence[Evaluation], services: Services) -> tuple[Update, Gain]:
    """The island with this candidate, and what that gained in the archive."""
    candidate, value = records[-1].candidate, merit(records)
    population, archive, transitions = dict(state["population"]), state["archive"], state["transitions"]
    is_better = value > GAIN * state["best"]
    before = population.get(candidate.parents[0], (ONE_CELL, WRONG))
    coordinates = records[-1].coordinates
    gain: Gain = ""
    if coordinates is None or value < CORRECT:
        population[candidate.id] = (before[0], value)
    else:
        cell = cell_of(coordinates)
        archive, gain = insert(archive, candidate.id, cell, value)
        population[candidate.id] = (cell, value)
        if {"gradients", "archive"}.isdisjoint(services.request.left_out):
            transitions = remember(transitions, (before[0], cell, before[1], value))
    update: Update = {"population": keep_best(population), "archive": archive, "transitions": transitions}
    if is_better:
        return {**update, "best": value, "idle": 0}, gain
    return {**update, "idle": state["idle"] + 1}, gain


def keep_best(population: Mapping[str, tuple[str, float]]) -> dict[str, tuple[str, float]]:
    """The best candidates of a population, in the order they came."""
    best = set(sorted(population, key=lambda name: -population[name][1])[:KEPT])
    return {name: place for name, place in population.items() if name in best}


def _expert_of(services: Services, candidate: Candidate) -> str:
    decision = services.run.decision(candidate.id)
    return decision.proposal.expert if decision and decision.proposal else ""


async def _teach(state: IslandState, services: Services, records: Sequence[Evaluation]) -> None:
    graphs = await services.graphs()
    candidate = records[-1].candidate
    decision = services.run.decision(candidate.id)
    if not graphs or decision is None or decision.proposal is None:
        return
    parent = services.records(state["parent"], state["outside"]["stages"].get(state["parent"]))
    moves = decision.proposal.moves
    if moves and parent[-1].candidate.recipe is not None:
        before = await services.lower(parent[-1].candidate.recipe)
        moves = tuple(name_kernel(before, move) for move in moves)
    credits = await services.learn(
        lessons(
            run=services.run.id,
            step=state["step"],
            task=services.task.name,
            graph=graphs[0],
            device=services.device,
            diagnosis=decision.diagnosis,
            filed=counted(moves),
            parent=parent,
            child=records,
            kernels=(await services.lower(candidate.recipe)).kernels if candidate.recipe else (),
            rationale=decision.proposal.rationale,
        )
    )
    if credits:
        told = {credit.move: credit.words for credit in credits}
        text = "; ".join(f"{move} {words}" for move, words in told.items())
        services.log.note_once("note", "credit", candidate=candidate.id, text=text, credits=told)
