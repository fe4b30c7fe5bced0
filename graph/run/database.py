"""SQLite as a run uses it: write-ahead log, several processes, one clear line when the file or the disk fails."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundry.knowledge.errors import FoundryError, UsageError

BUSY_MS = 30_000  # how long a writer waits for another process before it gives up


class StorageFailed(FoundryError):
    """The run directory can no longer be written; what was recorded before stays valid and can be resumed."""

    exit_code = 1


class Database:
    """One connection shared by the threads of this process; every statement is its own transaction."""

    def __init__(self, path: Path, schema: str = "", *, what: str = "run", reading: bool = False) -> None:
        """Opens or creates `path` and applies `schema` (idempotent statements); `reading` opens an existing file
        read-only.

        Raises UsageError if the file is not a database or the folder is missing, StorageFailed if it cannot be written.
        """
        self.path = path
        self._what = what
        self._lock = threading.RLock()
        try:
            place = f"{path.absolute().as_uri()}?mode={'ro' if reading else 'rwc'}"
            self._connection = sqlite3.connect(place, timeout=BUSY_MS / 1000, check_same_thread=False, uri=True)
            self._connection.isolation_level = None  # autocommit: transactions are explicit
            self._connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            if reading:
                return
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # safe against kill -9, which is what we promise
            if schema:
                self._connection.executescript(schema)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def run(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Executes one statement and returns its rows."""
        with self._lock:
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._failure(error) from error

    def insert(self, statement: str, values: Sequence[Any]) -> int:
        """Executes one INSERT; the new row's id, or 0 when it was ignored."""
        with self._lock:
            try:
                cursor = self._connection.execute(statement, values)
                return int(cursor.lastrowid or 0) if cursor.rowcount > 0 else 0
            except sqlite3.Error as error:
                raise self._failure(error) from error

    def run_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Executes one statement for every row in one transaction: all or none."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(statement, rows)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise self._failure(error) from error

    def copy_to(self, path: Path) -> None:
        """Copies the whole database to a new file; other processes may write meanwhile."""
        with self._lock, contextlib.closing(sqlite3.connect(path)) as copy:
            try:
                self._connection.backup(copy)
            except sqlite3.Error as error:
                raise self._failure(error) from error

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._connection.close()

    def _failure(self, error: sqlite3.Error) -> FoundryError:
        """The error for the user in place of SQLite's."""
        return storage_failure(error, self.path, self._what)


def storage_failure(error: Exception, path: Path, what: str = "run") -> FoundryError:
    """The error of one line that a user reads when SQLite or the file system refuses, with what to do."""
    text = str(error).lower()
    if isinstance(error, OSError) and error.strerror:
        return StorageFailed(f"cannot write {path}: {error.strerror}", "free or unlock it, then resume the run")
    if "full" in text:
        return StorageFailed(f"the disk that holds {path.parent} is full", "free space, then resume the run")
    if "readonly" in text or "read-only" in text or "i/o error" in text:
        return StorageFailed(f"{path} cannot be written: {error}", "make it writable, then resume the run")
    if "unable to open" in text:
        return UsageError(f"{path} cannot be opened", "name an existing folder that you may write to")
    if "not a database" in text or "malformed" in text or "no such table" in text or "no such column" in text:
        return UsageError(f"the {what} file {path} is corrupt: {error}", "start a new run")
    return StorageFailed(f"{path}: {error}", "resume the run")
