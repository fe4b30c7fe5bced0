"""Journal of a run: every answer from outside the search, recorded once under a key.

An answer is a measurement ("measure") or a thought of a brain ("thought"). "outside" is a reading of the world outside
an island: the clock and budget, migrants, directives, recalled experience, claims. A node that a killed run executes
again finds its answers here, so nothing is measured or counted twice. A replay reads them from the recorded run instead
of the world, so that the search's own decisions can be compared one by one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from foundry.graph.run.database import Database
from foundry.knowledge.codec import decode, encode

T = TypeVar("T")
AnswerKind = Literal["measure", "outside", "thought"]


class Diverged(Exception):
    """A replay asked for something that the recorded run never asked: its decisions differ from here on."""


class Journal:
    """Recorded answers by key.

    `recorded` is the journal that a replay answers from. `thoughts` False recomputes thoughts (the playbook). True
    takes them from there too: a chat model cannot be asked to think the same again.
    """

    def __init__(self, database: Database, recorded: Journal | None = None, *, thoughts: bool = False) -> None:
        """Keeps its sources; reads nothing yet."""
        self._database = database
        self._recorded = recorded
        self._thoughts = thoughts

    @property
    def replaying(self) -> bool:
        """True if answers come from a recorded run."""
        return self._recorded is not None

    def lookup(self, key: str) -> str | None:
        """The answer under a key as JSON text; None if there is none."""
        rows = self._database.run("SELECT value FROM journal WHERE key = ?", (key,))
        return str(rows[0][0]) if rows else None

    def count(self, prefix: str) -> int:
        """Number of answers whose key begins with `prefix`."""
        return int(
            self._database.run("SELECT COUNT(*) FROM journal WHERE substr(key, 1, ?) = ?", (len(prefix), prefix))[0][0]
        )

    def keep(self, key: str, kind: AnswerKind, value: str) -> str:
        """Records the answer unless the key has one; returns the recorded one."""
        self._database.run(
            "INSERT OR IGNORE INTO journal (key, kind, value, at) VALUES (?, ?, ?, ?)", (key, kind, value, time.time())
        )
        return self.lookup(key) or value

    def recorded_answer(self, key: str, kind: AnswerKind) -> str | None:
        """This run's own answer, or the replayed run's, which it copies here. None if it is still to be produced.

        Raises Diverged if a replay finds none.
        """
        own = self.lookup(key)
        if own is not None or self._recorded is None or (kind == "thought" and not self._thoughts):
            return own
        theirs = self._recorded.lookup(key)
        if theirs is None:
            raise Diverged(f"the recorded run has no answer for {key}")
        return self.keep(key, kind, theirs)

    async def record(self, key: str, kind: AnswerKind, shape: type[T], produce: Callable[[], Awaitable[T]]) -> T:
        """The recorded answer of type `shape`; if there is none, awaits `produce` and records its result."""
        known = self.recorded_answer(key, kind)
        if known is None:
            known = self.keep(key, kind, encode(await produce()))
        return decode(shape, known)

    def plain(self, key: str, kind: AnswerKind, produce: Callable[[], Any]) -> Any:
        """As `record`, for plain JSON values that `produce` returns without waiting."""
        known = self.recorded_answer(key, kind)
        if known is None:
            known = self.keep(key, kind, json.dumps(produce()))
        return json.loads(known)
