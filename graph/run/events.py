"""Event and span log of a run: what happened, when, inside what. The trace, the chat and replay read it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from foundry.graph.run.database import Database

EventKind = Literal["node", "expert", "call", "tool", "proposal", "evaluation", "directive", "retrieval", "note"]
ToolCategory = Literal["compile", "run", "time", "profile"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, island INTEGER, step TEXT NOT NULL,
    parent INTEGER, session INTEGER NOT NULL, started REAL NOT NULL, ended REAL, data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS events_by_step ON events (step);
CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind);
CREATE TABLE IF NOT EXISTS sessions (id INTEGER PRIMARY KEY, started REAL NOT NULL, seen REAL NOT NULL);
"""
VERSION = "2"  # version of the table and of each kind's `data`, as docs/trace.md documents them
DEVICE_LOCK = "device lock"  # the note that says how it was used
NO_SESSION = 0  # session of events from a process that does not work on the run: a user's questions
COLUMNS = "id, kind, name, island, step, parent, started, ended, data"
# What tools and experts took, by kind and category; `covered` is the wall during which one of them was at work: what a
# span adds beyond the end of all that began before it. Python's JSON may hold infinities, which SQLite's does not.
WORK = """
WITH work AS (
    SELECT kind, started, ended, CASE WHEN json_valid(data) THEN data ELSE '{}' END AS said,
        MAX(ended) OVER (ORDER BY started, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM events WHERE kind IN ('tool', 'expert') AND ended IS NOT NULL)
SELECT kind, COALESCE(json_extract(said, '$.category'), 'run'), SUM(ended - started),
    SUM(COALESCE(json_extract(said, '$.wait_s'), 0.0)),
    SUM(MAX(0.0, ended - MAX(started, COALESCE(before, started)))) AS covered
FROM work GROUP BY 1, 2
"""


@dataclass(frozen=True)
class Event:
    """A moment (`ended` equals `started`) or a span. `island` None is the run itself; times are seconds since the
    epoch.

    `ended` is None while a span is open, and for ever if the run was killed in it.
    """

    id: int
    kind: EventKind
    name: str
    island: int | None
    step: str
    parent: int | None
    started: float
    ended: float | None
    data: dict[str, Any]

    @property
    def seconds(self) -> float | None:
        """Seconds from start to end; None if it has not ended."""
        return None if self.ended is None else self.ended - self.started


@dataclass
class Place:
    """The island, step and span in which the code at hand runs; spans opened there inherit it."""

    island: int | None = None
    step: str = ""
    span: int | None = None


@dataclass
class Span:
    """An open span; what is put into `data` before it closes is recorded with it."""

    id: int
    data: dict[str, Any] = field(default_factory=dict)


_PLACE: ContextVar[Place] = ContextVar("foundry_place")
_STREAM: ContextVar[Callable[[dict[str, Any]], None] | None] = ContextVar("foundry_stream", default=None)


@contextlib.contextmanager
def streaming(write: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """A context manager in which every event of any log also goes to `write`: LangGraph's stream, mode "custom"."""
    token = _STREAM.set(write)
    try:
        yield
    finally:
        _STREAM.reset(token)


def _ignore(_event: Event) -> None:
    """The default listener: ignores every event."""


@dataclass(frozen=True)
class TimeSplit:
    """The wall time of a run by category, in seconds. Spans of islands overlap, so the categories may exceed the wall.

    `waiting_s` is time spent on locks, `thinking_s` what experts took to answer. `overhead_s` is the wall during which
    neither a tool nor an expert was at work. `alone_s`: the device was held alone, to time something; during `device_s`
    of it our work ran on the GPU.
    """

    wall_s: float
    compile_s: float
    run_s: float
    time_s: float
    profile_s: float
    waiting_s: float
    thinking_s: float
    overhead_s: float
    alone_s: float = 0.0
    device_s: float = 0.0

    @property
    def overhead_share(self) -> float:
        """The part of the wall time that is overhead, 0 to 1."""
        return self.overhead_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def idle_share(self) -> float:
        """The part of the wall time in which the GPU was held alone and did nothing, 0 to 1."""
        return max(0.0, self.alone_s - self.device_s) / self.wall_s if self.wall_s > 0 and self.device_s else 0.0


class EventLog:
    """Appends to the run's database and tells one listener. Each process that works on the run is a session."""

    def __init__(
        self,
        database: Database,
        on_event: Callable[[Event], None] = _ignore,
        *,
        reading: bool = False,
        began: float | None = None,
    ) -> None:
        """Begins a session in the database, unless `reading`. `began`: the session's start in seconds since the
        epoch."""
        self._database = database
        self._listener = on_event
        self.session = NO_SESSION
        self._started = began or time.time()
        self._earlier_s: float | None = None
        if not reading:
            self.session = database.insert(
                "INSERT INTO sessions (started, seen) VALUES (?, ?)", (self._started, time.time())
            )

    def _tell(self, event: Event) -> None:
        """Passes an event to the listener and to LangGraph's stream, if there is one."""
        self._listener(event)
        if (write := _STREAM.get()) is not None:
            write(dict(vars(event)))

    @contextlib.contextmanager
    def at(self, island: int | None, step: str) -> Iterator[None]:
        """A context manager in which events belong to this island and step."""
        token = _PLACE.set(Place(island, step, None))
        try:
            yield
        finally:
            _PLACE.reset(token)

    @contextlib.contextmanager
    def span(self, kind: EventKind, name: str, **data: Any) -> Iterator[Span]:
        """A context manager that records a timed span; facts put into its `data` are recorded when it ends, with any
        error.

        Its row exists from the first moment, so that a killed run shows what was open.
        """
        place = _PLACE.get(Place())
        started = time.time()
        number = self._append(kind, name, place, started, ended=None, data=data)
        token = _PLACE.set(Place(place.island, place.step, number))
        span = Span(number, dict(data))
        try:
            yield span
        except BaseException as error:
            if type(error).__name__ == "GraphInterrupt":  # LangGraph's: a question to a person, no failure
                span.data["asks"] = True
            else:
                span.data["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            _PLACE.reset(token)
            ended = time.time()
            if "busy_s" in span.data:  # the tool's own clock: the rest of the span was spent waiting for a lock
                span.data["wait_s"] = max(0.0, ended - started - float(span.data["busy_s"]))
            self._database.run(
                "UPDATE events SET ended = ?, data = ? WHERE id = ?", (ended, json.dumps(span.data), number)
            )
            row = (number, kind, name, place.island, place.step, place.span, started, ended, span.data)
            self._tell(Event(*row))

    def note(self, kind: EventKind, name: str, **data: Any) -> int:
        """Records a moment; returns its id."""
        now = time.time()
        return self._append(kind, name, _PLACE.get(Place()), now, ended=now, data=data)

    def note_once(self, kind: EventKind, name: str, **data: Any) -> int:
        """Records a moment once a step, however often a killed run executes the step; returns its id, 0 if it was
        there."""
        step = _PLACE.get(Place()).step
        known = self._database.run(
            "SELECT 1 FROM events WHERE kind = ? AND name = ? AND step = ? LIMIT 1", (kind, name, step)
        )
        return 0 if known else self.note(kind, name, **data)

    def ids_taken_at(self, step: str) -> frozenset[str]:
        """Ids of the directives that a step has recorded as taken."""
        rows = self._database.run("SELECT data FROM events WHERE step = ? AND kind = 'directive'", (step,))
        return frozenset(str(json.loads(data)["directive"]) for (data,) in rows)

    def mark_alive(self) -> None:
        """Records a sign of life of this session; the time between sessions does not count as run time."""
        self._database.run("UPDATE sessions SET seen = ? WHERE id = ?", (time.time(), self.session))

    def elapsed_s(self) -> float:
        """Seconds all sessions worked, the current one up to now; a killed one up to its last sign of life."""
        if not self.session:
            return self.worked_s()
        if self._earlier_s is None:
            self._earlier_s = self.worked_s(but=self.session)
        return self._earlier_s + time.time() - self._started

    def last_session(self) -> tuple[int, float, float]:
        """(id, start, last sign of life) of the latest session in seconds since the epoch; zeros if there is none."""
        rows = self._database.run("SELECT id, started, seen FROM sessions ORDER BY id DESC LIMIT 1")
        return rows[0] if rows else (NO_SESSION, 0.0, 0.0)

    def worked_s(self, *, but: int = NO_SESSION) -> float:
        """Seconds of the sessions other than `but`, each up to its last sign of life."""
        rows = self._database.run(
            "SELECT started, MAX(seen, COALESCE((SELECT MAX(COALESCE(ended, started)) FROM events"
            " WHERE session = sessions.id), 0)) FROM sessions WHERE id != ?",
            (but,),
        )
        return float(sum(last - started for started, last in rows))

    def began(self) -> float:
        """When the first session started, in seconds since the epoch."""
        return float(self._database.run("SELECT COALESCE(MIN(started), 0) FROM sessions")[0][0])

    def read(self, *kinds: EventKind, after: int = 0, session: int | None = None) -> list[Event]:
        """Events in the order they began, of some kinds or one session if asked for."""
        where = ["id > ?"]
        values: list[Any] = [after, *kinds]
        where += [f"kind IN ({', '.join('?' * len(kinds))})"] if kinds else []
        where += [] if session is None else ["session = ?"]
        values += [] if session is None else [session]
        rows = self._database.run(f"SELECT {COLUMNS} FROM events WHERE {' AND '.join(where)} ORDER BY id", values)
        return [_event(row) for row in rows]

    def read_notes(self, name: str) -> list[Event]:
        """The notes of this name, in the order they were made."""
        asked = f"SELECT {COLUMNS} FROM events WHERE kind = 'note' AND name = ? ORDER BY id"
        return [_event(row) for row in self._database.run(asked, (name,))]

    def steps(self) -> dict[int, list[str]]:
        """The steps of each island, in the order they began."""
        found: dict[int, list[str]] = {}
        asked = "SELECT island, step FROM events WHERE parent IS NULL AND island >= 0 GROUP BY island, step"
        for island, step in self._database.run(f"{asked} ORDER BY MIN(id)"):
            found.setdefault(island, []).append(step)
        return found

    def read_steps(self, steps: Iterable[str]) -> list[Event]:
        """The events of these islands' steps and those outside of all islands, in the order they began."""
        wanted = "SELECT value FROM json_each(?)"
        outside = "SELECT id FROM events WHERE island IS NULL OR island < 0"
        rows = self._database.run(
            f"SELECT {COLUMNS} FROM events WHERE id IN ({outside}) OR step IN ({wanted}) ORDER BY id",
            (json.dumps(list(steps)),),
        )
        return [_event(row) for row in rows]

    def split_time(self, wall_s: float) -> TimeSplit:
        """The wall time by category, from the closed spans of tools and experts. Overhead is the wall minus the union
        of all spans."""
        sums = {"compile": 0.0, "run": 0.0, "time": 0.0, "profile": 0.0}
        waiting = thinking = covered = 0.0
        for kind, category, length, waited, added in self._database.run(WORK):
            covered += added
            if kind == "expert":
                thinking += length
            else:
                sums[category] += length - waited
                waiting += waited
        held = [event.data for event in self.read("note") if event.name == DEVICE_LOCK]
        alone, device = (sum(float(data[name]) for data in held) for name in ("alone_s", "device_s"))
        parts = (sums["compile"], sums["run"], sums["time"], sums["profile"], waiting, thinking)
        return TimeSplit(wall_s, *parts, max(0.0, wall_s - covered), alone, device)

    def find(self, ids: Iterable[int]) -> list[Event]:
        """These events as they stand now, in the order they began."""
        wanted = sorted(ids)
        marks = ", ".join("?" * len(wanted))
        rows = self._database.run(f"SELECT {COLUMNS} FROM events WHERE id IN ({marks}) ORDER BY id", wanted)
        return [_event(row) for row in rows]

    def _append(
        self, kind: EventKind, name: str, place: Place, started: float, ended: float | None, data: dict[str, Any]
    ) -> int:
        """Writes an event to the database, passes it on, and returns its id."""
        number = self._database.insert(
            "INSERT INTO events (kind, name, island, step, parent, session, started, ended, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (kind, name, place.island, place.step, place.span, self.session, started, ended, json.dumps(data)),
        )
        row = (number, kind, name, place.island, place.step, place.span, started, ended, data)
        self._tell(Event(*row))
        return number


def _event(row: tuple[Any, ...]) -> Event:
    """A row of the table as an Event."""
    values = (*row[:-1], json.loads(row[-1]))  # `data` is the last column
    return Event(*values)
