"""Begins a step: reads the users' words and the budget, and chooses the parent."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping

from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.request import role_of
from foundry.graph.run.services import Services
from foundry.graph.search.orders import UserOrders, acknowledge, find_left_out, heed, wanted_model
from foundry.graph.search.state import (
    BudgetLeft,
    IslandState,
    Outside,
    Stop,
    Update,
    step_name,
)
from foundry.graph.search.stops import find_island_stop, find_ordered_stop, find_own_stop
from foundry.graph.search.strategies.archive import cell_of, without_cells
from foundry.graph.search.strategies.gradients import choose_parent
from foundry.knowledge.candidate import REFERENCE, Stage
from foundry.knowledge.merit import CORRECT, Estimate, merit
from foundry.knowledge.thought import Role

POLL_S = 0.2


def next_step(state: IslandState) -> str:
    """The step that comes next."""
    return step_name(state["island"], state["generation"] + 1)


async def select(state: IslandState, services: Services) -> Update:
    """Begins a step: reads the inbox and the budget, then chooses the parent of this generation."""
    step, island = next_step(state), state["island"]
    key = f"{step}/outside"
    if services.journal.lookup(key) is None and not services.journal.replaying:
        await _wait_while_paused(state, step, services)
    outside: Outside = services.journal.plain(key, "outside", lambda: _look_around(state, services))
    if outside["stop"] is None:
        services.flight.tell(island, step)
    services.log.mark_alive()
    services.ledger.refresh()
    known = services.directives()
    said = [item for item in known if item.id in outside["to_run"]]
    fresh = [item for item in known if item.id in {*outside["directives"], *outside["to_run"]}]
    if not services.journal.replaying and (wanted := wanted_model(said)):
        services.use_models(wanted)  # a replay finds what they thought in its recording
    await acknowledge(island, state["population"], services, step, fresh)
    orders = heed(state["orders"], said, known)
    withdrawn = {item.command["directive"] for item in said if item.verb == "withdraw"}
    update: Update = {
        "generation": state["generation"] + 1,
        "step": step,
        "outside": outside,
        "directives": [item for item in (*state["directives"], *outside["directives"]) if item not in withdrawn],
        "inbox_after": outside["seen"],
        "orders": orders,
        "role": _role(state, orders, outside, services),
    }
    stop = outside["stop"] or find_own_stop(state, services)
    if stop:
        services.flight.leave(island)
        return {**update, "stop": stop}
    update = {**update, **_choose_parent(state, orders, step, outside, services)}
    services.flight.tell(island, step, update.get("parent", ""))
    return update


def _role(state: IslandState, orders: UserOrders, outside: Outside, services: Services) -> Role:
    """The role that a user gave the island, else its own; a change is told."""
    role = orders["role"] or state["own_role"] or role_of(state["island"], outside["left_out"])
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
    if "archive" in outside["left_out"]:
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


def _look_around(state: IslandState, services: Services) -> Outside:
    directives = services.directives(state["inbox_after"])
    island = state["island"]
    elites = (elite["candidate"] for elite in state["archive"].values())
    shown = dict.fromkeys([*state["population"], *elites, *([state["broken"]] if state["broken"] else [])])
    reserved = services.flight.reserved(but=island)
    here = [item for item in directives if item.island in (None, island)]
    to_run = [item for item in here if item.to == "run"]
    return Outside(
        stop=find_ordered_stop(services, reserved) or find_island_stop(state, services),
        seen=max([state["inbox_after"], *(item.id for item in directives)]),
        directives=[item.id for item in here if item.to != "run"],
        to_run=[item.id for item in to_run],
        tried=services.run.tried()[0],
        rivals=services.measure.knows_rivals,
        mark=list(services.run.mark()),
        stages=services.run.stages(list(shown)),
        thinking=[(item.step, item.parent) for item in services.flight.thinking(but=island)],
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
            services.ledger.excuse(island, time.monotonic() - started)
