"""Answers to a user's questions from the recorded trace: status, best, ranking, cost, tried, why, show, diff."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from foundry.agents.directives import RunQuestion, forms
from foundry.graph.run.inbox import find_wanted_state
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import kept_state
from foundry.graph.show.effects import Step
from foundry.graph.show.view import RunView
from foundry.graph.show.words.candidate import compare_kernels, diff, story
from foundry.tools.words import count_words, to_paste

NOTHING_YET = "No candidate is correct and clean yet."
MOST_STEPS = 40  # that an answer lists
MOST_KERNELS, MOST_CHARS = 3, 6000  # that a question may name, and of each of them


def answer(run: RunDirectory, question: RunQuestion) -> str:
    """The answer in plain text; it names candidates and steps, which `why` and `show` explain further.

    Raises UsageError if the question names something that the run does not have.
    """
    return _ANSWERS[question.verb](RunView(run), question)


def context(run: RunDirectory, question: str) -> str:
    """The prompt's text about a run for a model that answers a free question.

    It holds the run's status, its directives, its steps, and the kernels that the question names.
    """
    named = [name for name in dict.fromkeys(re.findall(r"\bc\d+\b", question)) if run.decision(name)][:MOST_KERNELS]
    view = RunView(run)
    kernels = [show(view, name)[:MOST_CHARS] for name in named]
    return "\n\n".join((status(view), directives(view), tried(view), *kernels))


def directives(view: RunView) -> str:
    """The users' directives, oldest first, and their effects."""
    lines = []
    for said in view.said:
        item = said.directive
        effect = view.history.effect(item, said.readers) if said.is_in_force else "was taken back"
        island = f" (island {item.island})" if item.island is not None and "island" not in item.text else ""
        lines.append(f"d{item.id} {item.text}{island}: {effect}")
    return "\n".join(lines) or "No directives yet."


def tried(view: RunView, about: str = "") -> str:
    """The steps about `about` (an expert, a move, a tunable, a word of the reasons; "" for all), the latest first."""
    history = view.history
    word = about.lower().rstrip("s")
    steps = [step for step in history.steps if not word or word in _said_of(step)]
    if not steps:
        return f"No step has had to do with {about!r} yet." if about else "No step has been taken yet."
    better = sum(1 for step in steps if history.gain(step) > 0.0)
    lines = [f"{len(steps)} steps{f' about {about}' if about else ''}, {better} of them faster than where they began:"]
    for step in reversed(steps[-MOST_STEPS:]):
        cites = f" (follows {', '.join(step.cites)})" if step.cites else ""
        lines.append(f"{step.step} @{step.expert}: {step.parent} -> {history.result(step)}: {step.change}{cites}")
    if len(steps) > MOST_STEPS:
        earlier = len(steps) - MOST_STEPS
        lines.append(f"and {earlier} earlier ones: {to_paste('foundry', 'agent', 'trace', view.run.id)}")
    return "\n".join(lines)


def _said_of(step: Step) -> str:
    """Expert, rationale and moves of a step in lower case, to be searched."""
    return " ".join((step.expert, step.rationale, step.words, *step.moves)).lower()


def show(view: RunView, name: str) -> str:
    """A candidate's story and its file."""
    return "\n".join([*story(view, name), "", view.run.text(view.candidate(name).source)])


def difference(view: RunView, name: str, other: str) -> str:
    """The differences between two candidates, or between one and its parent: the recipe in words, then the files."""
    lines = compare_kernels(view.run, other, name) if other else diff(view.run, name)
    return "\n".join(lines) or f"{name} and {other} are the same file."


def status(view: RunView) -> str:
    """The run's status: state, budget, best so far, models, islands that stopped, directives that wait or were
    refused."""
    run, found, request = view.run, view.summary, view.run.request
    lines = [
        f"{run.id}: {_state(run)}. {found.evaluations} of {request.max_evaluations} evaluations, "
        f"{found.wall_s / 60:.1f} minutes (the search may take {request.max_minutes:g}).",
        f"Best: {view.best.words}{view.best.remark}." if view.best else NOTHING_YET,
    ]
    if len(found.models) > 1:
        lines += [f"Model {record.words}." for record in found.models]
    if found.ending:
        lines.append(f"The search ended: {found.ending}.")
    lines += _stopped(found.islands)
    for said in view.said:
        item = said.directive
        if said.is_in_force and not said.readers:
            lines.append(f"d{item.id} waits for the next step: {item.text}")
        lines += [f"d{item.id} ({item.text}): {why}" for why in said.refusals if said.is_in_force]
    return "\n".join(lines)


def _state(run: RunDirectory) -> str:
    """The run's state in a word or two; it is paused once the directive to pause is taken."""
    if not run.is_active:
        return kept_state(run)
    return "paused" if is_paused(run) else "at work"


def is_paused(run: RunDirectory) -> bool:
    """True if an active run rests because of a user's directive."""
    wanted, number = find_wanted_state(run.inbox.read())
    is_taken = any(item.directive == number for item in run.inbox.acknowledgements())
    return run.is_active and wanted == "pause" and is_taken


def _stopped(islands: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the islands that it stopped: `Islands 0, 2 stopped: budget: 24 evaluations.`"""
    by_reason: dict[str, list[str]] = {}
    for island, reason in sorted(islands.items(), key=lambda item: int(item[0])):
        by_reason.setdefault(reason, []).append(island)
    return [
        f"Island{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} stopped: {reason}."
        for reason, numbers in by_reason.items()
    ]


def best(view: RunView) -> str:
    """The best candidate's story, or that there is none."""
    return "\n".join(story(view, view.summary.candidate)) if view.summary.candidate else NOTHING_YET


def cost(view: RunView) -> str:
    """The run's time, tokens and dollars, in words."""
    found = view.summary
    return (
        f"{found.wall_s:.0f} s for {count_words(found.evaluations, 'evaluation')} ({found.time_words}). "
        f"{found.tokens} tokens, "
        f"{f'{found.dollars:.4f} dollars' if found.priced else 'price unknown'} with the {found.brain} brain."
    )


_ANSWERS: dict[str, Callable[[RunView, RunQuestion], str]] = {
    "status": lambda view, _: status(view),
    "best": lambda view, _: best(view),
    "ranking": lambda view, _: "\n".join(view.ranking.lines()),
    "cost": lambda view, _: cost(view),
    "help": lambda *_: forms(),
    "directives": lambda view, _: directives(view),
    "tried": lambda view, asked: tried(view, asked.about),
    "why": lambda view, asked: "\n".join(story(view, asked.candidate)),
    "show": lambda view, asked: show(view, asked.candidate),
    "diff": lambda view, asked: difference(view, asked.candidate, asked.other),
}
