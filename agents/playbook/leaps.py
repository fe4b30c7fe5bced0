"""Steps that change several things at once, chosen by the expected improvement of where they lead (estimates.py).

The search starts from the parent, from structures next to it and from the best other candidates. It looks at every
configuration of each kernel (a random part if there are too many), at measured ones of its template, and at the best
of the kernels combined. The values that a kernel may take depend on its other ones. So the kernel compiler is asked
where the best lead, and the search goes on from the most promising place. While few measurements exist, the experts'
own judgement of the moves counts as well, ever less with each measurement (Hvarfner et al. 2022).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from foundry.agents.brief import Brief
from foundry.agents.playbook.estimates import Estimates
from foundry.agents.playbook.ranking import NO_OPINION, Ranked
from foundry.agents.steps import setting
from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.ir.kernels import KernelSummary
from foundry.knowledge.compiler.lowered import Outline
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.record import KernelChoices, Known
from foundry.knowledge.thought import Move

WHOLE = 400  # most configurations of a kernel that are all looked at from a place; of more, this many are drawn
# Most configurations of all kernels of a place together. With 17 kernels a step took 2.5 s to choose without this
# limit,
# 1.1 s with it.
AROUND = 2400
KEPT = 48  # best sketches of a kernel that are kept
DEPTH = 12  # most of them that are combined with other kernels' ones
TOGETHER = 160  # most combinations of several kernels
STRUCTURES = 4  # changes of structure to start from
ELITES = 3  # other candidates to start from
ANCHORS = 60  # most measured configurations of a template tried on each kernel, the fastest of their runs first
ANCHORED = 0.15  # largest share of these in all that is looked at
ROUNDS = 8  # most rounds of asking the kernel compiler, while something better is expected
REALISED = 4  # places found in a round
ASKED = 4  # requests per place found, at most
LEAST_TRUST = 0.02  # a lower weight of the experts' judgement is ignored
TRUSTED = 0.5  # measurements that count as much as the experts' judgement; with 6 a search took 40 % longer


class Adviser(Protocol):
    """The part of the playbook that a leap needs: moves that the user allows, with the experts' judgement, and where
    they lead."""

    def judged(self, moves: Sequence[Move]) -> list[Ranked]: ...
    def outlined(self, recipe: Recipe) -> Outline: ...
    def applied(self, recipe: Recipe, moves: Sequence[Move]) -> Recipe: ...


@dataclass(frozen=True)
class Spot:
    """A configuration that the kernel compiler can generate, the structural moves that lead to it from the parent,
    and the expected improvement there."""

    outline: Outline
    structural: tuple[Ranked, ...] = ()
    value: float = -1.0

    @property
    def known(self) -> Known:
        """The configuration as the estimates see it."""
        return known_of(self.outline.kernels, self.outline.structure)


@dataclass(frozen=True)
class KernelValues:
    """Values that are asked for one kernel of a place."""

    place: str
    kernel: str
    values: frozenset[tuple[str, Choice | None]]

    def holds(self, outline: Outline) -> bool:
        """True if the compiler used these values; it takes others if they do not fit each other."""
        choices = next((dict(one.choices) for one in outline.kernels if one.name == self.kernel), {})
        return all(choices.get(name) == value for name, value in self.values)


@dataclass(frozen=True)
class Sketch:
    """A place with some tunables changed, before the compiler is asked."""

    origin: Spot
    settings: tuple[Ranked, ...]
    value: float = -1.0

    @property
    def changes(self) -> set[KernelValues]:
        """The changed values, by kernel."""
        found: dict[str, set[tuple[str, Choice | None]]] = {}
        for item in self.settings:
            found.setdefault(item.move.kernel, set()).add((item.move.name, item.move.value))
        place = self.origin.outline.recipe.digest
        return {KernelValues(place, kernel, frozenset(values)) for kernel, values in found.items()}

    def known(self, before: Known) -> Known:
        """The configuration as the estimates see it, a `Known` without a time; `before` is the same of its origin."""
        changed: dict[str, dict[str, Choice]] = {}
        for item in self.settings:
            assert item.move.value is not None
            changed.setdefault(item.move.kernel, {})[item.move.name] = item.move.value
        kernels = tuple(
            KernelChoices(one.name, one.template, one.place, one.share, {**one.choices, **changed[one.name]})
            if one.name in changed
            else one
            for one in before.kernels
        )
        return Known("", before.structure, kernels, 0.0, 0.0)


def known_of(kernels: Sequence[KernelSummary], structure: str) -> Known:
    """A configuration of this run as the estimates see it, a `Known` without a time."""
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
    _asked: set[str] = field(default_factory=set)
    _refused: set[KernelValues] = field(default_factory=set)
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    @cached_property
    def trust(self) -> float:
        """The weight of the experts' judgement, from 1 downwards as measurements accumulate."""
        return TRUSTED / (TRUSTED + sum(not item.pending for item in self.brief.known))

    def ranked(self) -> list[tuple[Ranked, ...]]:
        """The moves of the best steps, the largest expected improvement first; tried configurations are left out."""
        origins = self._valued(self._origins())
        places = {place.outline.recipe.digest: place for place in origins}
        around, waiting = list[Sketch](), list[Spot]()
        for place in origins:
            around += self._drawn(place)
        for _ in range(ROUNDS):
            around.sort(key=lambda item: -item.value)
            for place in self._valued(self._realised(around)):
                if place.outline.recipe.digest not in places:
                    places[place.outline.recipe.digest] = place
                    waiting.append(place)
            best = max((one.value for one in places.values() if not self._is_tried(one)), default=0.0)
            if best >= max((item.value for item in around), default=0.0):
                break
            if waiting:
                waiting.sort(key=lambda place: place.value)
                around += self._drawn(waiting.pop(), again=True)
        ordered = sorted((one for one in places.values() if not self._is_tried(one)), key=lambda place: -place.value)
        return [moves for place in ordered if (moves := self._moves_to(place))]

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
        """The place that a recipe leads to; empty if it cannot be lowered."""
        try:
            return [Spot(self.adviser.outlined(recipe), structural)]
        except CannotLower:
            return []

    def _drawn(self, place: Spot, again: bool = False) -> list[Sketch]:
        """The sketches around a place: changes of each kernel alone, and the best of the kernels combined. Empty for
        a place whose kernels offer the same as an earlier one's, unless `again`."""
        kernels = place.outline.kernels
        offered = tuple((one.name, *((item.name, item.values) for item in one.tunables)) for one in kernels)
        if not again and (place.outline.structure, offered) in self._seen:
            return []
        best: list[list[Sketch]] = []
        is_whole = True
        most = min(WHOLE, AROUND // max(1, len(kernels)))
        for kernel in kernels:
            if groups := self._groups(kernel):
                is_whole = is_whole and _count(groups) <= most
                measured = [] if again else self._measured_settings(kernel, min(ANCHORS, round(ANCHORED * most)))
                drawn = [*self._settings_of(kernel, groups, most), *measured]
                sketches = [Sketch(place, some) for some in drawn]
                best.append(self._best(place, sketches))
        if is_whole:
            self._seen.add((place.outline.structure, offered))
        found = [item for sketches in best for item in sketches]
        return [*found, *self._best(place, self._together(place, best))] if len(best) > 1 else found

    def _settings_of(
        self, kernel: KernelSummary, groups: Sequence[tuple[Ranked, ...]], most: int
    ) -> list[tuple[Ranked, ...]]:
        """Changes of a kernel's tunables, at most about `most`: all combinations, or if there are too many, each
        single change and random combinations."""
        if _count(groups) <= most:
            every = itertools.product(*((None, *group) for group in groups))
            return [some for one in every if (some := tuple(item for item in one if item is not None))]
        found: list[tuple[Ranked, ...]] = [(item,) for group in groups for item in group]
        for _ in range(most):
            share = self.stream.choice((0.3, 0.6, 1.0))
            some = tuple(self.stream.choice(group) for group in groups if self.stream.random() < share)
            found += [some] if some else []
        return found

    def _measured_settings(self, kernel: KernelSummary, most: int) -> list[tuple[Ranked, ...]]:
        """Measured configurations of the kernel's template as changes, including tunables that it has only with
        other values."""
        found = []
        for choices in self._measured.get(kernel.template, ())[:most]:
            others = [(name, value) for name, value in choices.items() if kernel.choices.get(name) != value]
            moves = (
                Move("set", aspect="tile", name=name, kernel=kernel.name, template=kernel.template, value=value)
                for name, value in others
            )
            found.append(tuple(Ranked(move, 1.0, NO_OPINION) for move in moves))
        return [some for some in dict.fromkeys(found) if some]

    def _together(self, place: Spot, best: Sequence[Sequence[Sketch]]) -> list[Sketch]:
        """Combinations of the kernels' best changes, with at least two kernels changed."""
        depth = min(DEPTH, max(1, math.floor(TOGETHER ** (1 / len(best))) - 1))
        choices = itertools.product(*(((), *(item.settings for item in sketches[:depth])) for sketches in best))
        chosen = [some for some in itertools.islice(choices, TOGETHER) if sum(map(bool, some)) > 1]
        return [Sketch(place, tuple(itertools.chain(*some))) for some in chosen]

    def _groups(self, kernel: KernelSummary) -> list[tuple[Ranked, ...]]:
        """For each tunable of a kernel the settings to its other values that directives allow."""
        found = []
        for item in kernel.tunables:
            now = kernel.choices.get(item.name, item.default)
            others = [setting(kernel, item, value) for value in item.values if value != now]
            found.append(tuple(self.adviser.judged(others)))
        return [group for group in found if group]

    @cached_property
    def _measured(self) -> dict[str, list[Mapping[str, Choice]]]:
        """The measured choices for each template, those nearest to the best of their run first."""
        best: dict[str, float] = {}
        ran = [item for item in self.brief.known if not item.failed and not item.pending]
        for item in ran:
            best[item.run] = max(best.get(item.run, -math.inf), item.log_speedup)
        found: dict[str, list[Mapping[str, Choice]]] = {}
        for item in sorted(ran, key=lambda item: item.log_speedup - best[item.run], reverse=True):
            for kernel in item.kernels:
                found.setdefault(kernel.template, []).append(kernel.choices)
        return found

    def _realised(self, sketches: list[Sketch]) -> list[Spot]:
        """The places where the best sketches lead, at most REALISED, each recipe once; takes these sketches off the
        list.

        Changes that the compiler refuses or undoes are remembered and not tried again.
        """
        found: dict[str, Spot] = {}
        asked = taken = 0
        for sketch in sketches:
            if len(found) >= REALISED or asked >= ASKED * REALISED:
                break
            taken += 1
            changes = sketch.changes
            recipe = self.adviser.applied(sketch.origin.outline.recipe, [item.move for item in sketch.settings])
            if recipe.digest in self._asked or any(change in self._refused for change in changes):
                continue
            self._asked.add(recipe.digest)
            asked += 1
            reached = self._reached(recipe, sketch.origin.structural)
            if not reached:
                self._refused |= changes if len(changes) == 1 else set()
            for place in reached:
                self._refused |= {change for change in changes if not change.holds(place.outline)}
                found[place.outline.recipe.digest] = place
        del sketches[:taken]
        return list(found.values())

    def _is_tried(self, place: Spot) -> bool:
        """True if the place was already proposed."""
        return place.outline.recipe.digest in self.brief.tried

    def _best(self, place: Spot, sketches: Sequence[Sketch]) -> list[Sketch]:
        """The sketches around a place with the largest expected improvement, best first, with their values."""
        if not sketches:
            return []
        before = place.known
        values = self._gain([item.known(before) for item in sketches], [item.settings for item in sketches])
        ranked = sorted(range(len(sketches)), key=lambda index: -values[index])[:KEPT]
        return [replace(sketches[index], value=values[index]) for index in ranked]

    def _valued(self, places: Sequence[Spot]) -> list[Spot]:
        """The places with their expected improvement."""
        if not places:
            return []
        values = self._gain([place.known for place in places], (self._moves_to(place) for place in places))
        return [replace(place, value=value) for place, value in zip(places, values, strict=True)]

    def _gain(self, known: Sequence[Known], moves: Iterable[Sequence[Ranked]]) -> list[float]:
        """The expected improvement of each configuration, weighted by the experts' judgement of its moves."""
        gain = self.estimates.of(known).gain(self.estimates.best)
        if self.trust < LEAST_TRUST:
            return [float(value) for value in gain]
        opinion = np.array([mean_score(each) for each in moves]) ** self.trust
        return [float(value) for value in gain * opinion]

    def _moves_to(self, place: Spot) -> tuple[Ranked, ...]:
        """The moves from the parent to a place: its structural ones, then a judged one for each tunable that
        differs."""
        before = {kernel.name: kernel for kernel in self.parent.kernels}
        return (*place.structural, *self.adviser.judged(list(_differences(before, place.outline))))


def _differences(before: dict[str, KernelSummary], there: Outline) -> Iterator[Move]:
    """Yields the settings in which an outline differs from the parent's kernels."""
    for kernel in there.kernels:
        was = before.get(kernel.name)
        for item in kernel.tunables:
            value = kernel.choices.get(item.name, item.default)
            if was is None or was.choices.get(item.name) != value:
                move = setting(kernel, item, value)
                yield replace(move, was=was.choices.get(item.name)) if was is not None else move


def _count(groups: Sequence[Sequence[Ranked]]) -> int:
    """The number of configurations that the groups span."""
    return math.prod(len(group) + 1 for group in groups)


def mean_score(moves: Sequence[Ranked]) -> float:
    """The experts' judgement of a step: the geometric mean of its moves' scores."""
    return math.exp(sum(math.log(item.score) for item in moves) / len(moves)) if moves else 1.0
