"""Follows a run's log while another process, or another thread, writes it. It writes nothing and holds no lock, so that
watching costs the run nothing; any number of terminals may watch."""

from __future__ import annotations

import time
from pathlib import Path

from foundry.graph.run.budget import Ledger
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import QUESTION, kept_state
from foundry.graph.show.terminal.scene import Standing

LIVENESS_S = 1.0  # how often the run's lock is looked at


class RunReader:
    """One run, from its first event on. Raises UsageError when it is no run."""

    def __init__(self, path: Path) -> None:
        """Opens the run for reading only."""
        self.run = RunDirectory.inspect(path, reading=True)
        self.request = self.run.request
        self._log = EventLog(self.run.database, reading=True)
        self._ledger = Ledger(self.request, self.run, self._log)
        self._last = 0
        self._open: set[int] = set()
        self._looked = 0.0
        self._is_active = True
        self._earlier = (-1, 0.0)  # (session, seconds of those before it)
        self._last_at = 0.0

    def news(self) -> list[Event]:
        """The events since the last call: new ones, and spans that have ended."""
        closed = [event for event in self._log.find(self._open) if event.ended is not None]
        fresh = self._log.read(after=self._last)
        self._open -= {event.id for event in closed}
        self._open |= {event.id for event in fresh if event.ended is None}
        self._last = fresh[-1].id if fresh else self._last
        self._last_at = max([self._last_at, *(event.ended or event.started for event in (*closed, *fresh))])
        return [*closed, *fresh]

    def standing(self) -> Standing:
        """The run's state, its spending and budget, and the users' directives, as of now."""
        run = self.run
        now = time.monotonic()
        if now - self._looked >= LIVENESS_S:
            self._looked, self._is_active = now, run.is_active
        return Standing(
            kept_state=kept_state(run),
            is_active=self._is_active,
            elapsed_s=self._worked_s(),
            spent=run.text_count(),
            allowed=self._ledger.allowed(),
            directives=tuple(run.inbox.read()),
            taken=tuple(run.inbox.acknowledgements()),
            question=run.get(QUESTION),
        )

    def _worked_s(self) -> float:
        """Seconds all sessions worked, without the pauses between them; the latest counts up to now, or to its last
        sign of life."""
        session, started, seen = self._log.last_session()
        if self._earlier[0] != session:
            self._earlier = (session, self._log.worked_s(but=session))
        last = time.time() if self._is_active else max(seen, self._last_at)
        return self._earlier[1] + max(0.0, last - started)

    def close(self) -> None:
        """Closes the run's directory."""
        self.run.close()
