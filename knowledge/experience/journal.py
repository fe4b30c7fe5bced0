"""The append-only SQLite journal, from which the rest of the experience store can be rebuilt. Forgetting is a row
too."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.errors import FoundryError, UsageError
from foundry.knowledge.experience.credit import MOST_DEVIATION, MeasuredStep
from foundry.knowledge.experience.record import ExperienceRecord

VERSION = 3  # version of the tables and of a record's meaning; data of an older version is set aside, not read
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS records ("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, created TEXT NOT NULL,"
    " graph_signature TEXT NOT NULL, shape_class TEXT NOT NULL, device TEXT NOT NULL, target TEXT NOT NULL,"
    " limiter TEXT NOT NULL, move TEXT NOT NULL, step TEXT NOT NULL, op_kinds TEXT NOT NULL, together TEXT NOT NULL,"
    " log_lift REAL, log_deviation REAL NOT NULL, is_run_best INTEGER NOT NULL, body TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS by_graph ON records (graph_signature, target)",
    "CREATE INDEX IF NOT EXISTS measured ON records (target, seq) WHERE log_lift IS NOT NULL",
    "CREATE TABLE IF NOT EXISTS forgotten (id TEXT PRIMARY KEY, forgotten TEXT NOT NULL, reason TEXT NOT NULL)",
)
_LIVE = "id NOT IN (SELECT id FROM forgotten)"


class LessonJournal:
    """Rows of `ExperienceRecord` in one SQLite file; safe for threads and for several processes (WAL)."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file; raises UsageError if it is corrupt or cannot be written."""
        self.path = path
        self.note = ""  # a remark for the user about the opening
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            if self._db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("integrity check failed")
            self._create()
        except OSError as error:
            raise UsageError(f"the experience store {path.parent} cannot be written: {error.strerror}") from error
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"the experience store {path} is damaged: {error}",
                "move that file away, or name another store with --store; runs keep their own evidence",
            ) from error

    def _create(self) -> None:
        """Makes the tables, and sets those of an older version aside. Raises UsageError for tables of a newer
        version."""
        if self._version() == VERSION:
            return
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            version = self._version()
            if version > VERSION:
                raise UsageError(f"the experience store {self.path} was written by a newer foundry", "update this one")
            if version < VERSION and self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone():
                count = int(self._db.execute("SELECT COUNT(*) FROM records").fetchone()[0])
                aside = f"records_before_{VERSION}"
                self._db.execute(f"ALTER TABLE records RENAME TO {aside}")
                self._db.execute("DROP INDEX IF EXISTS by_graph")
                self._db.execute("DROP INDEX IF EXISTS measured")
                self.note = f"{count} lessons that an older foundry left in {self.path} are set aside (table {aside})"
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def _version(self) -> int:
        """Version of the database's schema, as SQLite keeps it."""
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def append(self, records: Iterable[ExperienceRecord]) -> int:
        """Adds the records whose ids are new, all or none; returns their number. Raises FoundryError if the disk
        refuses."""
        rows = [
            (
                record.id,
                record.created,
                record.graph_signature,
                record.shape_class,
                record.device,
                record.target,
                record.limiter,
                record.move,
                f"{record.run} {record.step}",
                json.dumps(record.op_kinds),
                json.dumps(record.together),
                record.log_lift,
                min(record.log_deviation, MOST_DEVIATION),
                int(record.is_run_best),
                encode(record),
            )
            for record in records
        ]
        with self._lock:
            try:
                with self._db:
                    before = self._db.total_changes
                    self._db.executemany(
                        "INSERT OR IGNORE INTO records"
                        " (id, created, graph_signature, shape_class, device, target, limiter, move, step, op_kinds,"
                        " together, log_lift, log_deviation, is_run_best, body) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                        rows,
                    )
                    return self._db.total_changes - before
            except sqlite3.Error as error:
                raise FoundryError(f"the experience store {self.path} cannot be written: {error}") from error

    def after(self, seq: int) -> list[tuple[int, ExperienceRecord]]:
        """Live records appended after `seq`, oldest first."""
        return self._select("seq > ? ORDER BY seq", [seq])

    def exact(self, graph_signature: str, target: str) -> list[tuple[int, ExperienceRecord]]:
        """Live records of one graph structure on one kind of target, newest first."""
        return self._select("graph_signature = ? AND target = ? ORDER BY seq DESC", [graph_signature, target])

    def measured(self, target: str, limit: int) -> list[ExperienceRecord]:
        """Live records of one kind of target, the newest first, at most `limit`."""
        return [record for _, record in self._select("target = ? ORDER BY seq DESC LIMIT ?", [target, limit])]

    def configurations(self, target: str, limit: int) -> list[ExperienceRecord]:
        """One live record of each of the newest steps on one kind of target: the configuration that the step made."""
        where = f"target = ? AND seq IN (SELECT MIN(seq) FROM records WHERE {_LIVE} AND target = ? GROUP BY step)"
        return [record for _, record in self._select(f"{where} ORDER BY seq DESC LIMIT ?", [target, target, limit])]

    def steps(self, graph_signature: str, target: str, limit: int) -> list[MeasuredStep]:
        """Measured steps on one kind of target, the newest first: all of one graph, of others those of the newest
        `limit` records.

        If one lesson of a step is forgotten, the step no longer counts for its other moves.
        """
        known = f"{_LIVE} AND target = ? AND log_lift IS NOT NULL"
        rows = self._rows(
            "SELECT step, move, id, graph_signature, shape_class, device, limiter, op_kinds, together, log_lift,"
            f" log_deviation FROM records WHERE {known} AND (graph_signature = ? OR seq >= IFNULL("
            f"(SELECT seq FROM records WHERE {known} ORDER BY seq DESC LIMIT 1 OFFSET ?), 0)) ORDER BY seq DESC",
            [target, graph_signature, target, limit],
        )
        records: dict[str, dict[str, str]] = {}
        facts: dict[str, tuple[Any, ...]] = {}
        for step, move, record_id, *rest in rows:
            records.setdefault(step, {})[move] = record_id
            facts[step] = tuple(rest)
        found = []
        for step, (graph, shapes, device, limiter, op_kinds, together, log_lift, deviation) in facts.items():
            moves = json.loads(together)
            if moves.keys() == records[step].keys():
                kinds = frozenset(json.loads(op_kinds))
                where = (graph, shapes, device, limiter, kinds)
                found.append(MeasuredStep(*where, moves, log_lift, deviation, records[step]))
        return found

    def newest(self, limit: int) -> list[tuple[int, ExperienceRecord]]:
        """(sequence number, record) of the last `limit` records, newest first."""
        return self._select("1 ORDER BY seq DESC LIMIT ?", [limit])

    def by_prefix(self, prefix: str) -> list[tuple[int, ExperienceRecord]]:
        """Live records whose ids start with a prefix."""
        return self._select("id >= ? AND id < ? ORDER BY seq", [prefix, prefix + "\uffff"])

    def by_ids(self, ids: Sequence[str]) -> list[ExperienceRecord]:
        """Live records by their ids."""
        marks = ", ".join("?" for _ in ids)
        return [record for _, record in self._select(f"id IN ({marks}) ORDER BY seq", list(ids))]

    def known_ids(self, ids: Sequence[str]) -> set[str]:
        """The ids, of those given, that the journal holds."""
        marks = ", ".join("?" for _ in ids)
        return {row[0] for row in self._rows(f"SELECT id FROM records WHERE id IN ({marks})", list(ids))}

    def forget(self, ids: Sequence[str], reason: str) -> int:
        """Marks records as forgotten; they are never recalled, listed or exported again."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self._lock, self._db:
            before = self._db.total_changes
            self._db.executemany(
                "INSERT OR IGNORE INTO forgotten (id, forgotten, reason) VALUES (?,?,?)",
                [(record_id, now, reason) for record_id in ids],
            )
            return self._db.total_changes - before

    def forgotten(self) -> set[str]:
        """Ids of the forgotten records."""
        with self._lock:
            return {row[0] for row in self._db.execute("SELECT id FROM forgotten")}

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._db.close()

    def _select(self, where: str, values: list[str | int]) -> list[tuple[int, ExperienceRecord]]:
        """Live records that fulfil an SQL condition, with their sequence numbers."""
        rows = self._rows(f"SELECT seq, body FROM records WHERE {_LIVE} AND {where}", values)
        return [(seq, decode(ExperienceRecord, body)) for seq, body in rows]

    def _rows(self, query: str, values: list[str | int]) -> list[tuple[Any, ...]]:
        """The rows of an SQL query. Raises UsageError if the file is damaged."""
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise UsageError(f"the experience store {self.path} is damaged: {error}") from error
