"""The task's standing instructions: what its author would otherwise say to the experts at the start of every run."""

from __future__ import annotations

from foundry.agents.directives import NotUnderstood, parse
from foundry.knowledge.errors import TaskError
from foundry.knowledge.thought import Directive

READERS = "`foundry agent chat last help` lists what the playbook reads; a chat model reads free text too"


def split_instructions(text: str) -> tuple[list[Directive], list[str]]:
    """(directives of the steering language, free text), line by line. Directives go to the inbox before the first
    step, so that they are acknowledged and cited like any other; free text is read by chat models only."""
    directives: list[Directive] = []
    free: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        said = parse(line)
        if isinstance(said, Directive) and said.to != "run":
            directives.append(said)
        else:
            free.append(line)
    return directives, free


def check_language(text: str) -> None:
    """For a run in which no chat model thinks. Raises TaskError for the first line that the playbook cannot read: a
    typo would be noticed only at the run's end."""
    for line in split_instructions(text)[1]:
        said = parse(line)
        why = said.reason if isinstance(said, NotUnderstood) else f"{line!r} speaks to a run, not to its experts."
        raise TaskError(f"the task's instructions: {why}", READERS)
