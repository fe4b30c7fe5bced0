"""Greedy legal fusion of kernels: values move from memory into registers wherever that costs no more work.

Rules, each repeated until it finds nothing, in this order until none applies:
  epilogue   a map over all of a GEMM's, convolution's, pool's, scan's or attention's result joins its stores;
  rows       a map or a row kernel over the same rows joins a row kernel as later stages;
  inline     a map's expression replaces every load of its result;
  carry      a map with several readers is computed and stored by the first of them;
  attention  products around a softmax become one kernel;
  siblings   small maps that read only inputs and parameters run as one kernel;
  windows    a pool of a convolution's result becomes the convolution's reduction epilogue;
  tails      a row kernel over a GEMM's or convolution's result becomes its reduction epilogue;
  reordered  a map that sees m and n as several dimensions (a copy that splits heads off) joins a GEMM's stores;
  chains     a map joins a map that reads its results at the same points, even if other steps read them too;
  items      maps over the same items (a few elements each) become one map over the items.
At the end, maps of one shape that write parts of one value become one. A scan after a constant becomes an exclusive
scan. On a GPU, matrices read across a kernel's rows, beside others read along them, are transposed first.
Values named in Recipe.materialise, and results of forward, stay in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.fusion.attention import join_attention, load_operands
from foundry.knowledge.compiler.fusion.chains import join_chains
from foundry.knowledge.compiler.fusion.finer import finer_product, has_runs
from foundry.knowledge.compiler.fusion.finish.exclusive import exclusive_scans
from foundry.knowledge.compiler.fusion.inline import carry, inline_anywhere, inline_maps
from foundry.knowledge.compiler.fusion.items import join_items
from foundry.knowledge.compiler.fusion.rows import join_rows
from foundry.knowledge.compiler.fusion.short_rows import unroll_short_rows
from foundry.knowledge.compiler.fusion.state import ANYWHERE, FusionState, prune_stores
from foundry.knowledge.compiler.fusion.tails import join_tails
from foundry.knowledge.compiler.fusion.turned import turn_operands
from foundry.knowledge.compiler.fusion.windows import join_windows
from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.access import Step, store_space, stores_of, tail_of, with_stores
from foundry.knowledge.compiler.ir.kernels import Buffer, GemmKernel, Kernel, MapKernel, RowKernel, Store
from foundry.knowledge.compiler.ir.substitute import aligned_map, sought, substitute_loads
from foundry.knowledge.compiler.ir.weight import limit_weight

# Most values offered for being kept in memory: more would hide the useful ones in large models.
_MOST_CUTS = 24
_SIBLING_ELEMENTS = 8192
_MOST_PARTS = 16  # stores of one fused map; each keeps a cache line open


@dataclass(frozen=True)
class Fusion:
    """The result of fusion: the steps, and names of values that left memory (`fused`) or stay in it by the recipe
    (`materialised`)."""

    steps: tuple[Step, ...]
    fused: tuple[str, ...]
    materialised: tuple[str, ...]
    rewrites: tuple[str, ...] = ()  # rewrites that would change something, or that the recipe asked for


Rule = Callable[[FusionState], bool]


def fuse(
    buffers: dict[str, Buffer], steps: list[Step], kept: set[str], recipe: Recipe, apart: frozenset[str] = frozenset()
) -> Fusion:
    """Fuses the steps and returns them in execution order, with as few passes over memory as the rules allow.

    `kept` names results of forward. Operators in `apart` join no attention and get no reduction epilogue.
    """
    stays = {*recipe.materialise, *(name for name, buffer in buffers.items() if buffer.is_in_place)}
    state = FusionState(buffers, steps=list(steps), kept=set(kept), pinned=stays, target=recipe.target, apart=apart)
    state.tails_anywhere = ANYWHERE in recipe.rewrites
    state.drop_unread()
    early: list[Rule] = [_epilogues, _rows, inline_maps, inline_anywhere, carry, _attention, _siblings]
    rules = [*early, join_windows, join_tails, _reordered, join_chains]
    while any(rule(state) for rule in rules) or unroll_short_rows(state) or join_items(state):
        continue
    _join_parts(state)
    if state.forms.turns_operands:
        turn_operands(state)
    steps = exclusive_scans(state.steps, buffers)
    written = {name for step in steps for name in state.writes(step)}
    pinned = [name for name in recipe.materialise if name in written and name not in kept]
    fused = [name for name, worth in state.gone.items() if worth and name not in written]
    fused = list(dict.fromkeys([*state.tailed, *fused]))
    rewrites = (ANYWHERE,) if state.open_tails else ()
    return Fusion(tuple(steps), tuple(fused[:_MOST_CUTS]), tuple(pinned), rewrites)


# ---------------------------------------------------------------- epilogue


def _epilogues(state: FusionState) -> bool:
    """Joins maps over all of a kernel's result into its stores; True if one was joined."""
    return _join_stores(state, "epilogue", lambda kernel, consumer, name: kernel)


def _reordered(state: FusionState) -> bool:
    """Joins maps into the stores of products whose m and n must be split into several dimensions first. True if one was
    joined."""
    return _join_stores(state, "reordered", finer_product)


def _join_stores(state: FusionState, rule: str, prepare: Callable[[Kernel, MapKernel, str], Kernel | None]) -> bool:
    """Joins maps over all of a kernel's result into its stores, after `prepare` has changed the kernel to fit the
    map. True if one was joined."""
    changed = False
    for kernel, name in state.producers():
        if isinstance(kernel, MapKernel | RowKernel) or tail_of(kernel) is not None:
            continue
        for consumer in state.readers(name):
            if not isinstance(consumer, MapKernel) or not state.once(rule, kernel, consumer):
                continue
            late = state.joinable(kernel, consumer)
            ready = None if late is None else prepare(kernel, consumer, name)
            stores = None if ready is None else _epilogue(state, ready, consumer, name)
            if late is None or ready is None or stores is None:
                state.refuse(rule, kernel, consumer)
                continue
            own = tuple(store for store in stores_of(ready) if state.must_stay(store.buffer, consumer))
            merged = replace(with_stores(ready, own + stores), ops=kernel.ops + consumer.ops)
            state.join(kernel, consumer, late, merged, worth_cutting=True)
            changed = True
            break
    return changed


def _epilogue(state: FusionState, kernel: Kernel, consumer: MapKernel, name: str) -> tuple[Store, ...] | None:
    """The consumer's stores over the producer's space, or None if they do not fit."""
    produced = {store.buffer: store for store in stores_of(kernel)}
    if any(buffer in state.pinned for buffer in produced if buffer in state.reads(consumer)):
        return None
    space = store_space(kernel)
    mapping = aligned_map(consumer.shape, sought(consumer, name), produced[name].view, space)
    if mapping is None:
        return None
    try:
        stores = tuple(
            Store(
                store.buffer,
                mapping.view(store.view),
                limit_weight(substitute_loads(mapping.expr(store.value), produced, space)),
            )
            for store in consumer.stores
        )
    except views.NotAffine:
        return None
    return stores if has_runs(kernel, stores, state.forms.split_runs) else None


# ---------------------------------------------------------------- rows


def _rows(state: FusionState) -> bool:
    """Joins maps and row kernels over the same rows into a row kernel as later stages. True if one was joined."""
    changed = False
    for kernel, name in state.producers():
        if not isinstance(kernel, RowKernel):
            continue
        for consumer in state.readers(name):
            if not isinstance(consumer, MapKernel | RowKernel) or not state.once("rows", kernel, consumer):
                continue
            late = state.joinable(kernel, consumer)
            merged: Kernel | None = None
            if late is not None and not any(store.buffer in state.pinned for store in stores_of(kernel)):
                merged = join_rows(kernel, consumer, name, limits=state.forms.join_limits)
            if late is None or merged is None:
                state.refuse("rows", kernel, consumer)
                continue
            own = state.writes(kernel)
            wanted = {store.buffer for store in stores_of(merged)}
            wanted -= {buffer for buffer in own if not state.must_stay(buffer, consumer)}
            worth = not (isinstance(consumer, MapKernel) and math.prod(consumer.shape) <= math.prod(kernel.outer))
            state.join(kernel, consumer, late, prune_stores(merged, wanted.__contains__), worth_cutting=worth)
            changed = True
            break
    return changed


# ---------------------------------------------------------------- attention


def _attention(state: FusionState) -> bool:
    """Joins the products around a softmax into one kernel, unless a value between them must stay in memory. True if it
    joined any."""
    changed = False
    for kernel, name in list(state.producers()):
        readers = state.readers(name)
        if not isinstance(kernel, RowKernel) or name in state.kept or len(readers) != 1:
            continue
        product = readers[0]
        if not isinstance(product, GemmKernel) or not state.once("attention", kernel, product):
            continue
        before = [step for step in state.steps[: state.place(kernel)] if state.writes(step) & state.reads(kernel)]
        firsts = [step for step in before if isinstance(step, GemmKernel)]
        first = firsts[0] if len(firsts) == 1 else None
        merged = None
        if first is not None and len(state.writes(first)) == 1:
            scores = next(iter(state.writes(first)))
            alone = scores not in state.kept | state.pinned and state.readers(scores) == [kernel]
            alone = alone and state.apart.isdisjoint(first.ops + kernel.ops + product.ops)
            if alone:
                maps, own, other = load_operands(first, product, state.buffers, in_order=state.forms.turns_operands)
                merged = join_attention(own, kernel, other)
        if first is None or merged is None:
            state.refuse("attention", kernel, product)
            continue
        for value in sorted(state.writes(first) | {name}):
            state.gone[value] = True
        gone = {id(first), id(kernel)}
        state.buffers |= {buffer.name: buffer for buffer, _ in maps}
        made: list[Step] = [*(step for _, step in maps), merged]
        left = [step for step in state.steps if id(step) not in gone]
        steps = [one for step in left for one in (made if step is product else [step])]
        state.replace_steps([first, kernel, product], made, steps)
        changed = True
    return changed


# ---------------------------------------------------------------- siblings


def _siblings(state: FusionState) -> bool:
    """Joins small maps of one shape that read only inputs and parameters into one map, which saves launches. True if it
    joined any.

    Maps of parameters alone, which need not run in every call, stay separate from the others.
    """
    written = {name for step in state.steps for name in state.writes(step)}
    groups: dict[tuple[tuple[int, ...], bool], list[MapKernel]] = {}
    for step in state.steps:
        if isinstance(step, MapKernel) and math.prod(step.shape) <= _SIBLING_ELEMENTS:
            parts = state.writes(step)
            if not state.reads(step) & written and not parts & state.pinned:
                fixed = all(state.buffers[name].role in ("parameter", "constant") for name in state.reads(step))
                groups.setdefault((step.shape, fixed), []).append(step)
    changed = False
    for group in groups.values():
        if len(group) > 1 and not _shared_targets(state, group):
            first = group[0]
            stores = tuple(store for step in group for store in step.stores)
            merged = replace(first, stores=stores, ops=tuple(op for step in group for op in step.ops))
            gone = {id(step) for step in group[1:]}
            steps = [merged if step is first else step for step in state.steps if id(step) not in gone]
            state.replace_steps(list(group), [merged], steps)
            changed = True
    return changed


# ---------------------------------------------------------------- parts


def _join_parts(state: FusionState) -> None:
    """Joins maps of one shape that write parts of one value, as torch.stack does. Separately, each reads again what
    the others read, and a stack along the last dimension writes a few bytes of every cache line."""
    last: dict[tuple[tuple[int, ...], str], MapKernel] = {}
    for step in list(state.steps):
        written = state.writes(step)
        if not isinstance(step, MapKernel) or len(written) != 1 or written & state.reads(step):
            continue  # the order matters if a value is built from its own parts
        key = (step.shape, next(iter(written)))
        first = last.get(key)
        if first is not None and len(first.stores) + len(step.stores) <= _MOST_PARTS and _belong(state, first, step):
            late = state.joinable(first, step)
            if late == []:
                merged = replace(first, stores=first.stores + step.stores, ops=first.ops + step.ops)
                state.join(first, step, late, merged, worth_cutting=False)
                step = merged
        last[key] = step


def _belong(state: FusionState, one: MapKernel, other: MapKernel) -> bool:
    """True if the two maps share a buffer that they read, or write to the same cache lines."""
    are_apart = {1, 0} >= {store.view.strides[-1] for store in (*one.stores, *other.stores) if store.view.strides}
    return bool(state.reads(one) & state.reads(other)) or not are_apart


def _shared_targets(state: FusionState, group: list[MapKernel]) -> bool:
    """True if another step writes a buffer of the group, so that the order of the steps matters."""
    targets = {name for step in group for name in state.writes(step)}
    inside = {id(step) for step in group}
    return any(state.writes(step) & targets for step in state.steps if id(step) not in inside)
