"""The runs of a folder as their pages show them: gathered again only when something has happened, and never so often
that watching costs a run more than a few hundredths of its time."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from foundry.graph.run.run_directory import RunDirectory, list_runs
from foundry.graph.run.summary import summarise
from foundry.graph.show.page.facts import RunFacts, change_of, run_facts
from foundry.graph.show.page.page import as_json
from foundry.knowledge.errors import UsageError

SHARE = 0.02  # largest share of the time spent on gathering one run's facts
LEAST_S = 1.0  # shortest time in seconds between two gatherings


@dataclass(frozen=True)
class RunLine:
    """A run in the list."""

    id: str
    created: str
    task: str
    device: str
    verdict: str
    evaluations: int
    speedup: float | None
    brain: str


@dataclass(frozen=True)
class RunsFacts:
    """The data of the list's page."""

    kind: str
    folder: str
    change: str  # differs when the list does
    runs: list[RunLine]


@dataclass(frozen=True)
class Shown:
    """A run's facts, and the same as JSON."""

    facts: RunFacts
    text: str


@dataclass
class _Known:
    """The facts of a run as last gathered: at `at` (time.monotonic), in `took_s` seconds of thread time."""

    shown: Shown | None = None
    at: float = 0.0
    took_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Gallery:
    """The runs of a folder as pages show them. Thread-safe; several readers share the gathered facts."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet; `folder` holds the runs."""
        self.folder = folder
        self._known: dict[str, _Known] = {}
        self._listing = threading.Lock()
        self._list: RunsFacts | None = None
        self._lines: dict[str, tuple[str, RunLine]] = {}  # run -> (its last change, its line)
        self._listed_at = 0.0
        self._listed_s = 0.0

    def open(self, name: str, *, reading: bool = True) -> RunDirectory:
        """A run by its whole name. Raises UsageError: a name is never a path."""
        if name not in {path.name for path in self.folder.iterdir()}:
            raise UsageError(f"there is no run {name}")
        return RunDirectory.inspect(self.folder / name, reading=reading)

    def run(self, name: str) -> Shown:
        """A run as it is shown now, a little old while it works. Raises UsageError."""
        known = self._known.setdefault(name, _Known())
        with known.lock:
            run = self.open(name)
            try:
                change = f"{change_of(run)} {run.is_active}"  # a killed run records no event
                is_due = time.monotonic() - known.at >= max(LEAST_S, known.took_s / SHARE)
                if known.shown is None or (change != known.shown.facts.change and (is_due or not run.is_active)):
                    began = time.thread_time()
                    facts = replace(run_facts(run), change=change)
                    known.shown = Shown(facts, as_json(facts))
                    known.at, known.took_s = time.monotonic(), time.thread_time() - began
            finally:
                run.close()
            return known.shown

    def runs(self) -> RunsFacts:
        """The list, the newest run first; a little old where there are many."""
        with self._listing:
            if self._list is None or time.monotonic() - self._listed_at >= max(LEAST_S, self._listed_s / SHARE):
                began = time.thread_time()
                self._list = self._gather_list()
                self._listed_at, self._listed_s = time.monotonic(), time.thread_time() - began
            return self._list

    def _gather_list(self) -> RunsFacts:
        """The list as of now; only runs that changed are summarised again."""
        found = []
        for run in list_runs(self.folder):
            change = f"{change_of(run)} {run.is_active}"
            known = self._lines.get(run.id)
            if known is None or known[0] != change:
                known = self._lines[run.id] = (change, _line_of(run))
            found.append(known[1])
            run.close()
        change = hashlib.sha256(repr(found).encode()).hexdigest()
        return RunsFacts("runs", self.folder.resolve().name, change, found)


def _line_of(run: RunDirectory) -> RunLine:
    """A run's line in the list: its task, device, verdict, evaluations, speedup and brain."""
    told = summarise(run)
    return RunLine(
        id=run.id,
        created=run.get("created"),
        task=told.task,
        device=told.device,
        verdict=told.verdict,
        evaluations=told.evaluations,
        speedup=told.speedup,
        brain=told.brain,
    )
