"""Playbook cards: what a kernel engineer would try, when and why; one Markdown file each.

A card answers one diagnosis. Its head says which aspects of a kernel address it and how much (`aspects: fusion=3
tile=0.5`, 1 is indifferent) and the one action to recommend; its body is for people and for chat models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import get_args

from foundry.knowledge.limits import Limiter
from foundry.knowledge.thought import Aspect, Failure


@dataclass(frozen=True)
class Card:
    """`name` is a limiter or a failure."""

    name: str
    action: str
    aspects: Mapping[Aspect, float]
    body: str

    def weight(self, aspect: Aspect) -> float:
        """The card's factor for moves of this aspect; 1.0 if it names none."""
        return self.aspects.get(aspect, 1.0)


@cache
def cards() -> Mapping[str, Card]:
    """Every card by name, read from the Markdown files of this package. Raises ValueError with the card and its
    fault."""
    found = {}
    for entry in resources.files("foundry.knowledge.cards").iterdir():
        if entry.name.endswith(".md"):
            card = parse(entry.name.removesuffix(".md"), entry.read_text(encoding="utf-8"))
            found[card.name] = card
    return found


def parse(name: str, text: str) -> Card:
    """A card from its text: `---`, lines `key: value`, `---`, body. Raises ValueError for another form or an unknown
    name."""
    parts = text.split("---\n", 2)
    if len(parts) != 3 or parts[0].strip():
        raise ValueError(f"card {name}: no head between two --- lines")
    head = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in parts[1].splitlines())}
    if name not in (*get_args(Limiter), *get_args(Failure)):
        raise ValueError(f"card {name}: not the name of a limiter or a failure")
    if not head.get("action"):
        raise ValueError(f"card {name}: no action")
    return Card(name, head["action"], _aspects(name, head.get("aspects", "")), parts[2].strip())


def _aspects(name: str, text: str) -> dict[Aspect, float]:
    """The weights in a card's text "aspect=weight ..." by aspect. Raises ValueError for an unknown aspect."""
    found: dict[Aspect, float] = {}
    known: dict[str, Aspect] = {aspect: aspect for aspect in get_args(Aspect)}
    for item in text.split():
        key, _, value = item.partition("=")
        if key not in known:
            raise ValueError(f"card {name}: {key!r} is not an aspect ({', '.join(known)})")
        found[known[key]] = float(value)
    return found
