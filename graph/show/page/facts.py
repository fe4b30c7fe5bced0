"""Everything that the page of a run shows, gathered once from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import Summary
from foundry.graph.show.page.activity import (
    DirectiveFacts,
    ExpertFacts,
    WorkSpan,
    directive_facts,
    expert_facts,
    work_spans,
)
from foundry.graph.show.page.candidates import CandidateFacts, candidate_facts
from foundry.graph.show.view import Measured, RunView
from foundry.graph.show.words.candidate import diff
from foundry.graph.show.words.ending import ending_lines
from foundry.knowledge.codec import decode
from foundry.knowledge.device import Device
from foundry.knowledge.errors import UsageError

MOST_ANCESTORS = 40
DIFF_CHARS = 40_000  # characters of one step's diff
ALL_DIFFS_CHARS = 400_000
CODE_CHARS = 400_000


@dataclass(frozen=True)
class Ancestry:
    """The best candidate's file, and what changed at each step from a seed to it, the latest step first."""

    candidate: str
    code: str
    line: list[str]
    diffs: list[tuple[str, str, str]] = field(default_factory=list)  # child, parent, unified diff


@dataclass(frozen=True)
class Roofline:
    """The device's measured rates, and the least time in ms that they allow for the task; 0.0 if unknown."""

    bytes_per_s: float = 0.0
    flops_per_s: float = 0.0
    floor_ms: float = 0.0


@dataclass(frozen=True)
class RunFacts:
    """The page's data. Times in seconds from the start of the run."""

    kind: str
    id: str
    change: str  # differs when something has happened since
    created: str
    device: str
    asked: dict[str, Any]
    verdict_lines: list[str]
    summary: Summary
    budget: dict[str, float]
    candidates: list[CandidateFacts]
    roofline: Roofline
    ancestry: Ancestry | None
    spans: list[WorkSpan]
    span_count: int
    directives: list[DirectiveFacts]
    experts: list[ExpertFacts]
    models: list[str]  # what each brought and cost, in words


def run_facts(run: RunDirectory, *, code: bool = True) -> RunFacts:
    """Reads a page's data from a run's folder; without `code` it has no files and no diffs."""
    change = change_of(run)  # first: what happens meanwhile is news
    view, request = RunView(run), run.request
    events, summary = view.events(), view.summary
    candidates = candidate_facts(view)
    spans, count = work_spans(events, view.began)
    limits = {"evaluations": float(request.max_evaluations), "minutes": request.max_minutes}
    return RunFacts(
        kind="run",
        id=run.id,
        change=change,
        created=run.get("created"),
        device=decode(Device, run.get("device")).name,
        asked={
            "effort": request.effort,
            "seed": request.seed,
            "islands": request.island_count,
            "policy": request.policy or "the task's",
            "brain": request.models.title,
        },
        verdict_lines=ending_lines(summary, request.task),
        summary=summary,
        budget=limits,
        candidates=candidates,
        roofline=_roofline(view.measured),
        ancestry=_ancestry(view, summary.candidate) if code and summary.candidate else None,
        spans=spans,
        span_count=count,
        directives=directive_facts(view),
        experts=expert_facts(events, candidates),
        models=[record.words for record in summary.models],
    )


def change_of(run: RunDirectory) -> str:
    """A fingerprint of a run's folder: it differs after each event, directive, acknowledgement or change of status."""
    last, over = run.database.run("SELECT COALESCE(MAX(id), 0), COUNT(ended) FROM events")[0]
    said = run.inbox.read()
    words = (last, over, said[-1].id if said else 0, len(run.inbox.acknowledgements()), run.get("status"))
    return " ".join(map(str, words))


def _roofline(measured: Sequence[Measured]) -> Roofline:
    """The roof that the profiles saw: the largest rates and the smallest floor; an empty one without profiles."""
    profiles = [one.evaluation.profile for one in measured if one.evaluation.profile is not None]
    if not profiles:
        return Roofline()
    return Roofline(
        max(profile.possible_bytes_per_s for profile in profiles),
        max(profile.possible_flops_per_s for profile in profiles),
        min(profile.allowed_floor_ms or profile.floor_ms for profile in profiles),
    )


def _ancestry(view: RunView, best: str) -> Ancestry:
    """The best candidate's line of parents with the code of the best and the differences between them, within
    limits."""
    run, line = view.run, view.lineage(best)[:MOST_ANCESTORS]
    diffs, left = [], ALL_DIFFS_CHARS
    for child, parent in pairwise(line):
        text = _diff_text(run, child)[: min(left, DIFF_CHARS)]
        left -= len(text)
        diffs.append((child, parent, text))
    try:
        code = run.text(run.evaluation(best).candidate.source)[:CODE_CHARS]
    except UsageError as error:
        code = str(error)
    return Ancestry(best, code, line, diffs)


def _diff_text(run: RunDirectory, child: str) -> str:
    """The difference between a candidate and its parent as text, or why there is none."""
    try:
        return "\n".join(diff(run, child))
    except UsageError as error:  # a parent that was never recorded: the reference, or a candidate of a killed step
        return str(error)
