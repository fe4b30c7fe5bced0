"""What `foundry agent chat` does with a line: answer it from the trace, or post it to the experts' inbox."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foundry.agents.directives import NotUnderstood, RunQuestion, addressee, parse, promise
from foundry.agents.explanation import answer_misunderstood, explain, stands_for
from foundry.graph.run.opening import Parts
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.thinking import ask_model
from foundry.graph.search.known import read_known_kernels
from foundry.graph.views.answers import answer, context, refusals
from foundry.graph.views.checks import check
from foundry.knowledge.thought import Directive

POLL_S = 0.25
PAID = ("tokens", "dollars", "calls")  # units of a budget that models spend


@dataclass(frozen=True)
class Reply:
    """`directive` is the id of what was posted, 0 when nothing was; `understood` False: the line is
    refused and leaves nothing behind."""

    text: str
    directive: int = 0
    understood: bool = True


def say(run: RunDirectory, line: str, parts: Parts | None = None) -> Reply:
    """Takes one line of a user. A directive that no kernel of the run can follow is refused with the reason. With a
    chat model, free text goes to the experts, which write kernels of their own, and free questions go to the model."""
    parts = parts or Parts()
    said = parse(line)
    if isinstance(said, RunQuestion):
        return Reply(answer(run, said))
    if isinstance(said, Directive) and said.to == "run":
        checked = check(run, said, parts)
        if checked.refusal:
            return Reply(checked.refusal, understood=False)
        return _post(run, checked.order, promise(checked.order))
    has_model = bool(run.request.models)
    if has_model and isinstance(said, NotUnderstood) and line.rstrip().endswith("?"):
        return _ask_model(run, line, parts)
    candidates, graph = read_known_kernels(run, parts.library())
    if isinstance(said, NotUnderstood):
        if not has_model:
            return Reply(answer_misunderstood(said, candidates), understood=False)
        return _post(run, said.directive, f"{_reader(said.directive)} will read it as it stands.")
    why = explain(said, candidates, graph)
    if not why:
        return _post(run, said, " ".join(filter(None, (promise(said), stands_for(said, candidates)))))
    if not has_model:
        return Reply(why, understood=False)
    return _post(run, said, f"{why} {_reader(said)} will read it as it stands, and may write such a kernel.")


def costs(run: RunDirectory, line: str) -> bool:
    """Whether a line would have a model answer, bring one in or let one spend more."""
    said = parse(line)
    if isinstance(said, NotUnderstood):
        return bool(run.request.models) and line.rstrip().endswith("?")
    if isinstance(said, RunQuestion):
        return False
    return said.verb == "model" or (said.verb == "budget" and said.command["unit"] in PAID)


def wait_for_acknowledgement(run: RunDirectory, directive: int, limit_s: float) -> str:
    """Who took a directive, or that nobody has within the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        taken = [item for item in run.inbox.acknowledgements() if item.directive == directive]
        if taken:
            readers = ", ".join(f"{item.reader} at {item.step}" for item in taken)
            return "\n".join([f"d{directive} taken by {readers}", *refusals(taken)])
        if time.monotonic() >= deadline or not run.is_active:
            return f"d{directive} waits: no expert has reached a safe boundary yet"
        time.sleep(POLL_S)


def _post(run: RunDirectory, said: Directive, outlook: str) -> Reply:
    """Puts a directive into the inbox; `outlook` says what will be done with it."""
    number = run.inbox.post(said)
    if run.is_active:
        return Reply(f"d{number}: {outlook} It is taken at the next safe boundary.", number)
    if run.get("status") == "finished":
        hint = f'write it as `instructions = "..."` into {Path(run.request.task).stem}.toml and solve again'
        return Reply(f"d{number} is recorded, but the run is finished and no expert reads on: {hint}.")
    return Reply(f"d{number}: {outlook} It is taken when the run goes on: foundry agent resume {run.path}.", number)


def _ask_model(run: RunDirectory, line: str, parts: Parts) -> Reply:
    told, problem = ask_model(run, line, context(run), parts)
    return Reply(told or f"The model gave no answer: {problem or 'it was empty'}.", understood=bool(told))


def _reader(directive: Directive) -> str:
    """Who will read a directive, as the beginning of a sentence."""
    name = addressee(directive)
    return name[0].upper() + name[1:]


def typed_lines() -> Iterator[str]:
    """Lines typed or piped; a prompt on a terminal."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if line.strip() in ("exit", "quit"):
            return
        if line.strip():
            yield line
