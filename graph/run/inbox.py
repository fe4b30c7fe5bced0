"""Inbox of a run: what users say to the experts while it runs, read by the graph at safe boundaries.

A database of its own, because `chat` writes it from another process (an update of a running LangGraph thread's state
would be lost silently). A line is parsed once, when it is posted: its meaning is stored beside it, so that it does not
change with the steering language.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foundry.agents.directives import NotUnderstood, parse
from foundry.graph.run.database import Database
from foundry.knowledge.errors import TaskError, UsageError
from foundry.knowledge.thought import Directive

READERS = "`foundry agent chat last help` lists what the playbook reads; a chat model reads free text too"
SCHEMA = """
CREATE TABLE IF NOT EXISTS directives (
    id INTEGER PRIMARY KEY, recipient TEXT NOT NULL, island INTEGER, command TEXT NOT NULL, text TEXT NOT NULL,
    posted REAL NOT NULL);
CREATE TABLE IF NOT EXISTS acknowledgements (
    directive INTEGER NOT NULL, reader TEXT NOT NULL, step TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (directive, reader));
CREATE TABLE IF NOT EXISTS answers (
    directive INTEGER NOT NULL, reader TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (directive, reader));
"""


@dataclass(frozen=True)
class Acknowledgement:
    """A directive taken: by `reader` ("run" or "island 2"), at `step`; `answer` is the reason why it cannot be
    followed, or ""."""

    directive: int
    reader: str
    step: str
    at: float
    answer: str = ""


class Inbox:
    """Directives of users: posted from any process, read in order, acknowledged once per reader."""

    def __init__(self, path: Path, *, reading: bool = False) -> None:
        """Opens the inbox's database and makes its tables; with `reading`, only to read."""
        self._database = Database(path, SCHEMA, what="inbox", reading=reading)

    def post(self, said: Directive) -> int:
        """Appends what a user said and returns its id. Raises UsageError on an empty line."""
        if not said.text:
            raise UsageError("an empty directive says nothing")
        return self._database.insert(
            "INSERT INTO directives (recipient, island, command, text, posted) VALUES (?, ?, ?, ?, ?)",
            (said.to, said.island, json.dumps(said.command), said.text, time.time()),
        )

    def read(self, after: int = 0) -> list[Directive]:
        """Directives posted after the one with id `after`, oldest first."""
        rows = self._database.run(
            "SELECT id, recipient, text, command, island FROM directives WHERE id > ? ORDER BY id", (after,)
        )
        return [Directive(number, to, text, json.loads(command), island) for number, to, text, command, island in rows]

    def posted(self) -> dict[int, float]:
        """When each directive was posted, by its id, in seconds since the epoch."""
        return dict(self._database.run("SELECT id, posted FROM directives"))

    def acknowledge(self, directive: int, reader: str, step: str, answer: str = "") -> str:
        """Records once that `reader` takes this directive, with its answer; returns the step at which it did so
        first."""
        if answer:  # first, so that a reader of the acknowledgement finds the answer
            self._database.insert(
                "INSERT OR IGNORE INTO answers (directive, reader, text) VALUES (?, ?, ?)", (directive, reader, answer)
            )
        if self._database.insert(
            "INSERT OR IGNORE INTO acknowledgements (directive, reader, step, at) VALUES (?, ?, ?, ?)",
            (directive, reader, step, time.time()),
        ):
            return step
        taken = "SELECT step FROM acknowledgements WHERE directive = ? AND reader = ?"
        return str(self._database.run(taken, (directive, reader))[0][0])

    def acknowledgements(self) -> list[Acknowledgement]:
        """All acknowledgements with their answers, oldest first."""
        rows = self._database.run(
            "SELECT directive, reader, step, at, COALESCE(text, '') FROM acknowledgements"
            " LEFT JOIN answers USING (directive, reader) ORDER BY at"
        )
        return [Acknowledgement(*row) for row in rows]

    def copy_to(self, path: Path) -> None:
        """Writes a copy of the inbox's database to `path`."""
        self._database.copy_to(path)

    def forget_after(self, at: float) -> None:
        """Deletes what was posted and acknowledged at this moment (seconds since the epoch) or later."""
        self._database.run("DELETE FROM directives WHERE posted >= ?", (at,))
        self._database.run("DELETE FROM acknowledgements WHERE at >= ?", (at,))
        kept = "SELECT directive, reader FROM acknowledgements"
        self._database.run(f"DELETE FROM answers WHERE (directive, reader) NOT IN ({kept})")

    def close(self) -> None:
        """Closes the database."""
        self._database.close()


def in_force(directives: Sequence[Directive]) -> list[Directive]:
    """The directives that no later one withdraws."""
    withdrawn = {item.command["directive"] for item in directives if item.verb == "withdraw"}
    return [item for item in directives if item.id not in withdrawn]


def find_wanted_state(directives: Sequence[Directive], island: int | None = None) -> tuple[str, int]:
    """(state, id of its directive or 0): "go", "pause" or "stop" by the user's latest word to the run, or to one island
    of it."""
    state, number = "go", 0
    for directive in in_force(directives):
        verb = directive.verb if directive.to == "run" and directive.island in (None, island) else ""
        if verb in ("pause", "stop"):
            state, number = verb, directive.id
        elif verb == "resume":
            state, number = "go", directive.id
    return state, number


def sum_grants(directives: Sequence[Directive], unit: str) -> float:
    """The amount of `unit` (evaluations, minutes, tokens, dollars, calls) that the user granted the run in words."""
    return sum(
        float(directive.command["amount"])
        for directive in in_force(directives)
        if directive.verb == "budget" and directive.command.get("unit") == unit
    )


# the task's standing instructions: what its author would otherwise say at the start of every run


def split_instructions(text: str) -> tuple[list[Directive], list[str]]:
    """(directives of the steering language, free text), line by line.

    Directives go to the inbox before the first step, so that they are acknowledged and cited like any other. Free text
    is read by chat models only.
    """
    directives: list[Directive] = []
    free: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        said = parse(line)
        if isinstance(said, Directive) and said.to != "run":
            directives.append(said)
        else:
            free.append(line)
    return directives, free


def check_language(text: str) -> None:
    """Raises TaskError for the first line of instructions that the playbook cannot read, for a run without a chat
    model.

    A typo would be noticed only at the run's end.
    """
    for line in split_instructions(text)[1]:
        said = parse(line)
        why = said.reason if isinstance(said, NotUnderstood) else f"{line!r} speaks to a run, not to its experts."
        raise TaskError(f"the task's instructions: {why}", READERS)
