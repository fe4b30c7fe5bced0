"""The task's standing instructions: what its author would otherwise say to the experts at the start of every run."""

from __future__ import annotations

from foundry.agents.directives import Understood, parse


def split_instructions(text: str) -> tuple[list[str], list[str]]:
    """(directives of the steering language, free text), line by line. Directives go to the inbox before the first
    step, so that they are acknowledged and cited like any other; free text is read by chat models only."""
    directives: list[str] = []
    free: list[str] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        parsed = parse(line)
        steers = isinstance(parsed, Understood) and not parsed.is_question and parsed.to != "run"
        (directives if steers else free).append(line)
    return directives, free
