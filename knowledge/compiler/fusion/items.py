"""Many items of a few elements each (a matrix for each of a million robots, a state for each filter) as one kernel over
the items: what lies behind an item's dimensions is written out, so that all steps of an item stay in registers.

Where maps over (items, 3), (items, 4, 4) and (items,) read each other's elements, none goes over the other's points,
and each would be a pass over memory and a launch of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foundry.knowledge.compiler.fusion.chains import MOST_PARTS, merge_maps, plain_view
from foundry.knowledge.compiler.fusion.short_rows import unrolled_rows
from foundry.knowledge.compiler.fusion.state import FusionState
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step, expressions
from foundry.knowledge.compiler.ir.kernels import Load, MapKernel, RowKernel, View
from foundry.knowledge.compiler.ir.weight import parts_of
from foundry.knowledge.opgraph import contiguous_strides

Shape = tuple[int, ...]
MOST_ELEMENTS = 128  # of an item, in one buffer: seven matrices of 4 x 4
LONGEST_ROW = 16  # that is written out: a warp reads longer ones side by side
LONGEST_COLUMN = 32  # of rows that lie across memory, where neighbours read side by side as they are
LEAST_ITEMS = 256
# Elements of an item are no longer read and written side by side by neighbours, which many steps outweigh and few do
# not: so many kernels have to become one on average.
LEAST_MAPS, LEAST_GAIN = 3, 3.0
# What others still read is stored until they have joined, too. Where more stores are left at the end than the second
# number, the group is joined once more with no more than that at any time.
STORES_ON_THE_WAY, STORES_AT_THE_END = 256, 48


def join_items(state: FusionState) -> bool:
    """Groups of maps over the same items become few maps over items."""
    changed = False
    known: dict[int, Step] = {}  # rows, by the maps that do the same
    for group in _groups(state, known):
        for most in (STORES_ON_THE_WAY, STORES_AT_THE_END):
            trial = state.copy()
            for step in group:
                if id(step) in known:
                    trial.swap(known[id(step)], step)
            left = _Group(trial, group, most).join()
            is_gain = len(group) >= LEAST_GAIN * len(left)
            if not is_gain or all(len(step.stores) <= STORES_AT_THE_END for step in left):
                break  # with fewer stores no more would join
        if is_gain:
            state.take(trial)
            changed = True
    return changed


def _groups(state: FusionState, known: dict[int, Step]) -> list[list[MapKernel]]:
    """Maps that read each other's results or write parts of one value, over the same items; short rows as maps."""
    maps: list[MapKernel] = []
    for step in state.steps:
        longest = LONGEST_COLUMN if isinstance(step, RowKernel) and _lies_across(step) else LONGEST_ROW
        one = step if isinstance(step, MapKernel) else unrolled_rows(step, longest)
        if one is not None:
            maps.append(one)
            if one is not step:
                known[id(one)] = step
    parent = {id(step): step for step in maps}

    def root(step: MapKernel) -> MapKernel:
        while parent[id(step)] is not step:
            step = parent[id(step)]
        return step

    touching: dict[str, list[MapKernel]] = {}
    for step in maps:
        for name in state.writes(step):
            touching.setdefault(name, []).append(step)
    for step in maps:
        for name in state.reads(step) | state.writes(step):
            for other in touching.get(name, ()):
                if other is not step and next(_items(other.shape, step.shape), None) is not None:
                    parent[id(root(step))] = root(other)
    groups: dict[int, list[MapKernel]] = {}
    for step in maps:
        groups.setdefault(id(root(step)), []).append(step)
    return [group for group in groups.values() if len(group) >= LEAST_MAPS and _are_uneven(group)]


def _lies_across(step: RowKernel) -> bool:
    """Whether all that it reads of its rows has rows, and not elements of one, side by side in memory."""
    rank = len(step.outer)
    leaves = (node for expr, _ in expressions(step) for node in views.nodes(expr))
    found = [leaf.view.strides for leaf in leaves if isinstance(leaf, Load)]
    along = [strides for strides in found if any(strides[:rank]) and any(strides[rank:])]
    return bool(along) and all(1 in strides[:rank] and 1 not in strides[rank:] for strides in along)


def _are_uneven(group: list[MapKernel]) -> bool:
    """Whether they have not all the same points: those that do are chains, and joined as such."""
    return len({step.shape for step in group}) > 1


@dataclass(frozen=True)
class _Items:
    """Which dimensions of two maps are the items': the first or the last `rank`."""

    rank: int
    are_first: bool

    def of(self, shape: Shape) -> Shape:
        return shape[: self.rank] if self.are_first else shape[len(shape) - self.rank :]

    def elements(self, shape: Shape) -> int:
        """Of one item."""
        return math.prod(shape) // math.prod(self.of(shape))


def _items(one: Shape, other: Shape) -> Iterator[_Items]:
    """What may be the items of two maps, the most dimensions first."""
    for rank in range(min(len(one), len(other)), 0, -1):
        for are_first in (True, False) if rank < max(len(one), len(other)) else (True,):
            items = _Items(rank, are_first)
            shape = items.of(one)
            small = shape == items.of(other) and max(items.elements(one), items.elements(other)) <= MOST_ELEMENTS
            if small and math.prod(shape) >= LEAST_ITEMS:
                yield items


Pair = tuple[MapKernel, MapKernel, list[Step], MapKernel]


class _Group:
    """Maps of one group while they are joined: `left`, by their identities."""

    def __init__(self, state: FusionState, group: list[MapKernel], most_stores: int) -> None:
        self._state, self._most_stores = state, most_stores
        self.left = {id(step): step for step in group}
        self._refused: dict[tuple[int, int], tuple[Step, Step]] = {}
        self._written_out: dict[tuple[int, _Items], tuple[MapKernel, MapKernel | None]] = {}

    def join(self) -> list[MapKernel]:
        """What is left when nothing more can be joined."""
        while True:
            found = next(self._pairs(), None)
            if found is None:
                return list(self.left.values())
            first, second, late, merged = found
            self._state.join(first, second, late, merged, worth_cutting=False)
            for gone in (first, second):
                del self.left[id(gone)]
            self.left[id(merged)] = merged

    def _pairs(self) -> Iterator[Pair]:
        """Two that can become one: (the first, the second, what has to come after them, the one)."""
        state = self._state
        steps = [self.left[id(step)] for step in state.steps if id(step) in self.left]
        for at, second in enumerate(steps):
            wanted = state.reads(second) | state.writes(second)
            for first in reversed(steps[:at]):
                if not state.writes(first) & wanted or (id(first), id(second)) in self._refused:
                    continue
                late = state.joinable(first, second)
                merged = None if late is None else self._merged(first, second)
                if late is not None and merged is not None:
                    yield first, second, late, merged
                self._refused[id(first), id(second)] = (first, second)

    def _merged(self, first: MapKernel, second: MapKernel) -> MapKernel | None:
        if 4 * (parts_of(first) + parts_of(second)) > 5 * MOST_PARTS:  # they hardly share so much
            return None
        for items in _items(first.shape, second.shape):
            one, other = self._over(first, items), self._over(second, items)
            if one is not None and other is not None and _are_apart(one, other):
                merged = merge_maps(self._state, one, other, second, self._most_stores)
                if merged is not None:
                    return merged
        return None

    def _over(self, kernel: MapKernel, items: _Items) -> MapKernel | None:
        """`written_out`, None where that is not affine."""
        key = (id(kernel), items)
        if key not in self._written_out:
            try:
                found = written_out(kernel, items)
            except views.NotAffine:
                found = None
            self._written_out[key] = (kernel, found)  # an identity is one only while its kernel lives
        return self._written_out[key][1]


def written_out(kernel: MapKernel, items: _Items) -> MapKernel:
    """The map over items, with a store for each element of one. Raises NotAffine."""
    shape, count = items.of(kernel.shape), items.elements(kernel.shape)
    if kernel.shape == shape:
        return kernel
    own = contiguous_strides(shape)
    if items.are_first:
        numberings = [View(at, tuple(stride * count for stride in own)) for at in range(count)]
    else:
        numberings = [View(at * math.prod(shape), own) for at in range(count)]
    stores = [views.remap_store(store, kernel.shape, at, shape) for at in numberings for store in kernel.stores]
    return replace(kernel, shape=shape, stores=tuple(stores))


def _are_apart(first: MapKernel, second: MapKernel) -> bool:
    """Whether no element is written by both, in one item or in two."""
    both = {store.buffer for store in first.stores} & {store.buffer for store in second.stores}
    ones, others = (
        {name: [plain_view(store.view, first.shape) for store in stores if store.buffer == name] for name in both}
        for stores in (first.stores, second.stores)
    )
    return all(_never_meet(ones[name], others[name], first.shape) for name in both)


def _never_meet(ones: Sequence[View], others: Sequence[View], shape: Shape) -> bool:
    """Whether no two views of each, all with the same strides, reach an element in common: all that one reaches is a
    multiple of the strides' common divisor away from its offset."""
    strides = ones[0].strides
    if any(view.strides != strides for view in (*ones, *others)):
        return False
    reach, divisor = (
        sum(abs(stride) * (size - 1) for size, stride in zip(shape, strides, strict=True)),
        math.gcd(*strides),
    )
    offsets = [view.offset for view in others]
    return all(
        abs(view.offset - offset) > reach or (view.offset - offset) % max(1, divisor) != 0
        for view in ones
        for offset in offsets
    )
