"""The task's standing instructions: what its author would otherwise say to the experts at the start of every run."""

from __future__ import annotations

from foundry.agents.directives import parse
from foundry.knowledge.thought import Directive


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
