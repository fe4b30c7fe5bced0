"""Decides whether the search goes on once its islands have ended."""

from __future__ import annotations

from typing import Any

from foundry.graph.run.run_directory import FURTHER
from foundry.graph.run.services import Services
from foundry.graph.search.asking import ask_for_budget
from foundry.graph.search.orders import added_islands
from foundry.graph.search.state import RunState, Stop, Update
from foundry.graph.search.stops import find_ordered_stop


async def decide(state: RunState, services: Services) -> Update:
    """Decides if the islands go on: users have added one, a fork has more budget, or a person grants some.

    `ending` says why the search ends, "" if it goes on.
    """
    stops = {name: island["stop"] for name, island in sorted(state.get("islands", {}).items())}
    number = state.get("decisions", 0) + 1
    key, ended = f"decide{number}", list(stops.values())
    found: dict[str, Any] = services.journal.plain(key, "outside", lambda: _look_around(ended, services))
    services.run.set(FURTHER, "")
    again = found["again"] or ask_for_budget(services, number, ended)
    reasons = {island: stop["text"] for island, stop in stops.items()}
    services.log.note_once("note", f"decision {number}", reasons=reasons, again=again)
    texts = [stop["text"] for stop in ended if stop["kind"] != "joined"]
    told = {text.partition(" (")[0]: text for text in reversed(texts)}  # one reason of several islands is said once
    ending = "" if again else "; ".join(reversed(told.values())) or found["stop"] or "the islands returned"
    return {"decisions": number, "added": found["added"], "ending": ending}


def _look_around(stops: list[Stop], services: Services) -> dict[str, Any]:
    """{"again": True if the search goes on without a question, "stop": why it should end or "", "added": roles of the
    islands that users added}."""
    stop, added = find_ordered_stop(services), added_islands(services.directives())
    is_joined = any(item["kind"] == "joined" for item in stops)
    is_stuck = all(item["kind"] in ("error", "exhausted") for item in stops)
    goes_on = is_joined or (services.run.get(FURTHER) == "yes" and not is_stuck)
    return {"again": stop is None and goes_on, "stop": stop["text"] if stop else "", "added": added}
