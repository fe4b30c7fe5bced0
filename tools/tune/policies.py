"""How the next configurations are chosen. A policy is asked for configurations and told what each one took.

Policies see a `SettingSpace` and times, and no machine: a recorded sweep compares them as well as a device does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from foundry.tools.tune.space import Setting, SettingSpace, draw, neighbours

RANDOM_SHARE = 0.25  # of each batch of `Evolution` after the first: what the best ones do not lead to
PARENTS = 6
CROSSED = 0.5  # of the children take each value from one of two parents; the others change a value of one parent


class Policy(Protocol):
    """`times` holds what is known so far: ms, or None for a configuration that failed."""

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        """Up to `count` configurations that were not asked for before, none of them the present one, which is measured
        first of all; none when nothing is left."""
        ...


class RandomSearch:
    """Draws without looking at what was measured."""

    def __init__(self, space: SettingSpace, seed: int) -> None:
        self._space, self._stream = space, random.Random(seed)
        self._asked = {space.present}

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        found: list[Setting] = []
        while len(found) < count and (setting := draw(self._space, self._stream, self._asked)) is not None:
            self._asked.add(setting)
            found.append(setting)
        return found


class CoordinateDescent:
    """From the best configuration, every other value of one tunable after the other, until a whole turn brings
    nothing."""

    def __init__(self, space: SettingSpace, seed: int) -> None:
        self._space, self._stream = space, random.Random(seed)
        self._asked = {space.present}
        self._queue: list[Setting] = []
        self._names: list[str] = []
        self._centre: Setting | None = None

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        if not self._queue:
            self._queue = self._next_line(times)
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    def _next_line(self, times: Mapping[Setting, float | None]) -> list[Setting]:
        """The untried values of the next tunable that has some, around the best configuration so far."""
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
    """What is known to work elsewhere first, then single steps from the start, then children of the best: values of
    two of them mixed, or one value changed. A share of every batch is random."""

    def __init__(self, space: SettingSpace, seed: int, starts: Sequence[Setting] = ()) -> None:
        self._space, self._stream = space, random.Random(seed)
        steps = neighbours(space, space.present)
        self._stream.shuffle(steps)
        self._asked = {space.present, *starts, *steps}
        self._queue = [setting for setting in dict.fromkeys([*starts, *steps]) if setting != space.present]

    def ask(self, count: int, times: Mapping[Setting, float | None]) -> list[Setting]:
        ranked = _ranked(times)
        is_begun = len(ranked) >= PARENTS
        drawn = round(RANDOM_SHARE * count) if is_begun else 0
        found = self._from_queue((count - drawn) // 2 if is_begun else count)
        while is_begun and len(found) < count - drawn and (child := self._fresh(lambda: self._child(ranked))):
            found.append(child)
        while len(found) < count and (setting := draw(self._space, self._stream, self._asked)) is not None:
            self._asked.add(setting)
            found.append(setting)
        return found + self._from_queue(count - len(found))

    def _from_queue(self, count: int) -> list[Setting]:
        taken, self._queue = self._queue[: max(count, 0)], self._queue[max(count, 0) :]
        return taken

    def _fresh(self, make: Callable[[], Setting | None]) -> Setting | None:
        for _ in range(16):
            made = make()
            if made is not None and made not in self._asked:
                self._asked.add(made)
                return made
        return None

    def _child(self, ranked: list[Setting]) -> Setting | None:
        parents = ranked[:PARENTS]
        one, other = (dict(self._stream.choice(parents)) for _ in range(2))
        if self._stream.random() < CROSSED:
            return self._space.legal({**one, **{k: v for k, v in other.items() if self._stream.random() < 0.5}})
        values = {
            name: found for name, found in self._space.values(tuple(sorted(one.items()))).items() if len(found) > 1
        }
        if not values:
            return None
        name = self._stream.choice(sorted(values))
        return self._space.legal({**one, name: self._stream.choice(list(values[name]))})


def _ranked(times: Mapping[Setting, float | None]) -> list[Setting]:
    """The configurations that ran, fastest first."""
    known = [(ms, setting) for setting, ms in times.items() if ms is not None]
    return [setting for _, setting in sorted(known, key=lambda item: item[0])]
