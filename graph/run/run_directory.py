"""Run on disk: everything a run knows, so that it can be resumed, traced, replayed.

`runs/<id>/` holds run.sqlite (events, journal, evaluations), checkpoints.sqlite, inbox.sqlite, blobs/<sha256>,
kernel.py, receipt.json.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from foundry.graph.run import events as event_log
from foundry.graph.run.database import Database, storage_failure
from foundry.graph.run.inbox import Inbox
from foundry.graph.run.request import SolveRequest
from foundry.knowledge.candidate import REFERENCE, Candidate, Evaluation, Stage
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.errors import UsageError
from foundry.knowledge.merit import merit
from foundry.knowledge.thought import Diagnosis, Proposal

FORMAT = "12"
SCHEMA = (
    event_log.SCHEMA
    + """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS journal (
    key TEXT PRIMARY KEY, kind TEXT NOT NULL, value TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS claims (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE, step TEXT NOT NULL UNIQUE, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS trials (text TEXT PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS tried (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL UNIQUE, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS evaluations (
    candidate TEXT NOT NULL, stage TEXT NOT NULL, island INTEGER NOT NULL, step TEXT NOT NULL, at REAL NOT NULL,
    merit REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (candidate, stage));
CREATE TABLE IF NOT EXISTS decisions (
    step TEXT PRIMARY KEY, island INTEGER NOT NULL, candidate TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, at REAL NOT NULL, prompt_tokens INTEGER NOT NULL,
    answer_tokens INTEGER NOT NULL, dollars REAL NOT NULL);
"""
)
LAST = (1 << 63) - 1  # larger than any row's number
STAGES: tuple[Stage, ...] = ("screen", "full", "final")
ORIGIN = "origin"  # the fact of a run that says what it was forked from
MIXED = "mixed"  # the fact of a run that several brains thought for: a replay asks none of them
FURTHER = "further"  # the fact of a fork that its islands start once more, though all had ended
LATEST_FIRST = "CASE stage WHEN 'final' THEN 0 WHEN 'full' THEN 1 ELSE 2 END"


@dataclass(frozen=True)
class Decision:
    """The decision of one step of the search; `proposal` is None for a seed. A replay compares these."""

    step: str
    island: int
    candidate: Candidate
    diagnosis: Diagnosis | None = None
    proposal: Proposal | None = None


@dataclass(frozen=True)
class Origin:
    """The fork point of a run: the state of run `run` just before `step`; "" is the moment when its search began to
    end."""

    run: str
    path: str
    step: str
    at: float


@dataclass(frozen=True)
class Claim:
    """The right to evaluate a text: `candidate` is its id; `fresh` is False if another step had claimed it before."""

    candidate: str
    fresh: bool


class Mark(NamedTuple):
    """A moment of a run: the last rows of two of its tables."""

    decision: int
    evaluation: int


class RunDirectory:
    """Reads and writes one run. Construct through `create`, `open` (to work on it, locked) or `inspect` (to read)."""

    def __init__(self, path: Path, *, reading: bool = False) -> None:
        """Opens the databases of the folder, creating them unless `reading`."""
        self.path = path
        self.database = Database(path / "run.sqlite", SCHEMA, reading=reading)
        self.inbox = Inbox(path / "inbox.sqlite", reading=reading)
        self.blobs = path / "blobs"
        self._lock: int | None = None

    @classmethod
    def create(cls, request: SolveRequest) -> RunDirectory:
        """A new run in a folder of its own (`<task>-<time>`), locked for this process and marked as running.

        Raises UsageError if the folder cannot be made, StorageFailed if the disk fails later.
        """
        root = Path(request.runs)
        try:
            root.mkdir(parents=True, exist_ok=True)
            path = fresh_folder(root, Path(request.task).stem)
            (path / "blobs").mkdir()
        except OSError as error:
            raise UsageError(
                f"cannot create a run in {root}: {error.strerror}", "name a folder you may write to with --runs"
            ) from error
        run = cls(path)
        run.lock()
        run.set("format", FORMAT)
        run.set("events", event_log.VERSION)
        run.set("created", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        run.set("request", encode(request))
        run.set("status", "running")
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run, locked for this process. Raises UsageError when it is missing, corrupt or in use."""
        run = cls.inspect(path)
        run.lock()
        return run

    @classmethod
    def inspect(cls, path: Path, *, reading: bool = False) -> RunDirectory:
        """Opens an existing run while another process may work on it; `reading` makes writing impossible.

        Raises UsageError if it is no run or of another format.
        """
        if not path.is_dir():
            raise UsageError(f"there is no run at {path}", "see `foundry agent runs`")
        if not (path / "run.sqlite").is_file():
            raise UsageError(f"{path} is not a run: it holds no run.sqlite", "see `foundry agent runs`")
        run = cls(path, reading=reading)
        if run.get("format") != FORMAT:
            found = run.get("format") or "unknown"
            run.close()
            raise UsageError(
                f"{path} has run format {found}, this version reads {FORMAT}",
                "use the version that wrote it",
            )
        return run

    def lock(self) -> None:
        """Locks the run for this process, until it ends. Raises UsageError if another process works on it."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode().strip()
            os.close(handle)
            raise UsageError(f"run {self.id} is being worked on by process {owner or '?'}") from error
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    @property
    def is_active(self) -> bool:
        """True if some process holds the run's lock now."""
        if self._lock is not None:
            return True
        try:
            handle = os.open(self.path / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    @property
    def id(self) -> str:
        """The run's name: that of its folder."""
        return self.path.name

    @property
    def request(self) -> SolveRequest:
        """The request that the run was begun with."""
        return decode(SolveRequest, self.get("request"))

    @property
    def origin(self) -> Origin | None:
        """The fork point of this run; None if it was not forked."""
        found = self.get(ORIGIN)
        return decode(Origin, found) if found else None

    # meta: small facts of the run as a whole

    def get(self, key: str, default: str = "") -> str:
        """The fact under a key, or `default`."""
        rows = self.database.run("SELECT value FROM meta WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else default

    def set(self, key: str, value: str) -> None:
        """Sets the fact under a key."""
        self.database.run("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))

    # blobs: sources and logs, named by content

    def keep(self, text: str) -> str:
        """Stores a text as a blob, once, and returns its sha256."""
        raw = text.encode()
        digest = hashlib.sha256(raw).hexdigest()
        target = self.blobs / digest
        if not target.exists():
            self.write(target, raw)
        return digest

    def text(self, digest: str) -> str:
        """The text stored under a sha256; raises UsageError if it is gone."""
        try:
            return (self.blobs / digest).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"run {self.id} has lost the text {digest[:12]}", "the run is corrupt: start anew"
            ) from error

    def write(self, target: Path, raw: bytes) -> None:
        """Writes a file of the run whole or not at all; raises StorageFailed."""
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            temporary.write_bytes(raw)
            temporary.replace(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise storage_failure(error, target) from error

    # candidates

    def claim(self, text: str, step: str) -> Claim:
        """Claims the text with sha256 `text` for `step`, and returns the candidate's id; a repeated claim gives the
        same."""
        for column, value in (("text", text), ("step", step)):
            rows = self.database.run(f"SELECT seq, step FROM claims WHERE {column} = ?", (value,))
            if rows:
                return Claim(f"c{rows[0][0]}", rows[0][1] == step)
        number = self.database.insert("INSERT INTO claims (text, step, at) VALUES (?, ?, ?)", (text, step, time.time()))
        return Claim(f"c{number}", True)

    def claim_as_plain(self, text: str, step: str) -> dict[str, object]:
        """As `claim`, as a dict for the journal."""
        claim = self.claim(text, step)
        return {"candidate": claim.candidate, "fresh": claim.fresh}

    def add_tried(self, digests: list[str]) -> None:
        """Marks recipes and texts as evaluated, by digest; those known already keep their time."""
        now = time.time()
        self.database.run_many(
            "INSERT OR IGNORE INTO tried (digest, at) VALUES (?, ?)", [(digest, now) for digest in digests]
        )

    def tried(self, up_to: int | None = None) -> tuple[int, frozenset[str]]:
        """(mark, digests of the recipes and texts that this run has evaluated). With `up_to` set to an earlier mark it
        gives the digests of that time."""
        if up_to is None:
            up_to = int(self.database.run("SELECT COALESCE(MAX(seq), 0) FROM tried")[0][0])
        rows = self.database.run("SELECT digest FROM tried WHERE seq <= ?", (up_to,))
        return up_to, frozenset(row[0] for row in rows)

    def add_evaluation(self, evaluation: Evaluation, stage: Stage, step: str) -> bool:
        """Records a candidate's evaluation at a stage, with the merit of all its records up to this one; True the first
        time."""
        earlier = self.records(evaluation.candidate.id, STAGES[: STAGES.index(stage)])
        return bool(
            self.database.insert(
                "INSERT OR IGNORE INTO evaluations (candidate, stage, island, step, at, merit, body)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    evaluation.candidate.id,
                    stage,
                    evaluation.candidate.island,
                    step,
                    time.time(),
                    merit([*earlier, evaluation]),
                    encode(evaluation),
                ),
            )
        )

    def add_decision(self, decision: Decision) -> bool:
        """Records what a step decided; True the first time."""
        return bool(
            self.database.insert(
                "INSERT OR IGNORE INTO decisions (step, island, candidate, at, body) VALUES (?, ?, ?, ?, ?)",
                (decision.step, decision.island, decision.candidate.id, time.time(), encode(decision)),
            )
        )

    def decision(self, candidate: str) -> Decision | None:
        """The decision that made a candidate; None if there is none."""
        rows = self.database.run("SELECT body FROM decisions WHERE candidate = ?", (candidate,))
        return decode(Decision, rows[0][0]) if rows else None

    def mark(self) -> Mark:
        """A mark of the last rows of decisions and evaluations now."""
        rows = self.database.run("SELECT MAX(rowid) FROM decisions UNION ALL SELECT MAX(rowid) FROM evaluations")
        return Mark(*(int(row[0] or 0) for row in rows))

    def decisions(self, up_to: Mark | None = None, *, by_time: bool = False) -> list[Decision]:
        """All decisions, by island and in the order the island took them, or in the order of time; with a mark those up
        to it."""
        last, order = up_to.decision if up_to else LAST, "at, rowid" if by_time else "island, rowid"
        rows = self.database.run(f"SELECT body FROM decisions WHERE rowid <= ? ORDER BY {order}", (last,))
        return [decode(Decision, row[0]) for row in rows]

    def decision_count(self) -> int:
        """Number of decisions recorded."""
        return int(self.database.run("SELECT COUNT(*) FROM decisions")[0][0])

    def ranking(self, limit: int, up_to: Mark | None = None) -> list[str]:
        """Ids of at most `limit` candidates that no record rejects, highest merit first; the reference is left out."""
        rows = self.database.run(
            f"SELECT candidate FROM (SELECT candidate, merit, ROW_NUMBER() OVER (PARTITION BY candidate ORDER BY"
            f" {LATEST_FIRST}) AS place FROM evaluations WHERE rowid <= ?) WHERE place = 1 AND merit >= 1 AND"
            f" candidate != ? ORDER BY merit DESC, CAST(SUBSTR(candidate, 2) AS INTEGER) LIMIT ?",
            (up_to.evaluation if up_to else LAST, REFERENCE, limit),
        )
        return [row[0] for row in rows]

    def evaluation(self, candidate: str, stage: Stage | None = None) -> Evaluation:
        """The record of a candidate at a stage, or at its highest. Raises UsageError if there is none."""
        condition, values = ("AND stage = ?", (candidate, stage)) if stage else ("", (candidate,))
        rows = self.database.run(
            f"SELECT body FROM evaluations WHERE candidate = ? {condition} ORDER BY {LATEST_FIRST} LIMIT 1", values
        )
        if not rows:
            raise UsageError(f"run {self.id} has no candidate {candidate}", "see `foundry agent trace`")
        return decode(Evaluation, rows[0][0])

    def records(self, candidate: str, stages: Sequence[Stage] = STAGES, up_to: Mark | None = None) -> list[Evaluation]:
        """A candidate's records at each of these stages, the screen first; with a mark those known then."""
        rows = self.database.run(
            "SELECT stage, body FROM evaluations WHERE candidate = ? AND rowid <= ?",
            (candidate, up_to.evaluation if up_to else LAST),
        )
        found = {stage: body for stage, body in rows}
        return [decode(Evaluation, found[stage]) for stage in stages if stage in found]

    def evaluations(self) -> list[tuple[Evaluation, Stage]]:
        """(record, stage) of every candidate at its highest stage, in the order of their ids."""
        rows = self.database.run(
            f"SELECT body, stage FROM (SELECT body, stage, ROW_NUMBER() OVER (PARTITION BY candidate ORDER BY"
            f" {LATEST_FIRST}) AS place, CAST(SUBSTR(candidate, 2) AS INTEGER) AS number FROM evaluations)"
            f" WHERE place = 1 ORDER BY number"
        )
        return [(decode(Evaluation, body), stage) for body, stage in rows]

    def measured(self, mark: Mark) -> dict[str, Stage]:
        """The candidates that were recorded when the mark was taken, each with its highest stage then."""
        rows = self.database.run(
            f"SELECT candidate, stage FROM evaluations WHERE rowid <= ? ORDER BY {LATEST_FIRST} DESC, rowid",
            (mark.evaluation,),
        )
        return {candidate: stage for candidate, stage in rows}

    def pending(self, mark: Mark) -> list[Candidate]:
        """The candidates that had been decided on, but not measured, when the mark was taken."""
        rows = self.database.run(
            "SELECT body FROM decisions WHERE rowid <= ? AND candidate NOT IN"
            " (SELECT candidate FROM evaluations WHERE rowid <= ?) ORDER BY rowid",
            mark,
        )
        return [decode(Decision, row[0]).candidate for row in rows]

    def results(self, island: int, after: int, up_to: int) -> list[tuple[str, Stage]]:
        """(candidate, highest stage) of an island's candidates recorded between two marks, in the order of their first
        records."""
        rows = self.database.run(
            "SELECT candidate, stage FROM evaluations WHERE island = ? AND rowid > ? AND rowid <= ? ORDER BY rowid",
            (island, after, up_to),
        )
        found: dict[str, Stage] = {}
        for candidate, stage in rows:
            found[candidate] = max(found.get(candidate, stage), stage, key=STAGES.index)
        return list(found.items())

    def evaluation_count(self) -> int:
        """Number of candidates this run evaluated; the reference itself (c0) is not counted."""
        rows = self.database.run("SELECT COUNT(DISTINCT candidate) FROM evaluations WHERE candidate != ?", (REFERENCE,))
        return int(rows[0][0])

    def count(self, stage: Stage) -> int:
        """Number of candidates recorded at this stage."""
        return int(self.database.run("SELECT COUNT(*) FROM evaluations WHERE stage = ?", (stage,))[0][0])

    def add_trial(self, text: str) -> None:
        """Records that the machine works on a text, by its sha256, for an expert's tool: it counts like a claim."""
        self.database.run("INSERT OR IGNORE INTO trials (text, at) VALUES (?, ?)", (text, time.time()))

    def is_counted(self, text: str) -> bool:
        """True if this text, by its sha256, has been claimed or tried, so that the budget has paid for it."""
        paid = "SELECT 1 FROM claims WHERE text = ? UNION SELECT 1 FROM trials WHERE text = ?"
        return bool(self.database.run(paid, (text, text)))

    def trial_count(self) -> int:
        """Number of texts that the machine worked on for experts' tools and that are no candidates."""
        only_tried = "SELECT COUNT(*) FROM trials WHERE text NOT IN (SELECT text FROM claims)"
        return int(self.database.run(only_tried)[0][0])

    def text_count(self) -> int:
        """Number of texts that the machine worked on, as candidates or for experts' tools: the budget's evaluations."""
        counted = "SELECT COUNT(*) FROM (SELECT text FROM claims UNION SELECT text FROM trials)"
        return int(self.database.run(counted)[0][0])

    def close(self) -> None:
        """Closes inbox and database, and releases the lock if this process holds it."""
        self.inbox.close()
        self.database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def fresh_folder(root: Path, task: str) -> Path:
    """Makes and returns a folder `<task>-<time>`, with a number when two runs start in the same second. Raises
    UsageError after a thousand numbers."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", task)[:40] or "task"
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1000):
        path = root / (name if attempt == 0 else f"{name}-{attempt}")
        try:
            path.mkdir()
            return path
        except FileExistsError:
            continue
    raise UsageError(f"{root} holds a thousand runs named {name}")


def list_runs(root: Path) -> list[RunDirectory]:
    """The runs in a folder, newest first; other folders and corrupt runs are left out."""
    if not root.is_dir():
        return []
    found = []
    for path in root.iterdir():
        if path.name.startswith("."):  # a fork that is being made
            continue
        try:
            found.append(RunDirectory.inspect(path))
        except UsageError:
            continue
    return sorted(found, key=lambda run: (run.get("created"), run.id), reverse=True)


def find_run(root: Path, name: str) -> Path:
    """The directory of the run that a user means by a path, an id, the beginning of one id, or "last". Raises
    UsageError."""
    if (Path(name) / "run.sqlite").is_file():
        return Path(name)
    runs = list_runs(root)
    try:
        matching = [run.path for run in runs if run.id.startswith(name)]
        if name == "last" and runs:
            return runs[0].path
    finally:
        for run in runs:
            run.close()
    exact = [path for path in matching if path.name == name]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    problem = f"no run {name!r} in {root}" if not matching else f"{len(matching)} runs begin with {name!r}"
    raise UsageError(problem, "see `foundry agent runs`")
