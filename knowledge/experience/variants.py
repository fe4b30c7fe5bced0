"""The archive of prompt variants: sections of the experts' prompts that a model has rewritten, and their effect in each
run.

A database of its own beside the lessons. Rows are only added; a reset is a row too.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import FoundryError, UsageError

VERSION = 1  # version of the tables and of their rows' meaning
FILE = "prompts.sqlite"
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS variants ("
    " seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, expert TEXT NOT NULL, target TEXT NOT NULL,"
    " body TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS uses ("
    " run TEXT NOT NULL, expert TEXT NOT NULL, target TEXT NOT NULL, variant TEXT NOT NULL, body TEXT NOT NULL,"
    " PRIMARY KEY (run, expert, variant))",
    "CREATE TABLE IF NOT EXISTS gone (id TEXT PRIMARY KEY, gone TEXT NOT NULL, reason TEXT NOT NULL)",
)


@dataclass(frozen=True)
class PromptVariant:
    """A text of an expert's prompt: the shipped one with `sections` in place of its own.

    `changed` is the rewritten section, `parent` the variant whose other sections it keeps ("" for the shipped text).
    `base` names the shipped file.
    """

    id: str
    expert: str
    target: TargetName
    sections: Mapping[str, str]
    changed: str
    parent: str
    base: str
    model: str
    run: str
    reason: str
    created: str = ""  # ISO time


@dataclass(frozen=True)
class Use:
    """The effect of one prompt text in a run, over the steps of an expert that used it.

    `gains` are logarithms of each child's speedup over its parent's, 0 if it is no faster. `failed` steps gave no
    correct child.
    """

    run: str
    expert: str
    target: TargetName
    variant: str  # "" is the shipped text
    gains: tuple[float, ...]
    failed: int = 0


def variant_id(expert: str, target: str, base: str, sections: Mapping[str, str]) -> str:
    """An id from the text alone, so that a dropped or forgotten text does not come back under another author."""
    said = json.dumps([expert, target, base, sorted(sections.items())])
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def now() -> str:
    """The time in UTC as ISO text, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class VariantArchive:
    """Variants and their uses in one SQLite file; safe for threads and for several processes (WAL)."""

    def __init__(self, folder: Path) -> None:
        """Opens or creates the archive of a store; raises UsageError if it is damaged or cannot be written."""
        self.path = folder / FILE
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.path, timeout=30.0, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            if int(self._db.execute("PRAGMA user_version").fetchone()[0]) > VERSION:
                raise UsageError(f"the prompts in {self.path} were written by a newer foundry", "update this one")
            with self._db:
                for statement in _SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
        except OSError as error:
            raise UsageError(f"the experience store {folder} cannot be written: {error.strerror}") from error
        except sqlite3.DatabaseError as error:
            raise UsageError(
                f"the archive of prompts {self.path} is damaged: {error}",
                "move that file away: the shipped prompts are in the package",
            ) from error

    def add(self, variant: PromptVariant) -> bool:
        """Adds a variant; True if its text is new."""
        return bool(
            self._write(
                "INSERT OR IGNORE INTO variants (id, expert, target, body) VALUES (?,?,?,?)",
                [(variant.id, variant.expert, variant.target, encode(variant))],
            )
        )

    def note(self, uses: Iterable[Use]) -> int:
        """Adds the effects of texts in a run, each once; returns the number of new rows."""
        return self._write(
            "INSERT OR IGNORE INTO uses (run, expert, target, variant, body) VALUES (?,?,?,?,?)",
            [(use.run, use.expert, use.target, use.variant, encode(use)) for use in uses],
        )

    def variants(self, *, gone: bool = False) -> list[PromptVariant]:
        """All variants, oldest first; with `gone` also those that a user has withdrawn."""
        live = "" if gone else " WHERE id NOT IN (SELECT id FROM gone)"
        return [decode(PromptVariant, body) for (body,) in self._rows(f"SELECT body FROM variants{live} ORDER BY seq")]

    def uses(self) -> list[Use]:
        """All recorded uses, in the order in which they were recorded."""
        return [decode(Use, body) for (body,) in self._rows("SELECT body FROM uses ORDER BY rowid")]

    def forget(self, ids: Sequence[str], reason: str) -> int:
        """Withdraws variants: they are never used, listed or written again."""
        return self._write(
            "INSERT OR IGNORE INTO gone (id, gone, reason) VALUES (?,?,?)", [(name, now(), reason) for name in ids]
        )

    def export(self, path: Path) -> int:
        """Writes every live variant and every use as a line of JSON; returns the number of lines."""
        lines = [encode(item) for item in (*self.variants(), *self.uses())]
        path.write_text("".join(f"{line}\n" for line in lines))
        return len(lines)

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._db.close()

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Runs an SQL statement once per row in one transaction; returns the number of changed rows. Raises
        FoundryError if SQLite cannot write."""
        with self._lock:
            try:
                with self._db:
                    before = self._db.total_changes
                    self._db.executemany(statement, rows)
                    return self._db.total_changes - before
            except sqlite3.Error as error:
                raise FoundryError(f"the archive of prompts {self.path} cannot be written: {error}") from error

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of an SQL query. Raises UsageError if the file is damaged."""
        with self._lock:
            try:
                return self._db.execute(query).fetchall()
            except sqlite3.DatabaseError as error:
                raise UsageError(f"the archive of prompts {self.path} is damaged: {error}") from error
