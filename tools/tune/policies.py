"""Policies that choose the next configurations. A policy is asked for configurations and told the time of each.

Policies see a `SettingSpace` and times, and no machine: a recorded sweep compares them as well as a device does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

from foundry.tools.tune.space import Setting, SettingSpace, draw, neighbours

RANDOM_SHARE = 0.25  # share of each batch of `Evolution` that is random, to reach beyond the best ones
MIXED_SHARE = 0.25  # share of each batch that mixes values of two of the best
PARENTS = 6  # configurations that may be mixed, the fastest ones


class Policy(Protocol):
    """A search policy. `times` holds all known times in ms, None for a configuration that failed."""

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        """Up to `count` new configurations; none if nothing is left. The present one, which is measured first, is
        never among them."""
        ...


class RandomSearch:
    """Draws configurations at random, without regard to times."""

    def __init__(self, space: SettingSpace, seed: int) -> None:
        """Begins with the present configuration as asked."""
        self._space = space
        self._stream = random.Random(seed)
        self._asked = [space.present]

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        """Up to `count` random legal configurations that were not asked for before."""
        found: list[Setting] = []
        while len(found) < count and (setting := draw(self._space, self._stream, self._asked, self._asked)) is not None:
            self._asked.append(setting)
            found.append(setting)
        return found


class CoordinateDescent:
    """Tries every other value of one tunable after the other, around the best configuration, until a whole turn
    brings nothing."""

    def __init__(self, space: SettingSpace, seed: int) -> None:
        """Begins around the present configuration once its time is told."""
        self._space = space
        self._stream = random.Random(seed)
        self._asked = {space.present}
        self._queue: list[Setting] = []
        self._names: list[str] = []
        self._centre: Setting | None = None

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        """The next `count` configurations of the present line: all values of one tunable around the best known."""
        if not self._queue:
            self._queue = self._next_line(times)
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    def _next_line(self, times: Mapping[Setting, float | None]) -> list[Setting]:
        """Untried values of the next tunable that has some, around the best configuration so far."""
        best = _ranked(times)[:1]
        if not best:
            return []
        if best[0] != self._centre:
            self._centre = best[0]
            self._names = list(self._space.values(best[0]))
            self._stream.shuffle(self._names)
        choices = dict(best[0])
        while self._names:
            name = self._names.pop()
            others = [{**choices, name: value} for value in self._space.values(best[0])[name]]
            line = [setting for wanted in others if (setting := self._space.legal(wanted)) is not None]
            fresh = [setting for setting in dict.fromkeys(line) if setting not in self._asked]
            if fresh:
                self._asked.update(fresh)
                return fresh
        return []


class Evolution:
    """Tries known good configurations first, then neighbours, mixtures and random ones.

    In every later batch about half are single steps from the best so far, a quarter mix the values of two good ones,
    and a quarter is random.
    """

    def __init__(self, space: SettingSpace, seed: int, starts: Sequence[Setting] = ()) -> None:
        """Begins with the present configuration as asked and `starts` as the first batch."""
        self._space = space
        self._stream = random.Random(seed)
        self._starts = [setting for setting in dict.fromkeys(starts) if setting != space.present]
        self._asked = {space.present, *starts}
        self._around: dict[Setting, list[Setting]] = {}

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        """Up to `count` new configurations: single changes and mixtures of the fastest known, and random ones."""
        found, self._starts = self._starts[:count], self._starts[count:]
        ranked = _ranked(times) or [self._space.present]
        mixed = round(MIXED_SHARE * (count - len(found))) if len(ranked) >= PARENTS else 0
        drawn = round(RANDOM_SHARE * (count - len(found)))
        found += self._steps(ranked, count - len(found) - mixed - drawn)
        while mixed and len(found) < count - drawn and (child := self._child(ranked[:PARENTS])) is not None:
            found.append(child)
        while len(found) < count and (setting := draw(self._space, self._stream, self._asked, ranked)) is not None:
            self._asked.add(setting)
            found.append(setting)
        return found + self._steps(ranked, count - len(found))

    def _steps(self, ranked: list[Setting], count: int) -> list[Setting]:
        """Untried neighbours of the best configuration; then of the next best."""
        found: list[Setting] = []
        for setting in ranked:
            if len(found) >= count:
                break
            if setting not in self._around:
                self._around[setting] = neighbours(self._space, setting)
                self._stream.shuffle(self._around[setting])
            fresh = [other for other in self._around[setting] if other not in self._asked]
            taken = fresh[: count - len(found)]
            self._asked.update(taken)
            found += taken
        return found

    def _child(self, parents: list[Setting]) -> Setting | None:
        """A new configuration that takes each value from one of two parents; None after 16 failed draws."""
        for _ in range(16):
            one, other = (dict(parent) for parent in self._stream.sample(parents, 2))
            made = self._space.legal({**one, **{k: v for k, v in other.items() if self._stream.random() < 0.5}})
            if made is not None and made not in self._asked:
                self._asked.add(made)
                return made
        return None


def _ranked(times: Mapping[Setting, float | None]) -> list[Setting]:
    """Configurations that ran, fastest first."""
    known = [(ms, setting) for setting, ms in times.items() if ms is not None]
    return [setting for _, setting in sorted(known, key=lambda item: item[0])]
