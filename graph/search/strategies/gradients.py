"""Finds where in the archive improvement comes from: transitions parent -> child, and the gradients read from them.

Kernel Foundry (arXiv 2603.12440) weights three gradients over each coordinate: fitness (which direction raised the
speedup), improvement rate (how often it did) and exploration (where cells are empty), 0.4, 0.4 and 0.2. They weight
the choice of parents and of moves, and become hints in words. Ours age by generation, not by the hour, so that a replay
agrees.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from foundry.graph.search.strategies.archive import Archive, Vector, blend, show_elites
from foundry.graph.search.strategy import Here, Strategy, Weights

if TYPE_CHECKING:
    from foundry.agents.brief import Brief
    from foundry.knowledge.candidate import Evaluation
    from foundry.knowledge.thought import ExpertName

FITNESS, RATE, EXPLORATION = 0.4, 0.4, 0.2
DECAY = 0.95  # per transition
HINT = 0.2  # a gradient below it says nothing
KEPT = 256  # transitions that an island remembers
UP, DOWN, LEAST, MOST = 1.4, 0.8, 0.5, 2.0  # weights of an aspect by hints
# The aspects behind each coordinate, and what a step along it is in a kernel.
ASPECTS = (("tile", "vector", "memory"), ("algorithm", "fusion", "rewrite"), ("parallel",))
HINTS = (
    (
        "move data better: wider vectors, tiles in cache or shared memory, register blocking, prefetch",
        "a simpler memory path did better: fewer staging levels",
    ),
    (
        "change the algorithm: fuse passes, reformulate, apply an exact rewrite",
        "the more direct algorithm did better: undo a reformulation",
    ),
    (
        "let threads cooperate more: split reductions over threads or blocks",
        "less synchronisation did better: give each thread work of its own",
    ),
)
Transition = tuple[str, str, float, float]  # parent cell, child cell, parent merit, child merit


def gradient(cell: str, transitions: Sequence[Transition], archive: Archive) -> Vector:
    """The weighted gradient at a cell, each component from -1 (go down in this coordinate) to 1."""
    parts = zip(_fitness(transitions), _rate(transitions), archive.exploration(cell), strict=True)
    first, second, third = (
        max(-1.0, min(1.0, FITNESS * fitness + RATE * rate + EXPLORATION * exploration))
        for fitness, rate, exploration in parts
    )
    return first, second, third


def _fitness(transitions: Sequence[Transition]) -> list[float]:
    """Decayed mean of the relative merit change times the direction of the step, per coordinate; 0 without steps."""
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
    """Share of steps up that improved minus share of steps down that did, per coordinate.

    A direction with fewer than three steps counts as 0.
    """
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


def add_hints(brief: Brief, found: Vector) -> Brief:
    """The brief with weights of aspects and notes by the gradient at its parent's cell; small parts are left out."""
    weights, notes = dict(brief.weights), list(brief.notes)
    for place in sorted(range(3), key=lambda place: -abs(found[place])):
        if abs(found[place]) < HINT:
            continue
        for aspect in ASPECTS[place]:
            weight = weights.get(aspect, 1.0) * (UP if found[place] > 0 else DOWN)
            weights[aspect] = min(MOST, max(LEAST, weight))
        notes.append(f"kernels near this one gained by this: {HINTS[place][found[place] < 0]}")
    return replace(brief, weights=weights, notes=tuple(notes))


class Gradients(Strategy):
    async def parents(self, here: Here, weights: Weights) -> Weights:
        """The weights, of which a part follows the length of the gradient at each candidate's cell."""
        archive, transitions = _read(here)
        cells = {name: archive.cells.get(name, "000") for name in weights}
        lengths = {cell: math.hypot(*gradient(cell, transitions, archive)) for cell in set(cells.values())}
        return blend(weights, {name: lengths[cell] for name, cell in cells.items()})

    async def propose(self, here: Here, brief: Brief, expert: ExpertName) -> Brief:
        """The brief with the best elites and, once there are transitions, hints from the gradient at the parent's
        cell."""
        archive, transitions = _read(here)
        brief = show_elites(brief, archive, here.services)
        if not transitions:
            return brief
        return add_hints(brief, gradient(archive.cells.get(brief.parent.candidate.id, "000"), transitions, archive))

    async def learn(self, here: Here, child: Evaluation | None) -> str:
        """The memory with the child in the archive and, if correct, its transition; unchanged at the end of the
        search."""
        if child is None:
            return here.memory
        archive, transitions = _read(here)
        name, parent = child.candidate.id, child.candidate.parents[0]
        if name in archive.merits:
            ends = archive.cells.get(parent, "000"), archive.cells[name]
            before = here.state["population"].get(parent, 0.0)
            transitions = [*transitions, (*ends, before, archive.merits[name])][-KEPT:]
        return json.dumps({"archive": vars(archive), "transitions": transitions})


def _read(here: Here) -> tuple[Archive, list[Transition]]:
    """(archive, transitions) from the island's memory."""
    transitions = json.loads(here.memory)["transitions"] if here.memory else []
    return Archive.of(here.memory, here.state["population"], here.services), transitions


STRATEGY = Gradients()
