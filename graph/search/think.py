"""What an island thinks before and after its experts: select, diagnose, learn, migrate."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from foundry.agents.models.models import PLAYBOOK
from foundry.graph.proofs.early import common_cause
from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.request import role_of
from foundry.graph.run.services import Services
from foundry.graph.search.briefing import add_diagnosis, brief_for, look_closer
from foundry.graph.search.fold import find_results, fold, keep_best
from foundry.graph.search.lessons import counted, lessons
from foundry.graph.search.measure import examine_step
from foundry.graph.search.orders import UserOrders, acknowledge, added_islands, find_left_out, heed, wanted_model
from foundry.graph.search.state import (
    BudgetLeft,
    Findings,
    IslandReport,
    IslandState,
    Outside,
    Stop,
    Update,
    left_out_of,
    step_name,
)
from foundry.graph.search.strategies.archive import cell_of, insert, without_cells
from foundry.graph.search.strategies.gradients import choose_parent
from foundry.graph.search.strategies.migration import PROBABILITY, Migrant, choose, list_migrants, publish
from foundry.knowledge.candidate import REFERENCE, Candidate, Evaluation, Stage
from foundry.knowledge.compiler.moves import name_kernel
from foundry.knowledge.merit import CORRECT, Estimate, merit
from foundry.knowledge.ruling import rule
from foundry.knowledge.thought import Diagnosis, Directive, Role

MISSES = 8  # proposals in a row without a new candidate after which an island gives up
REPAIRS = {"library": 1, "model": 2, "user": 1}  # tries to repair a broken candidate, by origin
ONCE = ("try", "from")  # orders that one strand of an island follows
POLL_S = 0.2


def report(state: IslandState) -> IslandReport:
    """What the next round starts from."""
    return IslandReport(
        island=state["island"],
        strand=state["strand"],
        round=state.get("round", 0),
        generation=state["generation"],
        folded=state["folded"],
        archive=state["archive"],
        population=state["population"],
        dry=state["dry"],
        transitions=state["transitions"],
        directives=state["directives"],
        inbox_after=state["inbox_after"],
        orders=state["orders"],
        stop=state["stop"],
    )


# select


def next_step(state: IslandState, services: Services) -> str:
    """The step that comes next; the strands of an island count its generations in turns."""
    return step_name(state["island"], state["generation"] + services.request.strands)


async def select(state: IslandState, services: Services) -> Update:
    """Begins a step: reads the inbox and the budget, takes in what the island's other strands have found, then chooses
    the parent of this generation."""
    step, place = next_step(state, services), (state["island"], state["strand"])
    generation, key = state["generation"] + services.request.strands, f"{step}/outside"
    if services.journal.lookup(key) is None and not services.journal.replaying:
        await _wait_while_paused(state, step, services)
    outside: Outside = services.journal.plain(key, "outside", lambda: _look_around(state, step, services))
    if outside["stop"] is None:
        services.flight.tell(place, step)
    found, _ = fold(state, outside["results"], services)
    state = cast("IslandState", {**state, **found})
    services.log.mark_alive()
    services.ledger.refresh()
    known = services.directives()
    said = [item for item in known if item.id in outside["to_run"]]
    fresh = [item for item in known if item.id in {*outside["directives"], *outside["to_run"]}]
    if not services.journal.replaying and (wanted := wanted_model(said)):
        services.use_models(wanted)  # a replay finds what they thought in its recording
    await acknowledge(state["island"], state["population"], services, step, fresh)
    orders = heed(state["orders"], said, known)
    withdrawn = {item.command["directive"] for item in said if item.verb == "withdraw"}
    update: Update = {
        **found,
        "generation": generation,
        "step": step,
        "outside": outside,
        "directives": [item for item in (*state["directives"], *outside["directives"]) if item not in withdrawn],
        "inbox_after": outside["seen"],
        "orders": orders,
        "role": _role(state, orders, outside, services),
    }
    stop = outside["stop"] or _own_stop(state, services)
    if stop:
        services.flight.leave(place)
        return {**update, "stop": stop}
    update = {**update, **_choose_parent(state, orders, step, outside, services)}
    services.flight.tell(place, step, update.get("parent", ""))
    return update


def _role(state: IslandState, orders: UserOrders, outside: Outside, services: Services) -> Role:
    """The role that a user gave the island, else the round's; what the round did not begin with is told."""
    usual = role_of(state["island"], state.get("round", 0), left_out_of(outside, services))
    own = state.get("own_role", None if state["orders"]["role"] else state["role"])  # a run of before: the latter
    role = orders["role"] or own or usual
    if role != state["role"]:
        services.log.note_once("note", "role", role=role)
    return role


def _choose_parent(state: IslandState, orders: UserOrders, step: str, outside: Outside, services: Services) -> Update:
    """Begins the step: with a user's file, from where a user wants it, with a repair, or from a drawn parent."""
    fresh: Update = {
        "diagnosis": None,
        "experts": [],
        "wants": "",
        "turns": 0,
        "silent_s": None,
        "candidate": "",
        "text": "",
        "outcome": "",
        "proven": False,
        "given": 0,
        "ordered": 0,
    }
    population = state["population"]
    if orders["tries"]:
        number, *rest = orders["tries"]
        best = max(population, key=lambda name: population[name][1])
        return {**fresh, "given": number, "parent": best, "orders": {**orders, "tries": rest}}
    if orders["starts"]:
        (number, name), *later = orders["starts"]
        place = population.get(name) or _place_of(name, services)
        dry = [other for other in state["dry"] if other != name]
        known = {"population": {**population, name: place}, "dry": dry, "orders": {**orders, "starts": later}}
        return {**fresh, **known, "ordered": number, "parent": name}
    if state.get("broken"):
        return {**fresh, "parent": state["broken"]}
    closed = {*state["dry"], *orders["frozen"]}
    open_parents = {name: place for name, place in population.items() if name not in closed}
    correct = {name: place for name, place in open_parents.items() if place[1] >= CORRECT}
    if len(correct) > 1:
        correct.pop(REFERENCE, None)  # it was only there until a kernel of its own runs
    if not open_parents:
        return {"stop": Stop(kind="exhausted", text="exhausted: every move from every candidate here has been tried")}
    stream, estimates = services.stream(f"{step}:select"), _estimates(correct, outside["stages"], services)
    archive, candidates = state["archive"], correct or open_parents
    if "archive" in left_out_of(outside, services):
        archive, candidates = without_cells(archive, candidates)
    parent = choose_parent(candidates, estimates, state["transitions"], archive, stream)
    return {**fresh, "parent": parent}


def _estimates(names: Iterable[str], stages: Mapping[str, Stage], services: Services) -> dict[str, Estimate]:
    """How fast these candidates are, as far as that was known when the step began."""
    known = {name: services.estimate(name, stages[name]) for name in names if name in stages}
    return {name: found for name, found in known.items() if found is not None and math.isfinite(found.deviation)}


def _place_of(name: str, services: Services) -> tuple[str, float]:
    """The cell and the merit of a candidate of another island."""
    records = services.records(name)
    coordinates = records[-1].coordinates
    return cell_of(coordinates) if coordinates else "000", merit(records)


def _look_around(state: IslandState, step: str, services: Services) -> Outside:
    directives = services.directives(state["inbox_after"])
    island, place = state["island"], (state["island"], state["strand"])
    results = find_results(state, services)
    elites = (elite["candidate"] for elite in state["archive"].values())
    fresh = (name for name, _ in results["found"])
    shown = dict.fromkeys([*state["population"], *elites, *fresh, *([state["broken"]] if state["broken"] else [])])
    reserved = services.flight.reserved(but=place)
    to_run = [item for item in directives if item.to == "run" and _is_ours(item, island, step, services)]
    return Outside(
        stop=find_ordered_stop(services, reserved) or _find_island_s_stop(state, services),
        seen=max([state["inbox_after"], *(item.id for item in directives)]),
        directives=[item.id for item in directives if item.to != "run" and item.island in (None, island)],
        to_run=[item.id for item in to_run],
        tried=services.run.tried()[0],
        rivals=services.measure.knows_rivals,
        mark=list(services.run.mark()),
        stages=services.run.stages(list(shown)),
        results=results,
        thinking=[(item.step, item.parent) for item in services.flight.thinking(but=place)],
        left_out=find_left_out(to_run, services),
        budget=_budget_left(reserved, services),
    )


def _budget_left(reserved: int, services: Services) -> BudgetLeft:
    ledger = services.ledger
    spent, allowed = ledger.spent(), ledger.allowed()
    return BudgetLeft(
        spent=spent.evaluations,
        allowed=allowed.evaluations,
        reserved=reserved,
        tried=services.run.trial_count(),
        tries=ledger.most_trials(),
        minutes=round(spent.minutes, 2),
        allowed_minutes=allowed.minutes,
    )


def _is_ours(item: Directive, island: int, step: str, services: Services) -> bool:
    """Whether a strand heeds what was said to the run: what is to be done once, by the first strand of an island that
    hears it."""
    if item.island not in (None, island):
        return False
    if item.verb not in ONCE:
        return True
    taken: str = services.journal.plain(f"i{island}/order/{item.id}", "outside", lambda: step)
    return taken == step


def find_ordered_stop(services: Services, reserved: int = 0) -> Stop | None:
    """Why the whole search should end: the user's word, the budget, of which steps under way have `reserved` so many
    evaluations, or a result that is good enough."""
    wanted, number = find_wanted_state(services.directives())
    if wanted == "stop":
        return Stop(kind="user", text=f"stopped by the user (d{number})")
    if spent := services.ledger.why_exhausted(reserved):
        return Stop(kind="budget", text=spent)
    if enough := services.ledger.why_satisfied(services.best()):
        return Stop(kind="satisfied", text=enough)
    if services.brain.name == PLAYBOOK and (cause := common_cause(services)):
        return Stop(kind="exhausted", text=f"every kernel would fail its proof for one reason: {cause.gate}")
    return None


def _find_island_s_stop(state: IslandState, services: Services) -> Stop | None:
    """Why a user wants this island to end, or all of them to end their round: one is added."""
    directives = services.directives()
    wanted, number = find_wanted_state(directives, state["island"])
    if wanted == "stop":
        return Stop(kind="user", text=f"stopped by the user (d{number})")
    if services.request.island_count + len(added_islands(directives)) > state["islands_now"]:
        return Stop(kind="regroup", text="makes room for one more island")
    return None


def _own_stop(state: IslandState, services: Services) -> Stop | None:
    """Why the island itself should stop, or None."""
    if state["idle"] >= services.effort.plateau:
        return Stop(kind="plateau", text=f"plateau: {state['idle']} generations without a better candidate")
    if state["misses"] >= MISSES:
        return Stop(kind="exhausted", text=f"exhausted: {state['misses']} proposals in a row gave no new candidate")
    return None


async def _wait_while_paused(state: IslandState, step: str, services: Services) -> None:
    """Rests until the user says otherwise; that the word is taken is told as the rest begins, not when it is over."""
    island = state["island"]
    wanted, number = find_wanted_state(services.directives(), island)
    if wanted != "pause":
        return
    is_all = find_wanted_state(services.directives())[0] == "pause"
    with services.log.span("note", "paused", directive=number):
        started, told = time.monotonic(), 0
        while wanted == "pause":
            if number != told:
                said = [item for item in services.directives() if item.id == number]
                await acknowledge(island, state["population"], services, step, said)
                told = number
            await asyncio.sleep(POLL_S)
            services.log.mark_alive()
            wanted, number = find_wanted_state(services.directives(), island)
        if is_all:  # while others work, the run's time goes on
            services.ledger.excuse((island, state["strand"]), time.monotonic() - started)


# diagnose


async def diagnose(state: IslandState, services: Services) -> Update:
    """What broke or limits the parent, what the store knows about that, and which experts to ask, in order: by
    diagnosis, role and the user's words."""
    from foundry.agents.route import ranking

    if state["given"]:  # a user's file needs no diagnosis: who would mend it hands it on
        return {"diagnosis": None, "experts": ["diagnostician"]}
    brief = await look_closer(await brief_for(state, services), services)
    with services.log.span("expert", "diagnostician", purpose="diagnose", candidate=state["parent"]) as span:
        diagnosis = await services.journal.record(
            f"{state['step']}/diagnosis", "thought", Diagnosis, lambda: services.brain.diagnose(brief)
        )
        span.data["found"] = diagnosis.failure or diagnosis.limiter
        span.data["evidence"] = diagnosis.evidence
        span.data["action"] = diagnosis.action
    brief = await add_diagnosis(brief, diagnosis, services)
    return {"diagnosis": diagnosis, "experts": list(ranking(brief, diagnosis))}


# learn, migrate


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


def evaluation_facts(evaluation: Evaluation, gain: str = "") -> dict[str, Any]:
    """What the trace and the live progress show of an evaluation."""
    timing, profile, ruling = evaluation.timing, evaluation.profile, rule(evaluation)
    return {
        "outcome": ruling.outcome,
        "speedup": timing.speedup if timing else None,
        "speedup_ci95": list(timing.speedup_ci95) if timing else None,
        "candidate_ms": timing.candidate_ms if timing else None,
        "stage": timing.stage if timing else None,
        "fraction_of_floor": profile.fraction_of_floor if profile else None,
        "cell": cell_of(evaluation.coordinates) if evaluation.coordinates else None,
        "gain": gain,
        "evidence": ruling.evidence,
    }


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


async def migrate(state: IslandState, services: Services) -> Update:
    """Offers a new elite to the other islands; takes some of theirs in when this one stagnates."""
    step = state["step"]
    idle = state.get("idle", 0) if state.get("candidate") else state.get("idle", 0) + 1
    name = state.get("candidate", "")
    for cell, elite in state["archive"].items():
        if elite["candidate"] == name:
            publish(services.run.database, Migrant(name, state["island"], elite["merit"], cell))
    stream = services.stream(f"{step}:migrate")
    if "migration" in services.request.left_out:
        return {"idle": idle}
    if idle < services.effort.stagnation or stream.random() >= PROBABILITY:
        return {"idle": idle}
    rows = services.journal.plain(f"{step}/abroad", "outside", lambda: _find_migrants(state, services))
    taken = choose([Migrant(*row) for row in rows], stream)
    archive, population = state["archive"], dict(state["population"])
    for migrant in taken:
        archive, gain = insert(archive, migrant.candidate, migrant.cell, migrant.merit)
        population[migrant.candidate] = (migrant.cell, migrant.merit)
        services.log.note_once(
            "migration", migrant.candidate, origin=migrant.island, merit=round(migrant.merit, 4), gain=gain
        )
    return {"idle": idle, "archive": archive, "population": keep_best(population)}


def _find_migrants(state: IslandState, services: Services) -> list[tuple[Any, ...]]:
    known = state["population"]
    return [
        (migrant.candidate, migrant.island, migrant.merit, migrant.cell)
        for migrant in list_migrants(services.run.database, state["island"])
        if migrant.candidate not in known
    ]
