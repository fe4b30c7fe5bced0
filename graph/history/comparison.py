"""`foundry agent compare`: the step at which two runs parted, the users' different words, and the gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from foundry.graph.run.run_directory import Decision, RunDirectory
from foundry.graph.run.summary import Summary
from foundry.graph.show.effects import History
from foundry.graph.show.view import RunView
from foundry.knowledge.errors import UsageError


@dataclass(frozen=True)
class Side:
    """One of the two runs; `made` is what it did at the step where they parted, `best` its best candidate in words."""

    summary: Summary
    name: str
    origin: str
    said: tuple[str, ...]
    steps: int
    made: str
    best: str


@dataclass(frozen=True)
class Comparison:
    """Two runs of one task. `common` counts the decisions that both took before `step`, where they parted.

    `step` is "" if neither run differs from the other.
    """

    relation: str
    step: str
    common: int
    best_common: str
    one: Side
    other: Side

    @property
    def gain(self) -> float | None:
        """The second run's best speedup over the first's (1.0: equal); None if a run has none."""
        ours, theirs = self.one.summary.speedup, self.other.summary.speedup
        return theirs / ours if ours and theirs else None

    @property
    def is_sure(self) -> bool:
        """True if the two 95 % intervals do not overlap."""
        ours, theirs = self.one.summary.speedup_ci95, self.other.summary.speedup_ci95
        return bool(ours and theirs and (ours[1] < theirs[0] or theirs[1] < ours[0]))


def compare_runs(one: RunDirectory, other: RunDirectory) -> Comparison:
    """Compares two runs of one task step by step. Raises UsageError for runs of different tasks."""
    if one.get("task") != other.get("task"):
        raise UsageError(
            f"{one.id} and {other.id} are runs of different tasks or scales", "compare runs of one task and one scale"
        )
    first, second = _by_step(one), _by_step(other)
    order = list(dict.fromkeys([*first, *second]))
    common = [step for step in order if step in first and step in second and _same(first[step], second[step])]
    step = next((step for step in order if step not in common), "")
    views = [RunView(run) for run in (one, other)]
    heard = [tuple(item.directive.text for item in view.said) for view in views]
    shared = sum(1 for _ in _while_equal(*heard))
    ours, theirs = (
        Side(
            summary=view.summary,
            name=view.run.id,
            origin=_origin(view.run),
            said=told[shared:],
            steps=len(steps),
            made=_made(steps.get(step), view.history),
            best=view.best.words if view.best else "-",
        )
        for view, told, steps in zip(views, heard, (first, second), strict=True)
    )
    best = _best_of({first[step].candidate.id for step in common}, views[0].history)
    return Comparison(
        relation=_relation(one, other), step=step, common=len(common), best_common=best, one=ours, other=theirs
    )


def _best_of(names: set[str], history: History) -> str:
    """The fastest correct one of these candidates, with its speedup; "" if there is none."""
    known = {name: found.speedup for name in names if (found := history.outcomes.get(name)) and found.speedup}
    best = max(known, key=lambda name: known[name], default="")
    return f"{best} {known[best]:.2f}x" if best else ""


def lines_of(found: Comparison) -> list[str]:
    """The comparison in words, a small table first."""
    rows = [("", found.one.name, found.other.name)]
    rows += [(what, cell(found.one), cell(found.other)) for what, cell in _ROWS]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    table = [f"{a.ljust(widths[0])}  {b.ljust(widths[1])}  {c}".rstrip() for a, b, c in rows]
    return [*table, *_words(found)]


def _words(found: Comparison) -> Iterator[str]:
    """Yields the comparison as sentences: what both share, where they parted, what each did there, and the gain."""
    yield found.relation
    if found.common:
        best = f", the best of them {found.best_common}" if found.best_common else ""
        yield f"They share {found.common} candidates{best}."
    if not found.step:
        yield "Neither has decided anything that the other has not."
        return
    yield f"They parted at {found.step}:"
    for side in (found.one, found.other):
        yield f"  {side.name}: {side.made}"
    for side in (found.one, found.other):
        if side.said:
            yield f"Only {side.name} was told: {'; '.join(side.said)}"
    if found.gain is None:
        yield "What it brought cannot be said yet: one of them has no correct kernel."
        return
    sure = "the intervals do not overlap" if found.is_sure else "the intervals overlap: it may be noise"
    gain = f"{100 * (found.gain - 1):+.1f} %"
    yield f"It brought {gain}: the best of {found.other.name} against that of {found.one.name}; {sure}."


_ROWS: tuple[tuple[str, Callable[[Side], str]], ...] = (
    ("forked from", lambda side: side.origin or "-"),
    ("models", lambda side: side.summary.brain),
    ("verdict", lambda side: side.summary.verdict),
    ("best", lambda side: side.best),
    ("evaluations", lambda side: str(side.summary.evaluations)),
    ("minutes", lambda side: f"{side.summary.wall_s / 60:.1f}"),
    ("tokens", lambda side: str(side.summary.tokens)),
    ("dollars", lambda side: f"{side.summary.dollars:.2f}" if side.summary.priced else "unknown"),
)


def _by_step(run: RunDirectory) -> dict[str, Decision]:
    """Step -> what it decided, in the order of time."""
    return {item.step: item for item in run.decisions(by_time=True)}


def _same(one: Decision, other: Decision) -> bool:
    """True if both decisions led to the same source, with the same parents."""
    return one.candidate.source == other.candidate.source and one.candidate.parents == other.candidate.parents


def _while_equal(one: tuple[str, ...], other: tuple[str, ...]) -> Iterator[str]:
    """Yields the common beginning of two sequences."""
    for ours, theirs in zip(one, other, strict=False):
        if ours != theirs:
            return
        yield ours


def _made(decision: Decision | None, history: History) -> str:
    """A run's decision at the parting step in words."""
    if decision is None:
        return "did not take this step"
    step = next((step for step in history.steps if step.candidate == decision.candidate.id), None)
    if step is None:
        return f"{decision.candidate.id} (a first candidate)"
    return f"@{step.expert} {step.parent} -> {history.result(step)}: {step.change}"


def _origin(run: RunDirectory) -> str:
    """The run and step that a run was forked from, "RUN@STEP"; "" if it was not forked."""
    origin = run.origin
    return f"{origin.run}@{origin.step or 'end'}" if origin else ""


def _relation(one: RunDirectory, other: RunDirectory) -> str:
    """The sentence that says which run is a fork of which, or that both are independent."""
    for elder, younger in ((one, other), (other, one)):
        origin = younger.origin
        if origin and origin.run == elder.id:
            return f"{younger.id} is a fork of {elder.id}, {_from(origin.step)}."
    origins = [run.origin for run in (one, other)]
    if origins[0] and origins[1] and origins[0].run == origins[1].run:
        steps = " and ".join(_from(origin.step) for origin in origins if origin)
        return f"Both are forks of {origins[0].run}, {steps}."
    return "Neither was forked from the other: they are two runs of one task."


def _from(step: str) -> str:
    """ "from before" a step; without one, from the end of the search, in words."""
    return f"from before {step}" if step else "from where its search began to end"
