"""A copy of a run as it was at one moment: its records, its users' words, its texts and LangGraph's history of it up to
there. What every table of a run holds is dated, so that whatever came later can be left out."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foundry.graph.run.database import Database
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import MIXED, ORIGIN, Origin, RunDirectory, fresh_folder
from foundry.knowledge.codec import encode
from foundry.knowledge.errors import UsageError
from foundry.tools.words import to_paste

COPIED = ("format", "task", "task_name", "device", "device_key", "target", "present", "brain", MIXED)
DATED = {
    "journal": "at",
    "claims": "at",
    "trials": "at",
    "tried": "at",
    "evaluations": "at",
    "decisions": "at",
    "calls": "at",
    "events": "started",
    "sessions": "started",
}
# Measurements of a text are valid in every run: a fork that proposes the same text does not measure it again. Proofs
# are left out, because a winner is proven in the run that exports it.
OF_A_TEXT = (
    "kind = 'measure' AND (key GLOB 'build/*' OR key GLOB 'tune/*' OR key GLOB '*/screen/*' OR key GLOB '*/full/*')"
)
_GREGORIAN_100NS = 0x01B21DD213814000  # 100 ns ticks from 1582, where time-ordered UUIDs begin, to 1970


@dataclass(frozen=True)
class Moment:
    """The moment before a step began; `step` is "" for the end of the search, or for now."""

    step: str
    at: float  # seconds since the epoch


def find_moment(run: RunDirectory, step: str) -> Moment:
    """Before a step (`i0g4`), a node of the root graph (`decide`, `decide2`) or the step that made a candidate (`c17`).
    Raises UsageError for what the run has not reached."""
    if not step:
        return _before_the_end(run)
    name = step
    if re.fullmatch(r"c\d+", step):
        decision = run.decision(step)
        name = decision.step if decision else step
        name = "seed" if name.startswith("seed") else name
    found = re.fullmatch(r"([a-z]+)(\d*)", name)
    place, number = (found[1], int(found[2] or 1)) if found else (name, 1)
    rows = run.database.run(
        "SELECT started FROM events WHERE kind = 'node' AND parent IS NULL AND step = ? ORDER BY id", (place,)
    )
    if len(rows) >= number:
        return Moment(step, float(rows[number - 1][0]))
    rows = run.database.run("SELECT MIN(started) FROM events WHERE kind = 'node' AND step = ?", (name,))
    if rows[0][0] is None:
        trace = to_paste("foundry", "agent", "trace", run.id)
        raise UsageError(
            f"run {run.id} has no step {step}",
            f"name one that `{trace}` shows (i0g4), a candidate (c17), or a node (seed, decide)",
        )
    return Moment(step, float(rows[0][0]))


def _before_the_end(run: RunDirectory) -> Moment:
    """Before anything of the search saw a reason to stop: the budget, a user's word, a result that is good enough; else
    before the islands' reports were judged; a search that goes on is cut now."""
    said = "SELECT MIN(e.started) FROM events e JOIN journal j ON j.key = e.step || '/outside'"
    rows = run.database.run(f"{said} WHERE e.name = 'select' AND json_extract(j.value, '$.stop') IS NOT NULL")
    if rows[0][0] is not None:
        posted = run.inbox.posted()
        ordered = [posted[item.id] for item in run.inbox.read() if item.verb == "stop" and item.island is None]
        return Moment("", min([float(rows[0][0]), *ordered[-1:]]))
    rows = run.database.run("SELECT MAX(started) FROM events WHERE kind = 'node' AND step = 'decide'")
    return Moment("", float(rows[0][0]) if rows[0][0] is not None else time.time())


@contextlib.contextmanager
def copied(source: RunDirectory, moment: Moment, request: SolveRequest) -> Iterator[RunDirectory]:
    """A new run beside the source that knows what the source knew at that moment. It is there, under its own name, once
    all inside is done; when that raises, or is killed, there is none."""
    path = fresh_folder(source.path.parent, Path(request.task).stem)
    hidden = path.with_name(f".{path.name}")
    hidden.mkdir()
    try:
        run = _copy(source, moment, hidden)
        try:
            run.set("request", encode(replace(request, runs=str(source.path.parent))))
            if (source.path / "checkpoints.sqlite").exists():
                _copy_history(source, hidden, path.name, moment.at)
            yield run
        finally:
            run.close()
        hidden.rename(path)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        path.rmdir()
        raise


def _copy(source: RunDirectory, moment: Moment, folder: Path) -> RunDirectory:
    """Copies a run's databases and texts into a folder and cuts them at a moment; the new run is marked as its fork."""
    source.database.copy_to(folder / "run.sqlite")
    source.inbox.copy_to(folder / "inbox.sqlite")
    (folder / "blobs").mkdir()
    for blob in source.blobs.iterdir():
        _share(blob, folder / "blobs" / blob.name)
    run = RunDirectory(folder)
    _cut_tables(run.database, moment.at)
    run.inbox.forget_after(moment.at)
    facts = {key: run.get(key) for key in COPIED if run.get(key)}
    run.database.run("DELETE FROM meta")
    for key, value in facts.items():
        run.set(key, value)
    run.set("created", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    run.set("status", "interrupted")
    run.set(ORIGIN, encode(Origin(source.id, str(source.path), moment.step, moment.at)))
    return run


def _share(blob: Path, to: Path) -> None:
    """Texts are never changed, so that two runs may hold the same file."""
    try:
        os.link(blob, to)
    except OSError:  # another file system, or one without links
        shutil.copyfile(blob, to)


def _cut_tables(database: Database, at: float) -> None:
    """Forgets what is dated at this moment or later; a span that was open then is left open, as in a killed run."""
    for table, column in DATED.items():
        kept = f" AND NOT ({OF_A_TEXT})" if table == "journal" else ""
        database.run(f"DELETE FROM {table} WHERE {column} >= ?{kept}", (at,))
    database.run("UPDATE events SET ended = NULL, data = '{}' WHERE ended >= ?", (at,))
    database.run("UPDATE sessions SET seen = MIN(seen, ?)", (at,))
    for table in ("claims", "tried"):  # the next candidate has the next number
        newest = f"SELECT COALESCE(MAX(seq), 0) FROM {table}"
        database.run(f"UPDATE sqlite_sequence SET seq = ({newest}) WHERE name = ?", (table,))


def _copy_history(source: RunDirectory, folder: Path, thread: str, at: float) -> None:
    """Copies LangGraph's checkpoints up to a moment, under the new run's thread; their ids are ordered by time.

    Deletes what nodes in flight had written: they are executed again from the journal. An island that had ended stays
    ended: its task belongs to the last checkpoint of the root graph.
    """
    original = Database(source.path / "checkpoints.sqlite", reading=True)
    original.copy_to(folder / "checkpoints.sqlite")
    original.close()
    database = Database(folder / "checkpoints.sqlite")
    first = _first_id(at)
    latest = (
        "SELECT checkpoint_ns, MAX(checkpoint_id) FROM checkpoints WHERE checkpoint_id < :first GROUP BY checkpoint_ns"
    )
    islands = "SELECT SUBSTR(checkpoint_ns, 8) FROM checkpoints WHERE checkpoint_ns LIKE 'island:%'"
    at_work = f"{islands} AND checkpoint_id >= :first"
    values: Any = {"first": first, "thread": thread}
    try:
        database.run(
            f"DELETE FROM writes WHERE (checkpoint_ns, checkpoint_id) IN ({latest}) AND NOT"
            f" (checkpoint_ns = '' AND task_id IN ({islands}) AND task_id NOT IN ({at_work}))",
            values,
        )
        for table in ("checkpoints", "writes"):
            database.run(f"DELETE FROM {table} WHERE checkpoint_id >= :first", values)
            database.run(f"UPDATE {table} SET thread_id = :thread", values)
    finally:
        database.close()


def _first_id(at: float) -> str:
    """The first digits of the id of a checkpoint at `at` seconds since the epoch: a UUID 6 begins with its time."""
    ticks = int(at * 1e7) + _GREGORIAN_100NS
    high = f"{ticks >> 12:012x}"
    return f"{high[:8]}-{high[8:]}-6{ticks & 0xFFF:03x}"
