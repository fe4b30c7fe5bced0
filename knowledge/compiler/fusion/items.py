"""Fuses computations over many items of a few elements each (a matrix for each of a million robots, a state for each
filter) into one kernel over the items. The elements of an item are unrolled, so that all steps of an item stay in
registers.

Maps over (items, 3), (items, 4, 4) and (items,) that read each other's elements have different points. Without this
rule each would be a pass over memory and a launch of its own.
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
MOST_ELEMENTS = 128  # most elements of an item in one buffer: eight 4 x 4 matrices
LONGEST_ROW = 16  # longest row that is unrolled: a warp reads longer ones in one coalesced access
LONGEST_COLUMN = 32  # longest row that is unrolled if rows lie across memory: neighbouring threads read coalesced
LEAST_ITEMS = 256
# Unrolling loses coalesced access to an item's elements, which pays only if many steps join: fewest maps in a group,
# and
# least average number of kernels that become one.
LEAST_MAPS = 3
LEAST_GAIN = 3.0
# Most stores of a kernel while a group is joined (values that others still read are stored until those join too). If
# more
# than the second number are left at the end, the group is joined again with at most that many at any time.
STORES_ON_THE_WAY = 256
STORES_AT_THE_END = 48


def join_items(state: FusionState) -> bool:
    """Joins groups of maps over the same items into few maps over items. True if a group was joined."""
    changed = False
    known: dict[int, Step] = {}  # the id of an unrolled map -> its row kernel
    for group in _groups(state, known):
        for most in (STORES_ON_THE_WAY, STORES_AT_THE_END):
            trial = state.copy()
            for step in group:
                if id(step) in known:
                    trial.swap(known[id(step)], step)
            left = _Group(trial, group, most).join()
            is_gain = len(group) >= LEAST_GAIN * len(left)
            if not is_gain or all(len(step.stores) <= STORES_AT_THE_END for step in left):
                break  # a lower limit on stores would not join more
        if is_gain:
            state.take(trial)
            changed = True
    return changed


def _groups(state: FusionState, known: dict[int, Step]) -> list[list[MapKernel]]:
    """Maps over the same items that read each other's results or write parts of one value. Short row kernels count
    as maps: `known` gets the original step by the id of its unrolled map."""
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
        """The representative of a map's group (union-find)."""
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
    """True if every matrix that the row kernel reads is contiguous across its rows instead of along them."""
    rank = len(step.outer)
    leaves = (node for expr, _ in expressions(step) for node in views.nodes(expr))
    found = [leaf.view.strides for leaf in leaves if isinstance(leaf, Load)]
    along = [strides for strides in found if any(strides[:rank]) and any(strides[rank:])]
    return bool(along) and all(1 in strides[:rank] and 1 not in strides[rank:] for strides in along)


def _are_uneven(group: list[MapKernel]) -> bool:
    """True if the maps have different shapes; maps of one shape are joined as chains."""
    return len({step.shape for step in group}) > 1


@dataclass(frozen=True)
class _Items:
    """The dimensions that two maps share as items: the first or the last `rank`."""

    rank: int
    are_first: bool

    def of(self, shape: Shape) -> Shape:
        """The item dimensions of a shape."""
        return shape[: self.rank] if self.are_first else shape[len(shape) - self.rank :]

    def elements(self, shape: Shape) -> int:
        """The number of elements of one item."""
        return math.prod(shape) // math.prod(self.of(shape))


def _items(one: Shape, other: Shape) -> Iterator[_Items]:
    """Yields each choice of shared item dimensions for two map shapes, the most dimensions first."""
    for rank in range(min(len(one), len(other)), 0, -1):
        for are_first in (True, False) if rank < max(len(one), len(other)) else (True,):
            items = _Items(rank, are_first)
            shape = items.of(one)
            small = shape == items.of(other) and max(items.elements(one), items.elements(other)) <= MOST_ELEMENTS
            if small and math.prod(shape) >= LEAST_ITEMS:
                yield items


Pair = tuple[MapKernel, MapKernel, list[Step], MapKernel]


class _Group:
    """A group of maps while its members are joined; `left` holds the remaining ones by id."""

    def __init__(self, state: FusionState, group: list[MapKernel], most_stores: int) -> None:
        """Begins with all members separate."""
        self._state, self._most_stores = state, most_stores
        self.left = {id(step): step for step in group}
        self._refused: dict[tuple[int, int], tuple[Step, Step]] = {}
        self._written_out: dict[tuple[int, _Items], tuple[MapKernel, MapKernel | None]] = {}

    def join(self) -> list[MapKernel]:
        """Joins pairs until no more can be joined, and returns the remaining maps."""
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
        """Yields pairs that can become one: (first, second, steps that must run after them, merged map)."""
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
        """The two maps as one over items, or None if they share none or would grow too large."""
        # Too large unless they share a fifth of their parts.
        if 4 * (parts_of(first) + parts_of(second)) > 5 * MOST_PARTS:
            return None
        for items in _items(first.shape, second.shape):
            one, other = self._over(first, items), self._over(second, items)
            if one is not None and other is not None and _are_apart(one, other):
                merged = merge_maps(self._state, one, other, second, self._most_stores)
                if merged is not None:
                    return merged
        return None

    def _over(self, kernel: MapKernel, items: _Items) -> MapKernel | None:
        """`written_out`, memoised; None if it is not affine."""
        key = (id(kernel), items)
        if key not in self._written_out:
            try:
                found = written_out(kernel, items)
            except views.NotAffine:
                found = None
            self._written_out[key] = (kernel, found)  # an id is unique only while its kernel lives
        return self._written_out[key][1]


def written_out(kernel: MapKernel, items: _Items) -> MapKernel:
    """The map over items, with one store for each element of an item. Raises NotAffine."""
    shape = items.of(kernel.shape)
    count = items.elements(kernel.shape)
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
    """True if no element is written by both maps, for the same item or two different ones."""
    both = {store.buffer for store in first.stores} & {store.buffer for store in second.stores}
    ones, others = (
        {name: [plain_view(store.view, first.shape) for store in stores if store.buffer == name] for name in both}
        for stores in (first.stores, second.stores)
    )
    return all(_never_meet(ones[name], others[name], first.shape) for name in both)


def _never_meet(ones: Sequence[View], others: Sequence[View], shape: Shape) -> bool:
    """True if no view of `ones` reaches an element of a view of `others`. All must have the same strides: each
    element reached is then a multiple of their greatest common divisor away from the offset."""
    strides = ones[0].strides
    if any(view.strides != strides for view in (*ones, *others)):
        return False
    reach = sum(abs(stride) * (size - 1) for size, stride in zip(shape, strides, strict=True))
    divisor = math.gcd(*strides)
    offsets = [view.offset for view in others]
    return all(
        abs(view.offset - offset) > reach or (view.offset - offset) % max(1, divisor) != 0
        for view in ones
        for offset in offsets
    )
