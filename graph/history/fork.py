"""Time travel: a new run that goes on from any step of another one, with other words, another model, another budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from foundry.agents.models.models import Models
from foundry.graph.history.cut import copied, find_moment
from foundry.graph.run.budget import Ledger
from foundry.graph.run.events import EventLog
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import FURTHER, MIXED, RunDirectory
from foundry.graph.show.words.conversation import say
from foundry.knowledge.codec import encode
from foundry.knowledge.errors import UsageError


@dataclass(frozen=True)
class Change:
    """The differences between a fork and its source.

    Limits count from the step on; without limits of evaluations and minutes the fork gets what its source had left
    there. `models` None keeps the source's models.
    """

    said: Sequence[str] = ()
    models: Models | None = None
    limits: RunLimits = field(default_factory=RunLimits)


def fork(source_path: Path, step: str, change: Change, parts: Parts | None = None) -> Path:
    """Makes a new run in the state of the source just before `step`, and returns its folder; `resume` continues it.

    `step` "" is the end of the source's search; the fork then gets the same budget again. Raises UsageError for a step
    that was not reached, and for words that this run cannot follow.
    """
    parts = parts or Parts()
    source = RunDirectory.inspect(source_path)
    try:
        request = source.request
        if change.models is not None:
            request = replace(request, models=change.models)
            parts.check_model(request)
        with copied(source, find_moment(source, step), request) as run:
            _change(run, request, change, step)
            for line in change.said:
                reply = say(run, line, parts)
                if not reply.understood:
                    raise UsageError(f"{reply.text.splitlines()[0]} Nothing was begun")
        return source.path.parent / run.id.removeprefix(".")
    finally:
        source.close()


def _change(run: RunDirectory, request: SolveRequest, change: Change, step: str) -> None:
    """Writes the fork's other models and limits into its request; marks that its islands start once more."""
    if change.models is not None:
        run.set("brain", change.models.title)
        run.set(MIXED, "yes")
    if not step:
        run.set(FURTHER, "yes")
    wanted = change.limits
    if not step or wanted.evaluations or wanted.minutes:  # of which one is said, the other is as much as ever
        evaluations, minutes = wanted.evaluations or request.max_evaluations, wanted.minutes or request.max_minutes
        wanted = replace(wanted, evaluations=evaluations, minutes=minutes)
    limits = _from_here(run, request, wanted)
    run.set("request", encode(replace(run.request, limits=limits)))


def _from_here(run: RunDirectory, request: SolveRequest, wanted: RunLimits) -> RunLimits:
    """The limits of the whole run that leave so much from here on; what users granted before is in force already."""
    ledger = Ledger(request, run, EventLog(run.database, reading=True))
    spent, allowed, own = ledger.spent(), ledger.allowed(), request.limits
    granted = replace(
        allowed,
        evaluations=allowed.evaluations - request.max_evaluations,
        minutes=allowed.minutes - request.max_minutes,
        tokens=(allowed.tokens or 0) - (own.tokens or 0),
        dollars=(allowed.dollars or 0.0) - (own.dollars or 0.0),
    )

    def whole(more: int | None, used: int, given: int | None, before: int | None) -> int | None:
        """New cap: what was used, less what was given, plus `more`, at least 1; `before` if `more` is None."""
        return before if more is None else max(1, used + more - (given or 0))

    def whole_part(more: float | None, used: float, given: float | None, before: float | None) -> float | None:
        """New cap: what was used, less what was given, plus `more`; `before` if `more` is None."""
        return before if more is None else used + more - (given or 0.0)

    return RunLimits(
        evaluations=whole(wanted.evaluations, spent.evaluations, granted.evaluations, own.evaluations),
        minutes=whole_part(wanted.minutes, spent.minutes, granted.minutes, own.minutes),
        tokens=whole(wanted.tokens, spent.tokens, granted.tokens, own.tokens),
        dollars=whole_part(wanted.dollars, spent.dollars, granted.dollars, own.dollars),
        target_speedup=wanted.target_speedup or own.target_speedup,
        calls=whole(wanted.calls, ledger.thinking.total.requests, 0, own.calls),
    )
