"""A page's data about the work: spans of experts and tools, users' directives with their effects, and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foundry.graph.run.events import Event
from foundry.graph.show.effects import History, Step
from foundry.graph.show.page.candidates import CandidateFacts
from foundry.graph.show.view import RunView
from foundry.knowledge.step_words import spoken

MOST_SPANS = 8000  # the longest ones; a page of more would be slow to open
LABEL_CHARS = 160
LABELLED = ("error", "found", "outcome", "problem", "reason", "text", "evidence")


@dataclass(frozen=True)
class WorkSpan:
    """An expert or a tool at work, in seconds from the start of the run; `waited_s` of them for a lock."""

    island: int  # -1: the run itself
    kind: str  # thinking, compile, run, time, profile
    name: str
    step: str
    start_s: float
    end_s: float
    waited_s: float
    label: str


@dataclass(frozen=True)
class DirectiveEffect:
    """A candidate that was made to follow a directive; `lift` is its speedup over its parent's."""

    candidate: str
    expert: str
    outcome: str
    speedup: float | None
    lift: float | None


@dataclass(frozen=True)
class DirectiveFacts:
    """A user's directive, its readers with their steps, and the candidates that follow it."""

    id: str
    to: str
    text: str
    posted_s: float
    taken: list[str]
    effects: list[DirectiveEffect]


@dataclass
class ExpertFacts:
    """Totals of one expert. Several experts work at once, so their seconds may add up to more than the run's."""

    expert: str
    calls: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    dollars: float = 0.0
    failed_calls: int = 0
    proposals: int = 0
    correct: int = 0
    better: int = 0  # than the parent
    best: float | None = None
    outcomes: dict[str, int] = field(default_factory=dict)


def work_spans(events: Sequence[Event], began: float) -> tuple[list[WorkSpan], int]:
    """The MOST_SPANS longest ended spans of experts and tools, in order of their starts, and how many there were before
    the cut."""
    found = [
        WorkSpan(
            island=-1 if event.island is None else event.island,
            kind="thinking" if event.kind == "expert" else str(event.data.get("category", "run")),
            name=event.name,
            step=event.step,
            start_s=round(event.started - began, 3),
            end_s=round(event.ended - began, 3),
            waited_s=round(float(event.data.get("wait_s", 0.0)), 3),
            label=_label(event),
        )
        for event in events
        if event.ended is not None and event.kind in ("expert", "tool") and event.ended > event.started
    ]
    longest = sorted(found, key=lambda span: span.start_s - span.end_s)[:MOST_SPANS]
    return sorted(longest, key=lambda span: span.start_s), len(found)


def _label(event: Event) -> str:
    """The event's labelled facts that are not empty, as "name: value" in one line, cut at LABEL_CHARS."""
    said = [f"{name}: {event.data[name]}" for name in LABELLED if event.data.get(name)]
    return " ".join("; ".join(said).split())[:LABEL_CHARS]


def directive_facts(view: RunView) -> list[DirectiveFacts]:
    """Every directive with its readers and the candidates that follow it."""
    return [
        DirectiveFacts(
            id=f"d{said.directive.id}",
            to=said.directive.to,
            text=said.directive.text,
            posted_s=round(said.posted - view.began, 3),
            taken=[
                f"{item.reader} at {item.step}" + (f": {item.answer}" if item.answer else "") for item in said.readers
            ],
            effects=[_effect(view.history, step) for step in view.history.followers(said.directive, said.readers)],
        )
        for said in view.said
    ]


def _effect(history: History, step: Step) -> DirectiveEffect:
    """One candidate's facts as an effect of a directive."""
    found = history.outcomes.get(step.candidate)
    outcome, speedup = (spoken(found.outcome), found.speedup) if found else ("", None)
    return DirectiveEffect(step.candidate, step.expert, outcome, speedup, history.lift(step))


def expert_facts(events: Sequence[Event], candidates: Sequence[CandidateFacts]) -> list[ExpertFacts]:
    """Calls, cost, proposals and success of each expert, the one with the most seconds first."""
    found: dict[str, ExpertFacts] = {}

    def of(name: str) -> ExpertFacts:
        """The expert's facts so far; empty ones when it first comes up."""
        return found.setdefault(name, ExpertFacts(name))

    for event in events:
        if event.kind != "expert":
            continue
        data, facts = event.data, of(event.name)
        if "requests" in data:  # a chat model's call, recorded beside the expert's span
            facts.calls += int(data["requests"])
            facts.prompt_tokens += int(data["prompt_tokens"])
            facts.answer_tokens += int(data["completion_tokens"])
            facts.dollars += float(data["dollars"])
            facts.failed_calls += data["outcome"] not in ("answered", "repaired")
        else:
            facts.seconds += event.seconds or 0.0
    speedups = {one.id: one.speedup for one in candidates}
    for one in candidates:
        if one.change == "seed":
            continue
        facts = of(one.expert)
        before = speedups.get(one.parents[0]) if one.parents else None
        facts.proposals += 1
        facts.correct += one.verdict == "accepted"
        facts.better += bool(one.verdict == "accepted" and one.speedup and before and one.speedup > before)
        facts.outcomes[one.outcome] = facts.outcomes.get(one.outcome, 0) + 1
        if one.verdict == "accepted" and one.speedup:
            facts.best = max(facts.best or 0.0, one.speedup)
    return sorted(found.values(), key=lambda facts: -facts.seconds)
