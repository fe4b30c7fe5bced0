"""How fast a configuration probably is, by all that was measured of kernels like its own: a Gaussian process.

The logarithm of a speedup is a sum of effects: one of each number that a kernel is printed with, one of how they meet,
one of the structure. Two values of a number that are near have similar effects. Effects are shared between graphs in
three levels, so that what little is known of this graph is completed by what is known elsewhere: this graph in earlier
runs, kernels of the same template and size, kernels of the same template. How much the others count, and how much each
number matters, is what makes this run's own measurements most likely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from foundry.knowledge.experience.record import Known

Array = np.ndarray[Any, np.dtype[np.float64]]

BELOW = 1.2  # of a logarithm: how far below the best it does not matter any more
SCALES = (0.25, 4.0, 16.0)  # factors of the variance of all effects that are tried,
PAIRS = (0.1, 4.0)  # and of that of pairs
RUN = 1.0  # deviation of what a run's measurements have in common: its reference, its graph
STRUCTURE = 0.25  # deviation of a structure's own effect
MAIN, PAIRED, MIXED = 0.30, 0.15, 0.08  # deviations of the numbers' own effects, of pairs, and of all together
NEAR = 2.0  # doublings of a number over which its effect changes
OTHER_WORD = 0.25  # how alike two words are
SAME_PLACE = 1.0  # how alike two kernels of a run are that do the same work,
OTHER_PLACE = 0.5  # and two of one template that do not
MATTERS = (0.25, 4.0)  # factors of a number's variance that are tried
SHARED = (1.0, 0.5, 0.0)  # how much of the other graphs' effects holds here: what is tried
FEWEST = 4  # measurements before the run's own say how much others count
LEAST_DEVIATION = 0.01
FAILED, FAILED_DEVIATION = 0.2, 0.3  # of a logarithm: how much worse than all others one that failed counts, how surely


@dataclass(frozen=True)
class Estimated:
    """The logarithm of a speedup: what is expected of each configuration, and how surely."""

    mean: Array
    deviation: Array

    def gain(self, best: float) -> Array:
        """The improvement over `best` that is expected of each (Jones, Schonlau and Welch 1998)."""
        z = (self.mean - best) / self.deviation
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
        found: Array = (self.mean - best) * below + self.deviation * density
        return found


@dataclass(frozen=True)
class _Table:
    """Kernels as rows of numbers: whose they are, and each tunable as a place on a line or as a word."""

    owner: Array  # row -> index of the configuration
    weight: Array
    template: Array
    place: Array
    nearness: Array
    numbers: Array  # row x tunable; nan where it has none
    words: Array


class _Encoder:
    """Gives each name a number, the same for measurements and for what is estimated."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, object], int] = {}
        self.columns: dict[str, int] = {}

    def code(self, kind: str, name: object) -> int:
        return self._codes.setdefault((kind, name), len(self._codes))

    def learn(self, items: Sequence[Known]) -> None:
        for item in items:
            for kernel in item.kernels:
                for name in kernel.choices:
                    self.columns.setdefault(name, len(self.columns))

    def table(self, items: Sequence[Known]) -> _Table:
        rows = [(index, item, kernel) for index, item in enumerate(items) for kernel in item.kernels]
        numbers = np.full((len(rows), len(self.columns)), np.nan)
        words = np.full((len(rows), len(self.columns)), -1.0)
        for row, (_, _, kernel) in enumerate(rows):
            for name, value in kernel.choices.items():
                column = self.columns.get(name)
                if column is None:
                    continue
                if isinstance(value, int):
                    numbers[row, column] = math.copysign(math.log2(1 + abs(value)), value)
                else:
                    words[row, column] = self.code("word", value)
        return _Table(
            np.array([index for index, _, _ in rows], dtype=float),
            np.array([kernel.share for _, _, kernel in rows]),
            np.array([self.code("template", kernel.template) for _, _, kernel in rows], dtype=float),
            np.array([self.code("place", kernel.place or row) for row, (_, _, kernel) in enumerate(rows)], dtype=float),
            np.array([item.nearness for _, item, _ in rows]),
            numbers,
            words,
        )


@dataclass(frozen=True)
class _Alike:
    """What two sets of kernels have in common, before anything is weighted: for each tunable how alike its values are,
    and which of the kernels are of one template."""

    columns: Array  # tunable x row x row
    together: Array
    same: Array
    nearness: Array


def _alike(one: _Table, other: _Table) -> _Alike:
    gap = np.abs(one.numbers.T[:, :, None] - other.numbers.T[:, None, :])
    neither = np.isnan(one.numbers.T)[:, :, None] & np.isnan(other.numbers.T)[:, None, :]
    as_words = np.where(one.words.T[:, :, None] == other.words.T[:, None, :], 1.0, OTHER_WORD)
    columns = np.where(neither, as_words, np.where(np.isnan(gap), OTHER_WORD, np.exp(-gap / NEAR)))
    template = one.template[:, None] == other.template[None, :]
    place = np.where(one.place[:, None] == other.place[None, :], SAME_PLACE, OTHER_PLACE)
    foreign = np.minimum(one.nearness[:, None], other.nearness[None, :])
    is_own = (one.nearness[:, None] == 1.0) & (other.nearness[None, :] == 1.0)
    return _Alike(
        columns, columns.prod(axis=0), template * np.where(is_own, place, 1.0), np.where(is_own, 2.0, foreign)
    )


class Estimates:
    """What the measurements of this run and of earlier ones say."""

    def __init__(self, known: Sequence[Known]) -> None:
        self._own = [item for item in known if not item.run and not item.pending]
        others = [item for item in known if item.run]
        self._others = len(others)
        self._encoder = _Encoder()
        self._encoder.learn([*others, *(item for item in known if not item.run)])
        self._take([*others, *self._own])
        used = [len(kernel.choices) for item in self._items for kernel in item.kernels]
        self._matters = np.full(len(self._encoder.columns), 1.0 / max(1, round(float(np.mean(used or [1])))))
        self._shared, self._scale, self._pairs = SHARED[0], 1.0, 1.0
        self._log, self._noise = _observed(self._items)
        self._fit()

    def believing(self, pending: Sequence[Known]) -> Estimates:
        """The same where these are believed to come out as expected, so that nobody else looks there."""
        found = copy(self)
        if pending:
            found._log = np.concatenate([self._log, self.of(pending).mean])
            found._noise = np.concatenate([self._noise, np.full(len(pending), LEAST_DEVIATION**2)])
            found._take([*self._items, *pending])
            found._solve()
        return found

    def _take(self, items: Sequence[Known]) -> None:
        self._items = list(items)
        self._table = self._encoder.table(self._items)
        self._alike = _alike(self._table, self._table)

    @cached_property
    def best(self) -> float:
        """What is expected of the best configuration of this run: not what it was lucky to be timed as."""
        return float(self.of(self._own).mean.max()) if self._own else 0.0

    def of(self, wanted: Sequence[Known]) -> Estimated:
        """The estimates of configurations of this run."""
        table = self._encoder.table(wanted)
        across = self._covariance(wanted, self._items, _alike(table, self._table), table, self._table)
        mean = across @ self._solved
        half = np.linalg.solve(self._root, across.T)
        prior = np.array([self._prior(item) for item in wanted])
        variance = np.maximum(prior - (half * half).sum(axis=0), 1e-6)
        return Estimated(mean, np.sqrt(variance))

    def _prior(self, item: Known) -> float:
        """The variance of a configuration of which nothing is known."""
        shares = sum(kernel.share**2 for kernel in item.kernels)
        main = float(self._matters.sum())
        effects = MAIN**2 * main + self._pairs * PAIRED**2 * main**2 + MIXED**2
        return RUN**2 + STRUCTURE**2 + shares * self._scale * effects

    def _covariance(
        self, wanted: Sequence[Known], known: Sequence[Known], alike: _Alike, one: _Table, other: _Table
    ) -> Array:
        main = np.tensordot(self._matters, alike.columns, axes=1)
        effects = MAIN**2 * main + self._pairs * PAIRED**2 * main**2 + MIXED**2 * alike.together
        effect = alike.same * self._scale * effects
        effect = effect * np.where(alike.nearness > 1.0, 1.0, self._shared * alike.nearness)
        found = _owners(one, len(wanted)) @ effect @ _owners(other, len(known)).T
        runs = np.array([item.run for item in wanted])[:, None] == np.array([item.run for item in known])[None, :]
        made = [item.structure for item in wanted], [item.structure for item in known]
        structures = np.array(made[0])[:, None] == np.array(made[1])[None, :]
        total: Array = found + runs * (RUN**2 + STRUCTURE**2 * structures)
        return total

    def _fit(self) -> None:
        """Chooses what makes this run's own measurements most likely, one thing after the other."""
        best = self._solve()
        if len(self._own) < FEWEST:
            return
        best = self._try(best, [partial_set(self, "_scale", value) for value in SCALES])
        best = self._try(best, [partial_set(self, "_pairs", value) for value in PAIRS])
        if self._others:
            best = self._try(best, [partial_set(self, "_shared", value) for value in SHARED[1:]])
        own = {name for item in self._own for kernel in item.kernels for name in kernel.choices}
        for name, column in self._encoder.columns.items():
            if name in own:
                was = self._matters.copy()
                tries = []
                for factor in MATTERS:
                    changed = was.copy()
                    changed[column] *= factor
                    tries.append(partial_set(self, "_matters", changed))
                best = self._try(best, tries)
        self._solve()

    def _try(self, best: float, changes: Sequence[Callable[[], Callable[[], None]]]) -> float:
        """The likelihood after the best of these changes, which stays; none where none is better."""
        for change in changes:
            undo = change()
            found = self._solve()
            if found > best:
                best = found
            else:
                undo()
        return best

    def _solve(self) -> float:
        """The logarithm of the likelihood of this run's measurements, given the others': these come first, so that
        what the lower root says of the later rows is said given the earlier ones."""
        whole = self._covariance(self._items, self._items, self._alike, self._table, self._table)
        self._root = _root(whole + np.diag(self._noise))
        half = np.linalg.solve(self._root, self._log)
        self._solved = np.linalg.solve(self._root.T, half)
        own = half[self._others :]
        return float(-0.5 * own @ own - np.log(np.diag(self._root)[self._others :]).sum())


def partial_set(owner: object, name: str, value: object) -> Callable[[], Callable[[], None]]:
    """A change that can be undone."""

    def change() -> Callable[[], None]:
        was = getattr(owner, name)
        setattr(owner, name, value)
        return lambda: setattr(owner, name, was)

    return change


def _observed(items: Sequence[Known]) -> tuple[Array, Array]:
    """The logarithms and variances that the estimates are made from. How bad a bad configuration is does not matter:
    of a run, what is far below its best counts as so far below; what failed, a little lower than all."""
    values = np.zeros(len(items))
    for run in {item.run for item in items}:
        own = [index for index, item in enumerate(items) if item.run == run]
        ran = [items[index].log_speedup for index in own if not items[index].failed]
        lowest = max(ran, default=0.0) - BELOW
        for index in own:
            item = items[index]
            values[index] = lowest - FAILED if item.failed else max(item.log_speedup, lowest)
    return values, np.array([_noise(item) for item in items])


def _noise(item: Known) -> float:
    return float((FAILED_DEVIATION if item.failed else max(item.deviation, LEAST_DEVIATION)) ** 2)


def _owners(table: _Table, count: int) -> Array:
    found = np.zeros((count, len(table.owner)))
    found[table.owner.astype(int), np.arange(len(table.owner))] = table.weight
    return found


def _root(covariance: Array) -> Array:
    """The lower root. What other graphs share with each of two kernels of one template may be more than the two share
    with each other: what no such effects could have is cut off there."""
    least = 1e-9 * np.eye(len(covariance))
    try:
        return np.asarray(np.linalg.cholesky(covariance + least))
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        bounded = (vectors * np.maximum(values, LEAST_DEVIATION**2)) @ vectors.T
        return np.asarray(np.linalg.cholesky(bounded + least))
