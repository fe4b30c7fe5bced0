"""Checks that a run can follow a user's order about candidates, islands and models, before the order is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from foundry.agents.directives import ISLAND_ORDERS
from foundry.agents.models.models import models_for
from foundry.graph.run.events import EventLog
from foundry.graph.run.inbox import in_force
from foundry.graph.run.opening import Parts
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.errors import UsageError
from foundry.knowledge.ruling import rule
from foundry.knowledge.step_words import spoken
from foundry.knowledge.thought import Directive


@dataclass(frozen=True)
class CheckedOrder:
    """The order as it is recorded, or why the run cannot follow it."""

    order: Directive
    refusal: str = ""


def check(run: RunDirectory, order: Directive, parts: Parts) -> CheckedOrder:
    """Looks at what the order names; a file is kept in the run, so that it may be changed or deleted meanwhile."""
    islands = _islands(run)
    if order.island is not None and order.island not in islands:
        return CheckedOrder(order, f"There is no island {order.island}: this run has {_listed(islands)}.")
    if order.verb not in (*ISLAND_ORDERS, "pause", "resume", "stop"):
        order = replace(order, island=None)
    find = _CHECKS.get(order.verb)
    return find(run, order, parts) if find else CheckedOrder(order)


def _islands(run: RunDirectory) -> dict[int, bool]:
    """Number of each island -> True if it searches, also if it has not begun yet; False once it has ended."""
    added = sum(1 for item in in_force(run.inbox.read()) if item.verb == "add")
    found = dict.fromkeys(range(run.request.island_count + added), True)
    for event in EventLog(run.database, reading=True).read("note"):
        if event.name == "island ends" and event.island is not None:
            found[event.island] = False
        elif event.data.get("again"):
            found = dict.fromkeys(found, True)
    return found


def _listed(islands: dict[int, bool]) -> str:
    """The numbers of the islands in words, from their count."""
    return f"islands 0 to {len(islands) - 1}" if len(islands) > 1 else "island 0 only"


def _check_file(run: RunDirectory, order: Directive, _parts: Parts) -> CheckedOrder:
    """Keeps the text of the user's file and chooses an island for it; refuses a file without ModelNew."""
    path = Path(str(order.command["file"])).expanduser()
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        return CheckedOrder(order, f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
    if "class ModelNew" not in text:
        return CheckedOrder(order, f"{path} has no class ModelNew: a candidate is one Python file that has one.")
    island = order.island
    if island is None:
        waiting = sum(1 for item in run.inbox.read() if item.verb == "try")
        open_ones = [number for number, searches in _islands(run).items() if searches] or [0]
        island = open_ones[waiting % len(open_ones)]
    return CheckedOrder(replace(order, island=island, command={**order.command, "text": run.keep(text)}))


def _check_candidate(run: RunDirectory, order: Directive, _parts: Parts) -> CheckedOrder:
    """The order; refused if its candidate was not evaluated, or is to be started from and is not accepted."""
    name = str(order.command["candidate"])
    try:
        evaluation = run.evaluation(name)
    except UsageError:
        return CheckedOrder(order, f"There is no candidate {name} that was evaluated.")
    ruling = rule(evaluation)
    if order.verb == "from" and not ruling.accepted:
        return CheckedOrder(
            order, f"{name} is no place to start from: {spoken(ruling.outcome)}. {ruling.evidence}".rstrip()
        )
    return CheckedOrder(order)


def _check_withdrawal(run: RunDirectory, order: Directive, _parts: Parts) -> CheckedOrder:
    """The order; refused if it withdraws a directive that does not exist or was withdrawn before."""
    number, said = order.command["directive"], run.inbox.read()
    if number not in {item.id for item in said}:
        return CheckedOrder(order, f"There is no d{number}; `directives` lists what was said.")
    if number not in {item.id for item in in_force(said)}:
        return CheckedOrder(order, f"d{number} was taken back before.")
    return CheckedOrder(order)


def _check_role(_run: RunDirectory, order: Directive, _parts: Parts) -> CheckedOrder:
    """The order, refused with a hint if it names no island."""
    missing = f"Name the island: `role {order.command['role']} on island 2`."
    return CheckedOrder(order, missing if order.island is None else "")


def _check_model(run: RunDirectory, order: Directive, parts: Parts) -> CheckedOrder:
    """The order; refused with the reason if its model cannot be used in this run."""
    request = run.request
    try:
        parts.check_model(replace(request, models=models_for(request.models, str(order.command["name"]))))
    except UsageError as error:
        return CheckedOrder(order, f"{error}.")
    return CheckedOrder(order)


_CHECKS: dict[str, Callable[[RunDirectory, Directive, Parts], CheckedOrder]] = {
    "try": _check_file,
    "from": _check_candidate,
    "freeze": _check_candidate,
    "thaw": _check_candidate,
    "withdraw": _check_withdrawal,
    "role": _check_role,
    "model": _check_model,
}
