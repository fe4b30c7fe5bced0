"""Predicts how fast a configuration is, from all measurements of similar kernels: a Gaussian process.

The logarithm of a speedup is a sum of effects: one of each tunable of a kernel, one of pairs of them, one of the
structure. Values of a tunable that are near each other have similar effects. Each effect has parts: one shared by
all kernels of a template, one for the graph, one for its size on this device. So earlier runs' measurements fill in
what is not known of this graph, and several runs of one other graph count as one. How strong the effects are, and
how much of the others' applies here, is chosen to make this run's own measurements most likely.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from foundry.knowledge.experience.record import KernelChoices, Known

Array = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

BELOW = 1.2  # log-speedup below the best at which measurements are clipped
SCALES = (0.25, 4.0, 16.0)  # tried factors of the variance of all effects
PAIRS = (0.1, 4.0)  # tried factors of the variance of effects of pairs
RUN = 1.0  # standard deviation of what a run's measurements share: its reference, its graph
STRUCTURE = 0.25  # standard deviation of a structure's own effect
# Standard deviations of the effects of single tunables, of pairs, and of all together.
MAIN = 0.30
PAIRED = 0.15
MIXED = 0.08
NEAR = 2.0  # doublings of a tunable over which its effect changes
OTHER_WORD = 0.25  # similarity of two different non-numeric values
# Parts of an effect's variance: shared by the template, by the graph, by the size on this device.
TEMPLATE = 0.7
GRAPH = 0.1
SITE = 0.2
OTHER_PLACE = 0.5  # similarity of the graph's part for two kernels that do different work
MATTERS = (0.25, 4.0)  # tried factors of a tunable's variance
SHARED = (0.5, 0.0)  # tried factors of what other graphs and sizes contribute
FEWEST = 4  # fewest measurements from which the run's own choose the strength
LEAST_DEVIATION = 0.01
FAILED = 0.2  # log-speedup by which a failure counts below all others
FAILED_DEVIATION = 0.3  # standard deviation of a failure's log-speedup


@dataclass(frozen=True)
class Estimated:
    """The logarithm of the speedup of each configuration: expected value and standard deviation."""

    mean: Array
    deviation: Array

    def gain(self, best: float) -> Array:
        """The expected improvement over `best` of each configuration (Jones, Schonlau and Welch 1998)."""
        z = (self.mean - best) / self.deviation
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z])
        found: Array = (self.mean - best) * below + self.deviation * density
        return found


@dataclass(frozen=True)
class _Set:
    """Configurations as weighted sums of kernels. Kernels that are equal in all respects share one row."""

    weights: Array  # configuration x row
    run: Numbers  # one per configuration
    structure: Numbers
    template: Numbers  # one per row
    graph: Numbers
    site: Numbers
    place: Numbers
    numbers: Array  # row x tunable: log2 of numeric values; nan for others
    words: Array


@dataclass
class _Encoder:
    """Numbers names consistently for measurements and for configurations to estimate."""

    columns: dict[str, int] = field(default_factory=dict)
    used: dict[int, set[int]] = field(default_factory=dict)  # template -> columns
    _codes: dict[tuple[str, object], int] = field(default_factory=dict)

    def code(self, kind: str, name: object) -> int:
        """The number of a name of this kind."""
        return self._codes.setdefault((kind, name), len(self._codes))

    def learn(self, tunables: Iterable[tuple[str, str]]) -> None:
        """Adds (template, tunable) pairs."""
        for template, name in tunables:
            column = self.columns.setdefault(name, len(self.columns))
            self.used.setdefault(self.code("template", template), set()).add(column)

    def encode(self, items: Sequence[Known]) -> _Set:
        """Encodes configurations as arrays: weights of kernels in each, and codes and numbers of each distinct
        kernel."""
        rows: dict[tuple[object, ...], int] = {}
        seen: dict[tuple[int, str, str], int] = {}  # sketches of one place share the kernels they leave unchanged
        kernels: list[tuple[Known, KernelChoices]] = []
        owned: list[tuple[int, int, float]] = []
        for index, item in enumerate(items):
            graph, site = item.graph, item.site
            for kernel in item.kernels:
                row = seen.get((id(kernel), graph, site))
                if row is None:
                    key = (graph, site, kernel.template, kernel.place, *kernel.choices.items())
                    row = rows.setdefault(key, len(kernels))
                    if row == len(kernels):
                        kernels.append((item, kernel))
                    seen[id(kernel), graph, site] = row
                owned.append((index, row, kernel.share))
        weights = np.zeros((len(items), len(kernels)))
        if owned:
            at, row_of, shares = zip(*owned, strict=True)
            np.add.at(weights, (_codes(at), _codes(row_of)), np.array(shares))
        numbers, words = self._values([kernel for _, kernel in kernels])
        return _Set(
            weights,
            run=_codes(self.code("run", item.run) for item in items),
            structure=_codes(self.code("structure", item.structure) for item in items),
            template=_codes(self.code("template", kernel.template) for _, kernel in kernels),
            graph=_codes(self.code("graph", item.graph) for item, _ in kernels),
            site=_codes(self.code("site", item.site) for item, _ in kernels),
            place=_codes(self.code("place", kernel.place) for _, kernel in kernels),
            numbers=numbers,
            words=words,
        )

    def _values(self, kernels: Sequence[KernelChoices]) -> tuple[Array, Array]:
        """(numbers, words), each row x tunable: numeric values on a logarithmic scale, and codes of the others."""
        numbers = np.full((len(kernels), len(self.columns)), np.nan)
        words = np.full((len(kernels), len(self.columns)), -1.0)
        for row, kernel in enumerate(kernels):
            for name, value in kernel.choices.items():
                column = self.columns.get(name)
                if column is None:
                    continue
                if isinstance(value, int):
                    numbers[row, column] = math.copysign(math.log2(1 + abs(value)), value)
                else:
                    words[row, column] = self.code("word", value)
        return numbers, words


def _codes(values: Iterable[int]) -> Numbers:
    """The values as an integer array."""
    return np.array(list(values), dtype=np.int64)


@dataclass(frozen=True)
class Strength:
    """Strength of the effects, relative to the usual; `matters` has a factor for each tunable."""

    scale: float = 1.0
    pairs: float = 1.0
    shared: float = 1.0  # factor of what other graphs and sizes contribute
    matters: tuple[float, ...] = ()

    @property
    def elsewhere(self) -> Strength:
        """The strength with which earlier runs alone are modelled."""
        return replace(self, shared=1.0)

    def weights(self, columns: Numbers) -> Array:
        """The weight of each of a template's tunables (indices into `matters`): an equal share, times its factor in
        `matters`. The sum is one only without factors."""
        found = np.full(len(columns), 1.0 / max(1, len(columns)))
        return found * np.array(self.matters)[columns] if self.matters else found

    def effect(self, main: Array) -> Array:
        """The covariance of the effects of two kernels with this similarity."""
        return self.scale * (MAIN**2 * main + self.pairs * PAIRED**2 * main**2)


@dataclass(frozen=True)
class _Block:
    """The kernels of one template in two sets: similarity of each tunable's values, and of the kernels' graphs and
    sizes."""

    at: tuple[Any, ...]
    columns: Numbers
    alike: Array  # column x row x row
    common: Array  # part of the effects shared by template and graph
    own: Array  # part of the effects for this size on this device


def _blocks(encoder: _Encoder, one: _Set, other: _Set) -> list[_Block]:
    """The blocks of all templates that both sets have."""
    found = []
    for template, columns in encoder.used.items():
        mine, theirs = np.flatnonzero(one.template == template), np.flatnonzero(other.template == template)
        if not len(mine) or not len(theirs):
            continue
        kept = _codes(sorted(columns))
        place = np.where(one.place[mine][:, None] == other.place[theirs][None, :], 1.0, OTHER_PLACE)
        graph = one.graph[mine][:, None] == other.graph[theirs][None, :]
        site = graph & (one.site[mine][:, None] == other.site[theirs][None, :])
        common, own = TEMPLATE + GRAPH * place * graph, SITE * place * site
        alike = _alike(one.numbers[mine][:, kept], one.words[mine][:, kept], other, theirs, kept)
        found.append(_Block(np.ix_(mine, theirs), kept, alike, common, own))
    return found


def _alike(numbers: Array, words: Array, other: _Set, rows: Numbers, columns: Numbers) -> Array:
    """Similarity of the tunables' values, tunable x row x row, 0 to 1."""
    theirs, their_words = other.numbers[rows][:, columns], other.words[rows][:, columns]
    gap = np.abs(numbers.T[:, :, None] - theirs.T[:, None, :])
    neither = np.isnan(numbers.T)[:, :, None] & np.isnan(theirs.T)[:, None, :]
    as_words = np.where(words.T[:, :, None] == their_words.T[:, None, :], 1.0, OTHER_WORD)
    return np.where(neither, as_words, np.where(np.isnan(gap), OTHER_WORD, np.exp(-gap / NEAR)))


@dataclass(frozen=True)
class _Between:
    """The similarity of two sets of configurations, before the strength of effects is chosen."""

    one: _Set
    other: _Set
    blocks: Sequence[_Block]

    def covariance(self, strength: Strength, shared: float = 1.0) -> Array:
        """The covariance of two sets of configurations for a strength; `shared` scales the part that other graphs
        contribute."""
        rows = np.zeros((len(self.one.template), len(self.other.template)))
        for block in self.blocks:
            main = np.tensordot(strength.weights(block.columns), block.alike, axes=1)
            together = strength.scale * MIXED**2 * block.alike.prod(axis=0) * block.own / SITE
            rows[block.at] = strength.effect(main) * (block.common * shared + block.own) + together
        found = self.one.weights @ rows @ self.other.weights.T
        runs = self.one.run[:, None] == self.other.run[None, :]
        structures = self.one.structure[:, None] == self.other.structure[None, :]
        total: Array = found + runs * (RUN**2 + STRUCTURE**2 * structures)
        return total


class Elsewhere:
    """The measurements of earlier runs: encoded once, and solved once for each strength that is tried."""

    def __init__(self, items: Sequence[Known], tunables: Collection[tuple[str, str]] = ()) -> None:
        """`tunables`: (template, name) pairs of this run, in addition to those of the items."""
        self.items = list(items)
        self.encoder = _Encoder()
        self.encoder.learn([*tunables_of(items), *sorted(tunables)])
        self.set = self.encoder.encode(self.items)
        self._between = self.between(self.set, self.set)
        self._log, self._noise = observed(self.items)
        self._solved: dict[Strength, tuple[Array, Array]] = {}

    def between(self, one: _Set, other: _Set) -> _Between:
        """The similarity of two sets."""
        return _Between(one, other, _blocks(self.encoder, one, other))

    def solved(self, strength: Strength) -> tuple[Array, Array]:
        """The inverse Cholesky factor of these measurements' covariance, and its product with the measured values."""
        if strength not in self._solved:
            whole = self._between.covariance(strength) + np.diag(self._noise)
            inverse = np.linalg.inv(np.linalg.cholesky(whole))
            self._solved[strength] = inverse, inverse @ self._log
        return self._solved[strength]


def tunables_of(items: Iterable[Known]) -> list[tuple[str, str]]:
    """The (template, name) pairs of all tunables, in order of first occurrence."""
    found = ((kernel.template, name) for item in items for kernel in item.kernels for name in kernel.choices)
    return list(dict.fromkeys(found))


class Estimates:
    """Speedup estimates from the measurements of this run and of earlier ones."""

    def __init__(self, own: Sequence[Known], elsewhere: Elsewhere | None = None) -> None:
        """`own`: this run's measurements. `elsewhere` must know the tunables of all of them."""
        self._elsewhere = elsewhere or Elsewhere((), tunables_of(own))
        self._own = list(own)
        log, noise = observed(self._own)
        self._take(self._own, log, noise)
        self._strength = Strength()
        self._fit()

    def believing(self, pending: Sequence[Known]) -> Estimates:
        """The same estimates, with pending configurations assumed to come out as expected, so that no parallel
        search tries the same."""
        if not pending:
            return self
        found = object.__new__(Estimates)
        found._elsewhere, found._own, found._strength = self._elsewhere, self._own, self._strength
        log = np.concatenate([self._log, self.of(pending).mean])
        noise = np.concatenate([self._noise, np.full(len(pending), LEAST_DEVIATION**2)])
        found._take([*self._items, *pending], log, noise)
        found._solve(self._strength)
        return found

    def _take(self, items: Sequence[Known], log: Array, noise: Array) -> None:
        """Sets the measurements and their similarities."""
        self._items = list(items)
        self._log = log
        self._noise = noise
        self._set = self._elsewhere.encoder.encode(self._items)
        self._among = self._elsewhere.between(self._set, self._set)
        self._across = self._elsewhere.between(self._set, self._elsewhere.set)

    @cached_property
    def best(self) -> float:
        """The expected value of this run's best configuration, measured or pending, instead of its luckiest
        measurement."""
        ran = [item for item in self._items if not item.failed]
        return float(self.of(ran).mean.max()) if ran else 0.0

    def of(self, wanted: Sequence[Known]) -> Estimated:
        """The estimated mean and deviation of the logarithm of speed, for configurations of this run."""
        strength = self._strength
        encoded = self._elsewhere.encoder.encode(wanted)
        inverse, brought = self._elsewhere.solved(strength.elsewhere)
        far = self._elsewhere.between(encoded, self._elsewhere.set).covariance(strength, strength.shared)
        told = inverse @ far.T
        near = self._elsewhere.between(encoded, self._set).covariance(strength) - told.T @ self._told
        half = self._inverse @ near.T
        prior = RUN**2 + STRUCTURE**2 + encoded.weights**2 @ self._prior(encoded)
        variance = prior - (told * told).sum(axis=0) - (half * half).sum(axis=0)
        return Estimated(told.T @ brought + half.T @ self._half, np.sqrt(np.maximum(variance, 1e-6)))

    def _prior(self, encoded: _Set) -> Array:
        """The variance of each kernel's effect before any measurement."""
        used, strength = self._elsewhere.encoder.used, self._strength
        total = {one: float(strength.weights(_codes(sorted(columns))).sum()) for one, columns in used.items()}
        main = np.array([total.get(template, 1.0) for template in encoded.template.tolist()])
        found: Array = strength.effect(main) + strength.scale * MIXED**2
        return found

    def _fit(self) -> None:
        """Chooses the strength that makes this run's own measurements most likely, one parameter after the other."""
        best = self._solve(self._strength)
        if len(self._own) < FEWEST:
            return
        best = self._try(best, (replace(self._strength, scale=value) for value in SCALES))
        best = self._try(best, (replace(self._strength, pairs=value) for value in PAIRS))
        if self._elsewhere.items:
            best = self._try(best, (replace(self._strength, shared=value) for value in SHARED))
        else:
            for column in sorted(set().union(*self._elsewhere.encoder.used.values())):
                best = self._try(best, self._changed(column))
        self._solve(self._strength)

    def _changed(self, column: int) -> Iterator[Strength]:
        """Yields the strength with one tunable's factor changed."""
        usual = self._strength.matters or (1.0,) * len(self._elsewhere.encoder.columns)
        for factor in MATTERS:
            changed = (value * factor if index == column else value for index, value in enumerate(usual))
            yield replace(self._strength, matters=tuple(changed))

    def _try(self, best: float, tried: Iterable[Strength]) -> float:
        """Tries these strengths, keeps the best (or the present one), and returns its log-likelihood."""
        kept = self._strength
        for strength in tried:
            if (found := self._solve(strength)) > best:
                best, kept = found, strength
        self._strength = kept
        return best

    def _solve(self, strength: Strength) -> float:
        """Solves for this run's measurements with these weights and returns their log-likelihood, given other runs'."""
        inverse, brought = self._elsewhere.solved(strength.elsewhere)
        self._told = inverse @ self._across.covariance(strength, strength.shared).T
        whole = self._among.covariance(strength) - self._told.T @ self._told + np.diag(self._noise)
        root = np.linalg.cholesky(whole)
        self._inverse = np.linalg.inv(root)
        self._half = self._inverse @ (self._log - self._told.T @ brought)
        return float(-0.5 * self._half @ self._half - np.log(np.diag(root)).sum())


def observed(items: Sequence[Known]) -> tuple[Array, Array]:
    """The log-speedups and variances that estimates are made from. How bad a bad configuration is does not matter:
    values far below the run's best are clipped, and failures count a little lower than all."""
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
    """The variance of a measurement."""
    return float((FAILED_DEVIATION if item.failed else max(item.deviation, LEAST_DEVIATION)) ** 2)
