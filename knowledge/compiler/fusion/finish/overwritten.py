"""Lets the kernel that computes the new value of an input or of a tensor of the module write to that tensor itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step, loaded_names, reads, writes
from foundry.knowledge.compiler.ir.kernels import Buffer, Gather, Load, MapKernel, OutputView, Store
from foundry.knowledge.opgraph import overlaps


def with_overwritten(
    buffers: Mapping[str, Buffer],
    steps: Sequence[Step],
    write_backs: Mapping[str, str],
    outputs: Sequence[OutputView],
) -> tuple[dict[str, Buffer], tuple[Step, ...]]:
    """The buffers and steps; a new value takes the memory of the old one if no later step, and no other element, reads
    that."""
    found, changed = dict(buffers), list(steps)
    owners = {key: buffer for buffer in buffers.values() if buffer.data is None and (key := buffer.key)}
    returned = {view.buffer for view in outputs}
    pairs: dict[int, list[tuple[str, str]]] = {}  # (old, new) by the place of the step that writes
    for key, name in write_backs.items():
        old, new = owners.get(key), buffers[name]
        is_alone = list(write_backs.values()).count(name) == 1 and name not in returned and not new.is_in_place
        if old is None or not is_alone or not _looks_alike(old, new):
            continue
        place = _find_maker(old.name, name, steps)
        maker = changed[place] if place is not None else None
        if place is None or not isinstance(maker, MapKernel):
            continue
        stores = _ordered(maker.stores, [*pairs.get(place, []), (old.name, name)])
        if stores is not None:
            pairs.setdefault(place, []).append((old.name, name))
            changed[place] = replace(maker, stores=stores)
            found[name] = replace(new, role="temporary", source=key)
    return found, tuple(changed)


def _looks_alike(old: Buffer, new: Buffer) -> bool:
    """True for buffers of the same shape, strides and dtype, not empty, whose elements do not share memory."""
    same = (old.shape, old.strides, old.dtype) == (new.shape, new.strides, new.dtype)
    return same and old.numel > 0 and not overlaps(old.shape, old.strides)


def _find_maker(old: str, new: str, steps: Sequence[Step]) -> int | None:
    """The place of the one map that writes the new value; None if a later step reads the old one, or it reads another
    element of that."""
    makers = [place for place, step in enumerate(steps) if new in writes(step)]
    if len(makers) != 1 or any(old in reads(step) for step in steps[makers[0] + 1 :]):
        return None
    maker = steps[makers[0]]
    if not isinstance(maker, MapKernel):
        return None
    places = {store.view for store in maker.stores if store.buffer == new}
    nodes = [node for store in maker.stores for node in views.nodes(store.value) if isinstance(node, Load | Gather)]
    is_own = all(isinstance(node, Load) and node.view in places for node in nodes if node.buffer == old)
    return makers[0] if len(places) == 1 and is_own else None


def _ordered(stores: Sequence[Store], pairs: Sequence[tuple[str, str]]) -> tuple[Store, ...] | None:
    """The stores, those that read an old value before the one that overwrites it; None if they wait for each other."""
    before: dict[int, set[int]] = {number: set() for number in range(len(stores))}
    for old, new in pairs:
        readers = {number for number, store in enumerate(stores) if old in loaded_names(store.value)}
        for number, store in enumerate(stores):
            if store.buffer == new:
                before[number] |= readers - {number}
    try:
        return tuple(stores[number] for number in TopologicalSorter(before).static_order())
    except CycleError:
        return None
