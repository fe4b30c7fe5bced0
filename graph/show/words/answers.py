"""Answers to a user's questions from the recorded trace: status, best, ranking, cost, tried, why, show, diff."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from foundry.agents.directives import RunQuestion, forms
from foundry.graph.run.inbox import Acknowledgement, find_wanted_state, in_force
from foundry.graph.run.run_directory import Decision, RunDirectory
from foundry.graph.run.summary import Summary, kept_state, summarise
from foundry.graph.search.orders import USER
from foundry.graph.show.effects import History, Step
from foundry.graph.show.ranking import Ranking
from foundry.graph.show.words.trace import compare_kernels, diff
from foundry.knowledge.candidate import Candidate, Evaluation, Stage
from foundry.knowledge.merit import standing
from foundry.knowledge.reasons import WORDS
from foundry.knowledge.ruling import rule
from foundry.knowledge.thought import Move
from foundry.tools.words import to_paste

MOST_STEPS = 40  # that an answer lists
MOST_KERNELS, MOST_CHARS = 3, 6000  # that a question may name, and of each of them


def answer(run: RunDirectory, question: RunQuestion) -> str:
    """The answer in plain text; what it says names candidates and steps, which `why` and `show` explain further.
    Raises UsageError when the question names what the run does not have."""
    return _ANSWERS[question.verb](run, question)


def context(run: RunDirectory, question: str) -> str:
    """What a model is told of a run before it answers a question in full language: how it stands, what was said and
    tried, and the kernels that the question names."""
    named = [name for name in dict.fromkeys(re.findall(r"\bc\d+\b", question)) if run.decision(name)][:MOST_KERNELS]
    kernels = [show(run, name)[:MOST_CHARS] for name in named]
    return "\n\n".join((status(run), directives(run), tried(run), *kernels))


def directives(run: RunDirectory) -> str:
    """What users said, oldest first, and what came of it."""
    said = run.inbox.read()
    kept = {item.id for item in in_force(said)}
    taken, history = run.inbox.acknowledgements(), History.read(run)
    lines = []
    for item in said:
        effect = history.effect(item, taken) if item.id in kept else "was taken back"
        island = f" (island {item.island})" if item.island is not None and "island" not in item.text else ""
        lines.append(f"d{item.id} {item.text}{island}: {effect}")
    return "\n".join(lines) or "Nobody has said anything to this run."


def tried(run: RunDirectory, about: str = "") -> str:
    """The steps that have to do with something (an expert, a move, a tunable, a word of the reasons), the latest
    first."""
    history = History.read(run)
    word = about.lower().rstrip("s")
    steps = [step for step in history.steps if not word or word in _said_of(step)]
    if not steps:
        return f"No step has had to do with {about!r} yet." if about else "No step has been taken yet."
    better = sum(1 for step in steps if history.gain(step) > 0.0)
    lines = [f"{len(steps)} steps{f' about {about}' if about else ''}, {better} of them faster than where they began:"]
    for step in reversed(steps[-MOST_STEPS:]):
        cites = f" (follows {', '.join(step.cites)})" if step.cites else ""
        what = ", ".join(step.moves) or step.rationale
        lines.append(f"{step.step} @{step.expert}: {step.parent} -> {history.result(step)}: {what}{cites}")
    if len(steps) > MOST_STEPS:
        lines.append(f"and {len(steps) - MOST_STEPS} earlier ones: {to_paste('foundry', 'agent', 'trace', run.id)}")
    return "\n".join(lines)


def _said_of(step: Step) -> str:
    return " ".join((step.expert, step.rationale, *step.moves)).lower()


def show(run: RunDirectory, name: str) -> str:
    """A candidate's story and its file."""
    return f"{story(run, name)}\n\n{run.text(_source(run, name))}"


def difference(run: RunDirectory, name: str, other: str) -> str:
    """What differs between two candidates, or between one and its parent: the recipe in words, then the files."""
    lines = compare_kernels(run, other, name) if other else diff(run, name)
    return "\n".join(lines) or f"{name} and {other} are the same file."


def _source(run: RunDirectory, name: str) -> str:
    decision = run.decision(name)
    return decision.candidate.source if decision else run.evaluation(name).candidate.source


def status(run: RunDirectory) -> str:
    """Where the run stands: budget, islands, best so far."""
    found = summarise(run)
    request = run.request
    lines = [
        f"{run.id}: {_state(run)}. {found.evaluations} of {request.max_evaluations} evaluations, "
        f"{found.wall_s / 60:.1f} minutes (the search may take {request.max_minutes:g}).",
        _best_line(found),
    ]
    if len(found.models) > 1:
        lines += [f"Model {record.words}." for record in found.models]
    if found.ending:
        lines.append(f"The search ended: {found.ending}.")
    lines += _stopped(found.islands)
    taken = run.inbox.acknowledgements()
    for directive in in_force(run.inbox.read()):
        readers = [item for item in taken if item.directive == directive.id]
        if not readers:
            lines.append(f"d{directive.id} waits for the next step: {directive.text}")
        lines += [f"d{directive.id} ({directive.text}): {answer}" for answer in refusals(readers)]
    return "\n".join(lines)


def _state(run: RunDirectory) -> str:
    """How the run stands, in a word or two; it is paused once the word to pause is taken."""
    if not run.is_active:
        return kept_state(run)
    return "paused" if is_paused(run) else "at work"


def is_paused(run: RunDirectory) -> bool:
    """Whether a run that goes on rests because somebody said so."""
    wanted, number = find_wanted_state(run.inbox.read())
    is_taken = any(item.directive == number for item in run.inbox.acknowledgements())
    return run.is_active and wanted == "pause" and is_taken


def _stopped(islands: Mapping[str, str]) -> list[str]:
    """`Islands 0, 2 stopped: budget: 24 evaluations.`, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for island, reason in sorted(islands.items(), key=lambda item: int(item[0])):
        by_reason.setdefault(reason, []).append(island)
    return [
        f"Island{'s' if len(numbers) > 1 else ''} {', '.join(numbers)} stopped: {reason}."
        for reason, numbers in by_reason.items()
    ]


def refusals(taken: list[Acknowledgement]) -> list[str]:
    """The reasons why experts cannot follow a directive, each once, with the experts that gave it."""
    readers: dict[str, list[str]] = {}
    for item in taken:
        if item.answer:
            readers.setdefault(item.answer, []).append(item.reader)
    return [f"{answer} ({', '.join(names)})" for answer, names in readers.items()]


def best(run: RunDirectory) -> str:
    """The best candidate's story, or that there is none."""
    found = summarise(run)
    return story(run, found.candidate) if found.candidate else "No candidate is correct and clean yet."


def cost(run: RunDirectory) -> str:
    """Where time, tokens and money went."""
    found = summarise(run)
    split = found.time
    parts = ", ".join(
        f"{name} {split[f'{name}_s']:.1f} s"
        for name in ("compile", "run", "time", "profile", "waiting", "thinking", "overhead")
    )
    return (
        f"{found.wall_s:.1f} s of wall time for {found.evaluations} evaluations ({parts}; overhead is "
        f"{100 * split['overhead_share']:.1f} % of the wall). {found.tokens} tokens, "
        f"{f'{found.dollars:.4f} dollars' if found.priced else 'price unknown'} with the {found.brain} brain."
    )


def story(run: RunDirectory, name: str) -> str:
    """One candidate from proposal to verdict. Raises UsageError when the run does not know it."""
    decision = run.decision(name)
    stages = _stages(run, name)
    lines = [_origin(decision.candidate if decision else run.evaluation(name).candidate, decision)]
    if decision is not None and decision.proposal is not None:
        proposal, diagnosis, told = decision.proposal, decision.diagnosis, ""
        if diagnosis is not None:
            what = diagnosis.failure or diagnosis.limiter
            lines.append(
                f"Diagnosis of {proposal.parent}: {what}. {_sentence(diagnosis.evidence)} {diagnosis.action}".rstrip()
            )
            told = f"{what}: {diagnosis.evidence}. "  # the playbook's reasons begin with the diagnosis
        lines.append(
            f"{_who(proposal.expert)} proposed {_moves(proposal.moves)}: {proposal.rationale.removeprefix(told)}"
        )
        lines.append(f"Expected: {proposal.expected}")
        if proposal.cites:
            lines.append(f"It follows {_said(run, proposal.cites)}.")
    lines += _verdict_lines(run.evaluation(name), stages) if stages else ["It is not evaluated yet."]
    lines += Ranking(run).why(name)
    return "\n".join(line for line in lines if line)


def _origin(candidate: Candidate, decision: Decision | None) -> str:
    if candidate.island < 0:
        return f"{candidate.id} is a first candidate ({candidate.proposal or candidate.origin})."
    step = f" at {decision.step}" if decision else ""
    return f"{candidate.id} was made from {', '.join(candidate.parents)} on island {candidate.island}{step}."


def _sentence(text: str) -> str:
    return f"{text}." if text and text[-1] not in ".!?" else text


def _who(expert: str) -> str:
    return "The user" if expert == USER else f"The {expert} expert"


def _said(run: RunDirectory, cites: tuple[str, ...]) -> str:
    """`d1 (@tiling avoid unroll 8), r07c`: a user's words beside their number; other ids are those of lessons."""
    texts = {f"d{item.id}": item.text for item in run.inbox.read()}
    return ", ".join(f"{name} ({texts[name]})" if name in texts else name for name in cites)


def _moves(moves: tuple[Move, ...]) -> str:
    return ", ".join(move.key for move in moves) or "a kernel of its own"


def _stages(run: RunDirectory, name: str) -> list[Stage]:
    rows = run.database.run("SELECT stage FROM evaluations WHERE candidate = ? ORDER BY at", (name,))
    return [row[0] for row in rows]


def _verdict_lines(evaluation: Evaluation, stages: list[Stage]) -> list[str]:
    lines = []
    if not evaluation.build.ok:
        return [f"It did not compile: {evaluation.build.first_error}"]
    verdict, timing, profile, ruling = evaluation.verdict, evaluation.timing, evaluation.profile, rule(evaluation)
    if verdict is not None and not verdict.correct:
        return [f"It was rejected as {ruling.outcome}: {ruling.evidence}"]
    if ruling.outcome in WORDS and not (timing and timing.problem):
        return [f"The auditor vetoed it, because {WORDS[ruling.outcome]}: {ruling.evidence}"]
    if verdict is not None:
        lines.append(f"It is correct (class {verdict.accuracy_class}, checked at: {', '.join(stages)}).")
    if timing is not None and timing.problem:
        lines.append(f"It could not be timed: {timing.problem}")
    elif timing is not None:
        low, high = timing.speedup_ci95
        lines.append(
            f"{timing.candidate_ms:.4g} ms against {timing.baseline_ms:.4g} ms eager: {timing.speedup:.2f}x "
            f"({low:.2f} to {high:.2f}, {timing.pairs} pairs, {timing.stage})."
        )
    if profile is not None:
        lines.append(f"It reaches {100 * profile.fraction_of_floor:.0f} % of the roofline floor ({profile.rung}).")
    return lines


def _best_line(found: Summary) -> str:
    if found.speedup is None or found.speedup_ci95 is None:
        return "No candidate is correct and clean yet."
    low, high = found.speedup_ci95
    words = f"Best: {found.candidate}, {found.speedup:.2f}x over PyTorch eager ({low:.2f} to {high:.2f})."
    return f"{words} It is slower than eager." if standing((low, high)) == "slower" else words


_ANSWERS: dict[str, Callable[[RunDirectory, RunQuestion], str]] = {
    "status": lambda run, _: status(run),
    "best": lambda run, _: best(run),
    "ranking": lambda run, _: "\n".join(Ranking(run).lines()),
    "cost": lambda run, _: cost(run),
    "help": lambda *_: forms(),
    "directives": lambda run, _: directives(run),
    "tried": lambda run, asked: tried(run, asked.about),
    "why": lambda run, asked: story(run, asked.candidate),
    "show": lambda run, asked: show(run, asked.candidate),
    "diff": lambda run, asked: difference(run, asked.candidate, asked.other),
}
