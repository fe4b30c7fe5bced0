"""Begins a step: reads the users' words and the budget, and chooses the parent."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping

from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.services import Services
from foundry.graph.search.orders import UserOrders, acknowledge, orders_after, wanted_model
from foundry.graph.search.state import BudgetLeft, IslandState, Outside, Stop, Update, step_name
from foundry.graph.search.stops import find_island_stop, find_ordered_stop, find_own_stop
from foundry.graph.search.strategy import active, here
from foundry.knowledge.candidate import REFERENCE, candidate_number
from foundry.knowledge.merit import CORRECT, merit

POLL_S = 0.2
BY_MERIT = 0.7  # share of a parent's weight by merit; the rest is equal for all


def next_step(state: IslandState) -> str:
    """The name of the island's next step."""
    return step_name(state["island"], state["generation"] + 1)


async def select(state: IslandState, services: Services) -> Update:
    """Begins a step: reads the inbox and the budget, then chooses the parent of this generation."""
    step, island = next_step(state), state["island"]
    key = f"{step}/outside"
    if services.journal.lookup(key) is None and not services.journal.replaying:
        await _wait_while_paused(state, step, services)
    outside: Outside = services.journal.plain(key, "outside", lambda: _look_around(state, services))
    if outside["stop"] is None:
        services.flight.note_step(island, step)
    services.log.mark_alive()
    services.ledger.refresh()
    known = services.directives()
    said = [item for item in known if item.id in outside["to_run"]]
    fresh = [item for item in known if item.id in {*outside["directives"], *outside["to_run"]}]
    if not services.journal.replaying and (wanted := wanted_model(said)):
        services.use_models(wanted)  # a replay finds what they thought in its recording
    await acknowledge(island, state["population"], services, step, fresh)
    orders = orders_after(state["orders"], said, known)
    withdrawn = {item.command["directive"] for item in said if item.verb == "withdraw"}
    update: Update = {
        "generation": state["generation"] + 1,
        "step": step,
        "outside": outside,
        "directives": [item for item in (*state["directives"], *outside["directives"]) if item not in withdrawn],
        "inbox_after": outside["seen"],
        "orders": orders,
    }
    if orders["role"] and (orders["role"] != state["orders"]["role"] or state["generation"] == 0):
        services.log.note_once("note", "role", role=orders["role"])
    stop = outside["stop"] or find_own_stop(state, services)
    if stop:
        services.flight.note_end(island)
        return {**update, "stop": stop}
    update = {**update, **await _choose_parent(state, orders, step, services)}
    services.flight.note_step(island, step, update.get("parent", ""))
    return update


async def _choose_parent(state: IslandState, orders: UserOrders, step: str, services: Services) -> Update:
    """The state's changes for a new step, with its parent, or a stop if all candidates are exhausted.

    The first that applies: a user's file, a user's start, a repair, a drawn parent.
    """
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
        best = max(population, key=lambda name: population[name])
        return {**fresh, "given": number, "parent": best, "orders": {**orders, "tries": rest}}
    if orders["starts"]:
        (number, name), *later = orders["starts"]
        value = population.get(name, merit(services.records(name, "full")))
        dry = [other for other in state["dry"] if other != name]
        known = {"population": {**population, name: value}, "dry": dry, "orders": {**orders, "starts": later}}
        return {**fresh, **known, "ordered": number, "parent": name}
    if state.get("broken"):
        return {**fresh, "parent": state["broken"]}
    closed = {*state["dry"], *orders["frozen"]}
    open_parents = {name: value for name, value in population.items() if name not in closed}
    correct = {name: value for name, value in open_parents.items() if value >= CORRECT}
    if len(correct) > 1:
        correct.pop(REFERENCE, None)  # it was only there until a kernel of its own runs
    if not open_parents:
        return {"stop": Stop(kind="exhausted", text="exhausted: every move from every candidate here has been tried")}
    return {**fresh, "parent": await _draw_parent(state, correct or open_parents, step, services)}


async def _draw_parent(state: IslandState, candidates: Mapping[str, float], step: str, services: Services) -> str:
    """Draws the id of a parent.

    Half of the time by Thompson sampling over the speedups of correct candidates; otherwise by weights from merit,
    which the run's strategies may change.
    """
    ranked = sorted(candidates, key=lambda name: (-candidates[name], candidate_number(name)))
    total = sum(value**2 for value in candidates.values()) or 1.0
    weights = {name: BY_MERIT * candidates[name] ** 2 / total + (1 - BY_MERIT) / len(ranked) for name in ranked}
    for name, strategy in active(services):
        weights = await strategy.parents(here(name, {**state, "step": step}, services), weights)
    if len(weights) == 1:
        return ranked[0]
    stream = services.stream(f"{step}:select")
    if stream.random() < 0.5:
        known = {name: services.estimate(name, "full") for name in sorted(candidates) if candidates[name] >= CORRECT}
        drawn = {
            name: stream.gauss(found.log_speedup, found.deviation)
            for name, found in known.items()
            if found is not None and math.isfinite(found.deviation)
        }
        return max(drawn, key=lambda name: drawn[name], default=ranked[0])
    return stream.choices(list(weights), list(weights.values()))[0]


def _look_around(state: IslandState, services: Services) -> Outside:
    """Reads the world outside the island once: users' directives, budget, marks of the tables, other islands' steps."""
    directives = services.directives(state["inbox_after"])
    island = state["island"]
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
        thinking=[(item.step, item.parent) for item in services.flight.thinking(but=island)],
        budget=_budget_left(reserved, services),
    )


def _budget_left(reserved: int, services: Services) -> BudgetLeft:
    """The budget's numbers for the prompts; `reserved`: evaluations of other steps under way."""
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
    """Waits while the user pauses the island; tells so as the pause begins. A pause of all does not use up time."""
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
