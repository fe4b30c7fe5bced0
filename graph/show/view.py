"""A run read once: the record that text, the page and JSON render."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from foundry.graph.run.events import Event, EventKind, EventLog
from foundry.graph.run.inbox import Acknowledgement, in_force
from foundry.graph.run.run_directory import LATEST_FIRST, STAGES, Decision, RunDirectory
from foundry.graph.run.summary import Summary, summarise
from foundry.graph.show.effects import History
from foundry.graph.show.ranking import Placed, Ranking
from foundry.knowledge.candidate import REFERENCE, Candidate, Evaluation, Stage
from foundry.knowledge.errors import UsageError
from foundry.knowledge.thought import Directive


@dataclass(frozen=True)
class Measured:
    """A candidate's record at its highest stage, and when and with which merit the run kept it."""

    evaluation: Evaluation
    stage: Stage
    at: float
    merit: float


@dataclass(frozen=True)
class Said:
    """A directive of a user: who took it, and whether it still holds."""

    directive: Directive
    posted: float  # seconds since the epoch
    readers: tuple[Acknowledgement, ...]
    is_in_force: bool

    @property
    def refusals(self) -> list[str]:
        """Why it cannot be followed, each reason once, with those that gave it."""
        return refusals(self.readers)


def refusals(taken: Sequence[Acknowledgement]) -> list[str]:
    """The reasons of those that cannot follow a directive, each once, with the readers that gave it."""
    readers: dict[str, list[str]] = {}
    for item in taken:
        if item.answer:
            readers.setdefault(item.answer, []).append(item.reader)
    return [f"{answer} ({', '.join(names)})" for answer, names in readers.items()]


class RunView:
    """The facts of one run, also of one that another process works on. Each is read when it is first asked for, and
    kept: a view is of one moment."""

    def __init__(self, run: RunDirectory) -> None:
        """Keeps the run and opens its log, only to read."""
        self.run = run
        self.log = EventLog(run.database, reading=True)
        self._events: dict[EventKind, list[Event]] = {}

    def events(self, *kinds: EventKind) -> list[Event]:
        """The events of these kinds, or all, in their order."""
        kinds = kinds or get_args(EventKind)
        missing = [kind for kind in kinds if kind not in self._events]
        self._events |= {kind: [] for kind in missing}
        for event in self.log.read(*missing) if missing else ():
            self._events[event.kind].append(event)
        return sorted((event for kind in kinds for event in self._events[kind]), key=lambda event: event.id)

    @cached_property
    def began(self) -> float:
        """Time at which the run began."""
        return self.log.began()

    @cached_property
    def summary(self) -> Summary:
        """Summary of how the run stands or ended."""
        return summarise(self.run, self.events)

    @cached_property
    def history(self) -> History:
        """The proposals of the run and their outcomes."""
        return History.of(self.events("proposal", "evaluation"))

    @cached_property
    def ranking(self) -> Ranking:
        """The order in which the run's candidates stand."""
        return Ranking(self.run, lambda: self.history.outcomes)

    @property
    def best(self) -> Placed | None:
        """The winner, or before there is one the best candidate so far."""
        return self.ranking.placed(self.summary.candidate) if self.summary.candidate else None

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """Candidate -> the decision that made it."""
        return {decision.candidate.id: decision for decision in self.run.decisions()}

    @cached_property
    def measured(self) -> list[Measured]:
        """Every candidate at its highest stage, in the order in which they were first measured."""
        first = self.run.database.run("SELECT candidate, MIN(at) FROM evaluations GROUP BY candidate")
        merits = self.run.database.run(f"SELECT candidate, merit FROM evaluations ORDER BY {LATEST_FIRST} DESC")
        at, merit = dict(first), dict(merits)  # candidate -> merit at its highest stage, which comes last
        found = [
            Measured(evaluation, stage, float(at[evaluation.candidate.id]), float(merit[evaluation.candidate.id]))
            for evaluation, stage in self.run.evaluations()
            if evaluation.candidate.id != REFERENCE
        ]
        return sorted(found, key=lambda one: one.at)

    @cached_property
    def said(self) -> list[Said]:
        """The users' directives, oldest first, with their readers."""
        directives, posted = self.run.inbox.read(), self.run.inbox.posted()
        kept, taken = {item.id for item in in_force(directives)}, self.run.inbox.acknowledgements()
        return [
            Said(
                item,
                posted[item.id],
                tuple(reader for reader in taken if reader.directive == item.id),
                item.id in kept,
            )
            for item in directives
        ]

    def candidate(self, name: str) -> Candidate:
        """The candidate of that id. Raises UsageError if the run has none."""
        decision = self.run.decision(name)
        return decision.candidate if decision else self.run.evaluation(name).candidate

    def records(self, name: str) -> list[tuple[Stage, Evaluation]]:
        """A candidate's evaluation at each stage that it reached, the first stage first."""
        found: list[tuple[Stage, Evaluation]] = []
        for stage in STAGES:
            with contextlib.suppress(UsageError):  # a candidate need not reach every stage
                found.append((stage, self.run.evaluation(name, stage)))
        return found

    @cached_property
    def parents(self) -> dict[str, tuple[str, ...]]:
        """Measured candidate -> its parents."""
        return {one.evaluation.candidate.id: one.evaluation.candidate.parents for one in self.measured}

    def lineage(self, name: str) -> list[str]:
        """The candidate and its first parents back to a seed."""
        line = [name]
        while self.parents.get(line[-1]) and self.parents[line[-1]][0] not in line:
            line.append(self.parents[line[-1]][0])
        return line
