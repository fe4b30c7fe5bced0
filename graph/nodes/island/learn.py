"""Records what came of a step."""

from __future__ import annotations

from collections.abc import Sequence

from foundry.graph.run.services import Services
from foundry.graph.search.fold import find_results, fold
from foundry.graph.search.lessons import counted, lessons
from foundry.graph.search.measure import evaluation_facts, examine_step
from foundry.graph.search.state import (
    Findings,
    IslandState,
    Update,
)
from foundry.knowledge.candidate import Candidate, Evaluation
from foundry.knowledge.compiler.moves import name_kernel
from foundry.knowledge.merit import CORRECT, merit

REPAIRS = {"library": 1, "model": 2, "user": 1}  # tries to repair a broken candidate, by origin


async def learn(state: IslandState, services: Services) -> Update:
    """Records the evaluation and the lesson for the store; takes in what the island's strands have found by now."""
    step = state["step"]
    candidate = services.candidate(state["candidate"])
    evaluation = await examine_step(state, services, "screen")
    services.run.add_evaluation(evaluation, "screen", step)
    records = [evaluation]
    if state.get("proven"):
        evaluation = await examine_step(state, services, "full")
        services.run.add_evaluation(evaluation, "full", step)
        records.append(evaluation)
    results: Findings = services.journal.plain(f"{step}/results", "outside", lambda: find_results(state, services))
    found, gains = fold(state, results, services)
    facts = evaluation_facts(evaluation, gains.get(candidate.id, ""))
    services.log.note_once("evaluation", candidate.id, **facts, expert=_expert_of(services, candidate))
    await _teach(state, services, records)
    value = merit(records)
    repairs = state.get("repairs", 0) + 1 if state.get("broken") else 0
    mend = value < CORRECT and repairs < REPAIRS[candidate.origin]
    return {**found, "broken": candidate.id if mend else "", "repairs": repairs if mend else 0}


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
