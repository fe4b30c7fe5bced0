"""The append-only SQLite journal: the truth of the experience store. Forgetting is a row too."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.errors import FoundryError, UsageError
from foundry.knowledge.experience.record import ExperienceRecord

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, created TEXT NOT NULL,
  graph_signature TEXT NOT NULL, device TEXT NOT NULL, target TEXT NOT NULL, move TEXT NOT NULL,
  is_run_best INTEGER NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_graph ON records (graph_signature, target);
CREATE TABLE IF NOT EXISTS forgotten (id TEXT PRIMARY KEY, forgotten TEXT NOT NULL, reason TEXT NOT NULL);
"""


class Journal:
    """Rows of `ExperienceRecord` in one SQLite file; safe for threads and for several processes (WAL)."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file; raises UsageError when it is corrupt or cannot be written."""
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=30.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            if self._db.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("integrity check failed")
            self._db.executescript(_SCHEMA)
        except OSError as error:
            raise UsageError(f"the experience store {path.parent} cannot be written: {error.strerror}") from error
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"the experience store {path} is damaged: {error}",
                "move that file away, or name another store with --store; runs keep their own evidence",
            ) from error

    def append(self, records: Iterable[ExperienceRecord]) -> int:
        """Adds the records whose ids are new, all or none; returns how many were. Raises FoundryError when the disk
        refuses."""
        rows = [
            (
                record.id,
                record.created,
                record.graph_signature,
                record.device,
                record.target,
                record.move,
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
                        " (id, created, graph_signature, device, target, move, is_run_best, body)"
                        " VALUES (?,?,?,?,?,?,?,?)",
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

    def newest(self, limit: int) -> list[tuple[int, ExperienceRecord]]:
        return self._select("1 ORDER BY seq DESC LIMIT ?", [limit])

    def by_prefix(self, prefix: str) -> list[tuple[int, ExperienceRecord]]:
        return self._select("id >= ? AND id < ? ORDER BY seq", [prefix, prefix + "\uffff"])

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
        with self._lock:
            return {row[0] for row in self._db.execute("SELECT id FROM forgotten")}

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _select(self, where: str, values: list[str | int]) -> list[tuple[int, ExperienceRecord]]:
        query = f"SELECT seq, body FROM records WHERE id NOT IN (SELECT id FROM forgotten) AND {where}"
        with self._lock:
            try:
                rows = self._db.execute(query, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise UsageError(f"the experience store {self.path} is damaged: {error}") from error
        return [(seq, decode(ExperienceRecord, body)) for seq, body in rows]
