"""Decides whether the search goes on once its islands have ended."""

from __future__ import annotations

from foundry.graph.run.run_directory import FURTHER
from foundry.graph.run.services import Services
from foundry.graph.search.asking import ask_for_budget
from foundry.graph.search.orders import added_islands
from foundry.graph.search.state import RunState, Stop, Update
from foundry.graph.search.stops import find_ordered_stop


async def decide(state: RunState, services: Services) -> Update:
    """When the islands are back: another round with other roles, or the end of the search."""
    reports = state.get("islands", {})
    if any(report["stop"] and report["stop"]["kind"] == "regroup" for report in reports.values()):
        return _regroup(state, services)
    stops = {number: stop for number, report in sorted(reports.items()) if (stop := report["stop"])}
    reasons = {number: stop["text"] for number, stop in stops.items()}
    round_ = state.get("round", 0) + 1
    again = services.journal.plain(f"decide{round_}", "outside", lambda: _again(services, round_, list(stops.values())))
    again = again or ask_for_budget(services, round_, list(stops.values()))
    services.log.note_once("note", f"round {round_} ends", reasons=reasons, again=again)
    if again:
        return {"round": round_, "ending": ""}
    return {"round": round_, "ending": _ending(list(reasons.values()))}


def _regroup(state: RunState, services: Services) -> Update:
    """The same round goes on, with the islands that users have added, unless the search is to end by now."""
    key = f"regroup{len(state.get('added', []))}"
    stop: Stop | None = services.journal.plain(f"{key}/stop", "outside", lambda: find_ordered_stop(services))
    added = services.journal.plain(key, "outside", lambda: added_islands(services.directives()))
    services.log.note_once("note", "regroup", added=len(added), reason=stop["text"] if stop else "")
    return {"added": added, "ending": stop["text"] if stop else ""}


def _again(services: Services, round_: int, stops: list[Stop]) -> bool:
    stuck = all(stop["kind"] in ("error", "exhausted") for stop in stops)
    rounds = services.effort.rounds + int(services.run.get(FURTHER, "0"))
    return find_ordered_stop(services) is None and not stuck and round_ < rounds


def _ending(reasons: list[str]) -> str:
    """The islands' reasons in one line, the same one once."""
    return "; ".join(dict.fromkeys(reasons)) or "the islands returned"
