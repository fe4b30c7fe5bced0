"""The record of an expert: its mandate, playbook, prompt and allowed tools. Each expert has a file of its own."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from foundry.agents.situation import Situation
from foundry.agents.talk import ToolName
from foundry.knowledge.thought import Aspect, ExpertName, Move


@dataclass(frozen=True)
class Opinion:
    """How much an expert likes a move: 1.0 is neutral, 2.0 makes it twice as likely, 0.0 rules it out. `because` gives
    the reason with its numbers."""

    weight: float
    because: str = ""


def no_opinion(move: Move, situation: Situation) -> Opinion:
    """A weight of 1.0 and no reason: experts without rules of thumb of their own hold it of every move."""
    return Opinion(1.0)


@dataclass(frozen=True)
class Expert:
    """One expert.

    `aspects`: the aspects whose moves it may make, each with its weight.
    `opinion`: a further weight for one move in one situation.
    `answers`: the diagnoses about which it is asked first.
    `calls`: the tools that it may call before it answers, where a chat model thinks (agents/talk.py).
    `tunes`: it hands a new structure to the tuner before it changes single numbers.
    """

    name: ExpertName
    mandate: str
    prompt: str  # agents/prompts/<prompt>.md
    aspects: Mapping[Aspect, float] = field(default_factory=dict)
    answers: Mapping[str, float] = field(default_factory=dict)  # limiter or failure -> how much it is this one's job
    opinion: Callable[[Move, Situation], Opinion] = no_opinion
    calls: tuple[ToolName, ...] = ()
    tunes: bool = False


@cache
def experts() -> Mapping[str, Expert]:
    """Every expert by name: each module of agents/experts that holds an `EXPERT`. A fifth is one more file."""
    package = importlib.import_module("foundry.agents.experts")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = (importlib.import_module(f"{package.__name__}.{name}") for name in names)
    found = (getattr(module, "EXPERT", None) for module in modules)
    return {expert.name: expert for expert in found if isinstance(expert, Expert)}
