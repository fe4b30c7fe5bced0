"""Records what came of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from foundry.graph.run.run_directory import STAGES
from foundry.graph.run.services import Services
from foundry.graph.search.lessons import counted, lessons
from foundry.graph.search.measure import evaluation_facts, examine_step
from foundry.graph.search.state import IslandState, Update
from foundry.graph.search.strategy import remember
from foundry.knowledge.candidate import Candidate, Evaluation
from foundry.knowledge.compiler.moves import name_kernel
from foundry.knowledge.merit import CORRECT, merit

GAIN = 1.005  # the merit that counts as a better candidate
KEPT = 64  # candidates an island remembers as possible parents
REPAIRS = {"library": 1, "model": 2, "user": 1}  # tries to repair a broken candidate, by origin


async def learn(state: IslandState, services: Services) -> Update:
    """Records the evaluation, takes the candidate in as a possible parent, and leaves the lesson in the store."""
    step = state["step"]
    candidate = services.candidate(state["candidate"])
    evaluation = await examine_step(state, services, "screen")
    records = [evaluation, *([await examine_step(state, services, "full")] if state["proven"] else [])]
    for found, stage in zip(records, STAGES, strict=False):  # at once: other islands read all of them or none
        services.run.add_evaluation(found, stage, step)
    facts = evaluation_facts(records[-1])
    services.log.note_once("evaluation", candidate.id, **facts, expert=_expert_of(services, candidate))
    await _teach(state, services, records)
    value = merit(records)
    taken = _take_in(state, candidate.id, value)
    memory = await remember(cast("IslandState", {**state, **taken}), services, records[-1])
    repairs = state.get("repairs", 0) + 1 if state.get("broken") else 0
    mend = value < CORRECT and repairs < REPAIRS[candidate.origin]
    return {**taken, "memory": memory, "broken": candidate.id if mend else "", "repairs": repairs if mend else 0}


def _take_in(state: IslandState, child: str, value: float) -> Update:
    """The state's changes for a new possible parent: the best KEPT candidates, and `best` and `idle`."""
    population = {**state["population"], child: value}
    best = set(sorted(population, key=lambda name: -population[name])[:KEPT])
    update: Update = {"population": {name: known for name, known in population.items() if name in best}}
    if value > GAIN * state["best"]:
        return {**update, "best": value, "idle": 0}
    return {**update, "idle": state["idle"] + 1}


def _expert_of(services: Services, candidate: Candidate) -> str:
    """Name of the expert that proposed a candidate; "" for a first candidate."""
    decision = services.run.decision(candidate.id)
    return decision.proposal.expert if decision and decision.proposal else ""


async def _teach(state: IslandState, services: Services, records: Sequence[Evaluation]) -> None:
    """Writes the lessons of a step to the experience store and notes the credit of its moves in the trace."""
    graphs = await services.graphs()
    candidate = records[-1].candidate
    decision = services.run.decision(candidate.id)
    if not graphs or decision is None or decision.proposal is None:
        return
    parent = services.records(state["parent"], "full")
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
