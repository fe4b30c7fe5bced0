"""Where in the archive improvement comes from: transitions parent -> child, and the gradients read from them.

Kernel Foundry (arXiv 2603.12440) weights three gradients over each coordinate: fitness (which direction raised the
speedup), improvement rate (how often it did) and exploration (where cells are empty), 0.4, 0.4 and 0.2. They weight
the choice of parents and become hints in words. Ours age by generation, not by the hour, so that a replay agrees.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Literal

from foundry.agents.brief import Hint
from foundry.graph.search.strategies.archive import Archive, best
from foundry.knowledge.merit import Estimate

FITNESS, RATE, EXPLORATION = 0.4, 0.4, 0.2
DECAY = 0.95  # per transition
HINT = 0.2  # a gradient below it says nothing
BLEND = 0.3  # share of the gradients in the weight of a parent, the rest is merit
KEPT = 256  # transitions an island remembers
LEVELS = 4
DIMENSIONS: tuple[Literal["d_mem", "d_algo", "d_sync"], ...] = ("d_mem", "d_algo", "d_sync")

# [parent cell, child cell, parent merit, child merit], as it stands in the graph's state
Transition = tuple[str, str, float, float]
Gradient = tuple[float, float, float]


def remember(transitions: Sequence[Transition], new: Transition) -> list[Transition]:
    """The transitions with a new one added and the oldest dropped."""
    return [*transitions, new][-KEPT:]


def gradient(cell: str, transitions: Sequence[Transition], archive: Archive) -> Gradient:
    """The weighted gradient at a cell, each component from -1 (go down in this coordinate) to 1."""
    here = [int(level) for level in cell]
    fitness = _fitness(transitions)
    rate = _rate(transitions)
    exploration = _exploration(here, archive)
    return (
        _clamp(FITNESS * fitness[0] + RATE * rate[0] + EXPLORATION * exploration[0]),
        _clamp(FITNESS * fitness[1] + RATE * rate[1] + EXPLORATION * exploration[1]),
        _clamp(FITNESS * fitness[2] + RATE * rate[2] + EXPLORATION * exploration[2]),
    )


def _fitness(transitions: Sequence[Transition]) -> list[float]:
    """Decayed mean of the relative merit change times the direction of the step, per coordinate."""
    sums, weights = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for age, (parent, child, before, after) in enumerate(reversed(transitions)):
        change = math.tanh(2 * (after - before) / max(before, 0.1))
        for dimension in range(3):
            step = int(child[dimension]) - int(parent[dimension])
            if step:
                weight = DECAY**age
                sums[dimension] += weight * change * math.copysign(1, step)
                weights[dimension] += weight
    return [total / weight if weight else 0.0 for total, weight in zip(sums, weights, strict=True)]


def _rate(transitions: Sequence[Transition]) -> list[float]:
    """Share of steps up that improved minus share of steps down that did, per coordinate; a direction counts from three
    tries on."""
    rates = []
    for dimension in range(3):
        share = {}
        for direction in (1, -1):
            steps = [
                after > before
                for parent, child, before, after in transitions
                if (int(child[dimension]) - int(parent[dimension])) * direction > 0
            ]
            share[direction] = sum(steps) / len(steps) if len(steps) >= 3 else 0.0
        rates.append(share[1] - share[-1])
    return rates


def _exploration(here: Sequence[int], archive: Archive) -> list[float]:
    """Direction towards empty cells (weight 1) and weak ones (weight: their lack of merit), by inverse distance."""
    top = best(archive)
    highest = top["merit"] if top else 1.0
    pull, total = [0.0, 0.0, 0.0], 0.0
    for number in range(LEVELS**3):
        there = [number // LEVELS**2, number // LEVELS % LEVELS, number % LEVELS]
        distance = math.dist(here, there)
        if distance == 0 or distance > 2:
            continue
        elite = archive.get("".join(map(str, there)))
        need = 1.0 if elite is None else max(0.0, 1.0 - elite["merit"] / highest)
        total += 1.0 / distance
        for dimension in range(3):
            pull[dimension] += need / distance * (there[dimension] - here[dimension]) / distance
    return [value / total if total else 0.0 for value in pull]


def _clamp(value: float) -> float:
    return max(-1.0, min(1.0, value))


def choose_parent(
    candidates: Mapping[str, tuple[str, float]],
    estimates: Mapping[str, Estimate],
    transitions: Sequence[Transition],
    archive: Archive,
    stream: random.Random,
) -> str:
    """One of `candidates` (id -> cell and merit): half of the time the one that may be the best, as probably as it is
    by the `estimates` of those that are correct (Thompson sampling); otherwise by merit blended with the length of the
    gradient at its cell."""
    ranked = sorted(candidates, key=lambda name: (-candidates[name][1], int(name[1:])))
    if len(ranked) == 1:
        return ranked[0]
    if stream.random() < 0.5:
        drawn = {name: stream.gauss(one.log_speedup, one.deviation) for name, one in sorted(estimates.items())}
        return max(drawn, key=lambda name: drawn[name], default=ranked[0])
    lengths = {cell: math.hypot(*gradient(cell, transitions, archive)) for cell, _ in candidates.values()}
    merits = [candidates[name][1] ** 2 for name in ranked]
    pulls = [lengths[candidates[name][0]] for name in ranked]
    merit_total, pull_total = sum(merits) or 1.0, sum(pulls) or 1.0
    weights = [
        (1 - BLEND) * value / merit_total + BLEND * pull / pull_total for value, pull in zip(merits, pulls, strict=True)
    ]
    if sum(weights) <= 0:
        return ranked[0]
    return stream.choices(ranked, weights)[0]


def hints(cell: str, transitions: Sequence[Transition], archive: Archive) -> tuple[Hint, ...]:
    """The gradients at a cell that are strong enough to tell something, strongest first; none before any transition."""
    if not transitions:
        return ()
    found = [Hint(*pair) for pair in zip(DIMENSIONS, gradient(cell, transitions, archive), strict=True)]
    return tuple(sorted((hint for hint in found if abs(hint.strength) >= HINT), key=lambda hint: -abs(hint.strength)))
