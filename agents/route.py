"""Chooses the expert of the next step by the diagnosis, the island's role and the user's directives."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import get_args

from foundry.agents.brief import Brief
from foundry.agents.expert import Expert, experts
from foundry.agents.tuning import is_untuned
from foundry.knowledge.limits import Limiter
from foundry.knowledge.thought import Aspect, Diagnosis, ExpertName, Role

# How an island's role weights the moves made there, and with them the experts who make them.
ROLES: dict[Role, Mapping[Aspect, float]] = {
    "any": {},
    "fusion": {"fusion": 3, "rewrite": 2, "algorithm": 1.5, "tile": 0.7, "vector": 0.7, "memory": 0.8, "parallel": 0.7},
    "memory": {
        "memory": 2.5,
        "tile": 2,
        "vector": 1.8,
        "parallel": 1.5,
        "algorithm": 0.8,
        "fusion": 0.7,
        "rewrite": 0.6,
    },
    "parameters": {
        "tile": 2.5,
        "vector": 2.2,
        "parallel": 2,
        "memory": 1.6,
        "algorithm": 0.6,
        "fusion": 0.3,
        "rewrite": 0.3,
    },
    "algorithm": {
        "algorithm": 3,
        "rewrite": 3,
        "fusion": 1.5,
        "precision": 1.2,
        "tile": 0.7,
        "vector": 0.7,
        "parallel": 0.8,
    },
}

LEAST_SHARE = 0.1  # least weight of an expert over the best one's, because diagnoses are sometimes wrong


def route(brief: Brief, diagnosis: Diagnosis) -> ExpertName:
    """The expert for this step; the same for the same seed and step. A failure always goes to the diagnostician."""
    return ranking(brief, diagnosis)[0]


def ranking(brief: Brief, diagnosis: Diagnosis) -> tuple[ExpertName, ...]:
    """Every expert that may propose, in the order to ask them when the first has nothing left."""
    everyone = experts()
    if diagnosis.failure is not None:
        return ("diagnostician",)
    asked = _asked_by_user(brief, everyone) or _tuner(brief, everyone)
    if asked:
        return (asked, *_others(everyone, asked))
    makers = [expert for expert in everyone.values() if expert.aspects and diagnosis.limiter in expert.answers]
    weights = {expert.name: _weight(expert, brief.role, diagnosis.limiter or "") for expert in makers}
    least = LEAST_SHARE * max(weights.values(), default=0.0)
    weights = {name: max(weight, least) for name, weight in weights.items()}
    stream = random.Random(f"{brief.seed}:{brief.step}:route")
    order: list[ExpertName] = []
    while weights:
        names = sorted(weights)
        order.append(stream.choices(names, [weights[name] for name in names])[0])
        del weights[order[-1]]
    return tuple(order)


def _weight(expert: Expert, role: Role, limiter: str) -> float:
    """The weight of drawing an expert. It is squared, so that a clear case mostly goes to its expert and the others
    still get some steps."""
    liking = sum(ROLES[role].get(aspect, 1.0) for aspect in expert.aspects) / len(expert.aspects)
    return float((expert.answers[limiter] * liking) ** 2)


def _others(everyone: Mapping[str, Expert], first: str) -> tuple[ExpertName, ...]:
    """Names of the other experts that answer to a limiter, which means that they improve correct candidates."""
    limiters = set(get_args(Limiter))
    return tuple(item.name for item in everyone.values() if item.name != first and limiters & set(item.answers))


def _tuner(brief: Brief, everyone: Mapping[str, Expert]) -> ExpertName | None:
    """The expert that tunes, if the parent's structure is not tuned yet; its worth shows only then. Else None."""
    return next((expert.name for expert in everyone.values() if expert.tunes and is_untuned(brief)), None)


def _asked_by_user(brief: Brief, everyone: Mapping[str, Expert]) -> ExpertName | None:
    """The expert of the newest directive that the parent does not follow yet."""
    needed = {directive.id for _, directive in brief.obedience.required} if brief.obedience else set()
    for directive in sorted(brief.directives, key=lambda item: -item.id):
        here = directive.island in (None, brief.island)
        if here and directive.to in everyone and directive.id in needed and everyone[directive.to].aspects:
            return everyone[directive.to].name
    return None
