"""Selects the events of a trace that a user asks for, and prints an event as one line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from foundry.graph.run.events import Event, EventKind
from foundry.graph.run.run_directory import RunDirectory

KINDS: tuple[EventKind, ...] = (
    "node",
    "expert",
    "call",
    "tool",
    "proposal",
    "evaluation",
    "directive",
    "retrieval",
    "note",
)
FACTS = (
    *("outcome", "speedup", "purpose", "model", "candidate", "parent", "moves", "found", "detail", "directive", "text"),
    *(
        "reader",
        "reason",
        "answer",
        "judgement",
        "error",
        "problem",
        "evidence",
        "proposal",
        "cites",
        "tokens",
        "dollars",
    ),
)
FACT_CHARS = 120
GOOD_CALLS = ("answered", "repaired")
IS_BLOB = 64  # characters of a sha256: a text of the run's folder, which is no fact for a line


@dataclass(frozen=True)
class Selection:
    """The user's filters of a trace; an empty field filters nothing. `slowest` and `costliest` are counts of events."""

    experts: tuple[str, ...] = ()
    islands: tuple[int, ...] = ()
    candidate: str = ""
    kinds: tuple[EventKind, ...] = ()
    failures: bool = False
    slowest: int = 0
    costliest: int = 0

    def __bool__(self) -> bool:
        """True if any filter is set."""
        return any(getattr(self, one.name) for one in fields(self))

    def of_run(self, run: RunDirectory) -> EventFilter:
        """The filter for a run's events. Raises UsageError for a candidate that the run does not know."""
        if not self.candidate:
            return EventFilter(self, "")
        decision = run.decision(self.candidate)
        return EventFilter(self, decision.step if decision else _step_of(run, self.candidate))


def _step_of(run: RunDirectory, candidate: str) -> str:
    """The step at which a candidate was first measured. Raises UsageError."""
    run.evaluation(candidate)
    rows = run.database.run("SELECT step FROM evaluations WHERE candidate = ? ORDER BY at LIMIT 1", (candidate,))
    return str(rows[0][0])


@dataclass(frozen=True)
class EventFilter:
    """A selection with the step of its candidate."""

    wanted: Selection
    step: str

    def takes(self, event: Event) -> bool:
        """True if an event passes all filters that need no other event."""
        wanted, data = self.wanted, event.data
        if wanted.kinds and event.kind not in wanted.kinds:
            return False
        if wanted.islands and event.island not in wanted.islands:
            return False
        if wanted.experts and event.name not in wanted.experts and data.get("expert") not in wanted.experts:
            return False
        if wanted.candidate and event.step != self.step and wanted.candidate not in (event.name, data.get("candidate")):
            return False
        return bool(problem_of(event)) if wanted.failures else True

    def select(self, events: Iterable[Event]) -> list[Event]:
        """The events asked for, in their order; the slowest and the costliest first."""
        wanted, found = self.wanted, [event for event in events if self.takes(event)]
        if wanted.slowest:
            # a node is as slow as the tools and experts in it
            spans = [event for event in found if wanted.kinds or event.kind != "node"]
            return sorted(spans, key=lambda event: -(event.seconds or 0.0))[: wanted.slowest]
        if wanted.costliest:
            calls = [event for event in found if event.data.get("tokens")]
            return sorted(calls, key=cost_of, reverse=True)[: wanted.costliest]
        return found


def cost_of(event: Event) -> tuple[float, int]:
    """(dollars, tokens) of an event; dollars are 0.0 if the price is unknown."""
    return float(event.data.get("dollars", 0.0)), int(event.data.get("tokens", 0))


def problem_of(event: Event) -> str:
    """The problem of an event in a few words; "" if it has none."""
    data = event.data
    if data.get("error"):
        return str(data["error"])
    if event.kind == "evaluation" and data.get("outcome") != "correct":
        return f"{data.get('outcome')}: {data.get('evidence', '')}"
    if event.kind == "expert" and "requests" in data and data["outcome"] not in GOOD_CALLS:
        return f"{data['outcome']}: {data.get('detail', '')}"
    if event.kind == "tool" and data.get("outcome", "correct") != "correct":
        return f"{data['outcome']}: {data.get('evidence', '')}"
    if event.kind == "tool" and (data.get("problem") or data.get("failed")):
        return str(data.get("problem") or f"vetoed by {', '.join(data['failed'])}")
    if event.kind == "note" and event.name in ("island failed", "proposal failed", "model unavailable", "cannot lower"):
        return str(data.get("reason") or data.get("text") or "failed")
    return ""


def line_of(event: Event, began: float) -> str:
    """One line about an event: start after `began`, step, duration ("open" if it has not ended, none for a moment),
    kind, name, facts. For instance `  12.3 s  i2g5   0.41 s  tool build  error=...`.
    """
    seconds = event.seconds
    length = "open" if seconds is None else f"{seconds:.2f} s" if seconds > 0 else ""
    where = f"{event.started - began:8.1f} s  {event.step or '-':<10} {length:>9}"
    return harmless(f"{where}  {event.kind} {event.name}  {facts_of(event)}".rstrip())


def facts_of(event: Event) -> str:
    """`outcome=correct speedup=1.75 ...`: what an event says, cut to a line."""
    return " ".join(f"{name}={_short(event.data[name])}" for name in FACTS if _tells(event.data.get(name)))


def harmless(line: str) -> str:
    """A line whose spaces stay and whose other characters cannot steer a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line.expandtabs(4))


def _tells(value: Any) -> bool:
    """False for empty values, 0, and texts as long as the hash of a blob; True for all others."""
    return value not in (None, "", [], 0, 0.0) and not (isinstance(value, str) and len(value) == IS_BLOB)


def _short(value: Any) -> str:
    """A fact's value as text on one line, at most FACT_CHARS long."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(text.split())
    return text if len(text) <= FACT_CHARS else text[: FACT_CHARS - 3] + "..."
