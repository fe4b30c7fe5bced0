"""Steps that change several things at once, chosen by what is expected of where they lead (estimates.py).

From the parent, from structures next to it and from the best others, places are drawn and changed one value after
the other, as long as a larger gain is expected. Which values a kernel may take depends on its other ones, so the
library is asked where each of the best leads. While little is measured, the experts' own judgement of a step's moves
counts as well, ever less with each measurement (Hvarfner et al. 2022).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from foundry.agents.brief import Brief
from foundry.agents.playbook.estimates import Estimates
from foundry.agents.playbook.ranking import Ranked
from foundry.agents.steps import setting
from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.record import KernelChoices, Known
from foundry.knowledge.library.ir.kernels import KernelSummary
from foundry.knowledge.library.lowered import Outline
from foundry.knowledge.thought import Move

DRAWN = 12  # random places around each origin
STRUCTURES, ELITES = 4, 3  # changes of structure, and other candidates, from which places are drawn
REALISED = 6  # of the drawn places the library is asked about
ASKED = 6  # times so many, until so many are found that were not tried
CLIMBED, ROUNDS = 3, 6  # of those are changed further, so often
TRUSTED = 0.5  # measurements that count as much as the experts' judgement; with 6 a search took 40 % longer


class Adviser(Protocol):
    """What a leap needs of the playbook: moves that the user allows, with the experts' judgement, and where they
    lead."""

    def judged(self, moves: Sequence[Move]) -> list[Ranked]: ...
    def outlined(self, recipe: Recipe) -> Outline: ...
    def applied(self, recipe: Recipe, moves: Sequence[Move]) -> Recipe: ...


@dataclass(frozen=True)
class Spot:
    """A configuration that the library can print, the moves of structure that lead to it from the parent, and what is
    expected there."""

    outline: Outline
    structural: tuple[Ranked, ...] = ()
    value: float = -1.0

    @property
    def known(self) -> Known:
        return known_of(self.outline.kernels, self.outline.structure)


@dataclass(frozen=True)
class Sketch:
    """A place with some of its numbers changed, before the library is asked."""

    origin: Spot
    settings: tuple[Ranked, ...]
    value: float = -1.0

    @property
    def known(self) -> Known:
        changed: dict[str, dict[str, Choice]] = {}
        for item in self.settings:
            assert item.move.value is not None
            changed.setdefault(item.move.kernel, {})[item.move.name] = item.move.value
        before = self.origin.known
        kernels = (replace(one, choices={**one.choices, **changed.get(one.name, {})}) for one in before.kernels)
        return replace(before, kernels=tuple(kernels))


def known_of(kernels: Sequence[KernelSummary], structure: str) -> Known:
    """A configuration of this run, as the estimates see it."""
    total = sum(kernel.traffic_bytes for kernel in kernels) or 1
    shown = tuple(
        KernelChoices(
            kernel.name,
            kernel.template,
            f"{kernel.template}:{','.join(kernel.ops)}",
            kernel.traffic_bytes / total if len(kernels) > 1 else 1.0,
            kernel.choices,
        )
        for kernel in kernels
    )
    return Known("", structure, shown, 0.0, 0.0)


@dataclass
class Leaps:
    """The steps from one parent. `near`: its changes of structure."""

    brief: Brief
    parent: Outline
    near: Sequence[Ranked]
    adviser: Adviser
    stream: random.Random
    estimates: Estimates
    _settings: dict[str, list[tuple[Ranked, ...]]] = field(default_factory=dict)

    @cached_property
    def trust(self) -> float:
        """How much the experts' judgement counts, from 1 down."""
        return TRUSTED / (TRUSTED + sum(not item.run for item in self.brief.known))

    def ranked(self) -> list[tuple[Ranked, ...]]:
        """The moves of the best steps, best first."""
        origins = self._origins()
        sketches = self._drawn(origins)
        found = [*origins[1:], *self._realised(sketches, REALISED)]
        found = sorted(self._valued(found), key=lambda place: -place.value)
        found = [self._climb(place) for place in found[:CLIMBED]] + found
        best: dict[str, Spot] = {}
        for place in found:
            best.setdefault(place.outline.recipe.digest, place)
        ordered = sorted((one for one in best.values() if not self._is_tried(one)), key=lambda place: -place.value)
        return [moves for place in ordered if (moves := self._way(place))]

    def _origins(self) -> list[Spot]:
        """The parent, the structures next to it, and other good candidates of its structure."""
        found = [Spot(self.parent)]
        for item in self.near[:STRUCTURES]:
            found += self._reached(self.adviser.applied(self.parent.recipe, [item.move]), (item,))
        own = self.parent.structure
        for elite in self.brief.elites[:ELITES]:
            recipe = elite.candidate.recipe
            if recipe is not None and recipe.digest != self.parent.recipe.digest:
                found += [place for place in self._reached(recipe, ()) if place.outline.structure == own]
        return found

    def _reached(self, recipe: Recipe, structural: tuple[Ranked, ...]) -> list[Spot]:
        try:
            return [Spot(self.adviser.outlined(recipe), structural)]
        except CannotLower:
            return []

    def _drawn(self, origins: Sequence[Spot]) -> list[Sketch]:
        found = [Sketch(place, (item,)) for place in origins for group in self._around(place) for item in group]
        for place in origins:
            groups = self._around(place)
            for _ in range(DRAWN):
                share = self.stream.choice((0.3, 0.6, 1.0))
                some = tuple(self.stream.choice(group) for group in groups if self.stream.random() < share)
                found += [Sketch(place, some)] if some else []
        return found

    def _around(self, place: Spot) -> list[tuple[Ranked, ...]]:
        """Every other value of each number of a place, those that other values bring with them included."""
        key = place.outline.recipe.digest
        if key not in self._settings:
            groups = []
            for kernel in place.outline.kernels:
                for item in kernel.tunables:
                    now = kernel.choices.get(item.name, item.default)
                    others = [setting(kernel, item, value) for value in item.values if value != now]
                    groups.append(tuple(self.adviser.judged(others)))
            self._settings[key] = [group for group in groups if group]
        return self._settings[key]

    def _realised(self, sketches: Sequence[Sketch], count: int) -> list[Spot]:
        """Where the best of the sketches lead."""
        found: list[Spot] = []
        asked: set[str] = set()
        for sketch in sorted(self._guessed(sketches), key=lambda item: -item.value)[: ASKED * count]:
            recipe = self.adviser.applied(sketch.origin.outline.recipe, [item.move for item in sketch.settings])
            fresh = [] if recipe.digest in asked else self._reached(recipe, sketch.origin.structural)
            asked.add(recipe.digest)
            found += [place for place in fresh if not self._is_tried(place)]
            if len(found) >= count:
                break
        return found

    def _is_tried(self, place: Spot) -> bool:
        return place.outline.recipe.digest in self.brief.tried

    def _guessed(self, sketches: Sequence[Sketch]) -> list[Sketch]:
        if not sketches:
            return []
        values = self._gain([item.known for item in sketches], [item.settings for item in sketches])
        return [replace(item, value=value) for item, value in zip(sketches, values, strict=True)]

    def _valued(self, places: Sequence[Spot]) -> list[Spot]:
        if not places:
            return []
        values = self._gain([place.known for place in places], [self._way(place) for place in places])
        return [replace(place, value=value) for place, value in zip(places, values, strict=True)]

    def _gain(self, known: Sequence[Known], moves: Iterable[Sequence[Ranked]]) -> list[float]:
        gain = self.estimates.of(known).gain(self.estimates.best)
        opinion = np.array([mean_score(each) for each in moves]) ** self.trust
        return [float(value) for value in gain * opinion]

    def _climb(self, place: Spot) -> Spot:
        """The place after changes of one number each, as long as the library can make them and they are worth it."""
        for _ in range(ROUNDS):
            sketches = [Sketch(place, (item,)) for group in self._around(place) for item in group]
            found = self._valued(self._realised(sketches, 2))
            best = max(found, key=lambda item: item.value, default=place)
            if best.value <= place.value:
                break
            place = best
        return place

    def _way(self, place: Spot) -> tuple[Ranked, ...]:
        """The moves from the parent to a place."""
        before = {kernel.name: kernel for kernel in self.parent.kernels}
        return (*place.structural, *self.adviser.judged(list(_differences(before, place.outline))))


def _differences(before: dict[str, KernelSummary], there: Outline) -> Iterator[Move]:
    for kernel in there.kernels:
        was = before.get(kernel.name)
        for item in kernel.tunables:
            value = kernel.choices.get(item.name, item.default)
            if was is None or was.choices.get(item.name) != value:
                move = setting(kernel, item, value)
                yield replace(move, was=was.choices.get(item.name)) if was is not None else move


def mean_score(moves: Sequence[Ranked]) -> float:
    """The experts' judgement of a step: the geometric mean of that of its moves."""
    return math.exp(sum(math.log(item.score) for item in moves) / len(moves)) if moves else 1.0
