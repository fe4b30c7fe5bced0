"""Greedy legal fusion of kernels: values move from memory into registers wherever that costs no more work.

Four rules, tried in this order until none applies:
  epilogue  a map over a producer's whole result joins the producer's stores (GEMM, convolution, pool, scan, attention);
  rows      a map or a row kernel over the same rows joins a row kernel as later stages;
  inline    a map's expression replaces every load of its result;
  carry     a map with several readers is computed and stored by the first reader.
Values named in Recipe.materialise, and results of forward, stay in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.library import views
from foundry.knowledge.library.access import (
    Step,
    expressions,
    fixed_reads,
    reads,
    rewritten,
    store_space,
    stores_of,
    with_stores,
    writes,
)
from foundry.knowledge.library.attention_pattern import join_attention
from foundry.knowledge.library.fusion_rows import finer_consumer, join_rows
from foundry.knowledge.library.ir import (
    Buffer,
    Emit,
    Expr,
    Gather,
    GemmKernel,
    Kernel,
    Load,
    MapKernel,
    PoolKernel,
    RowKernel,
    Store,
    TorchCall,
)
from foundry.knowledge.library.substitute import aligned_map, replaced_loads, sought, substituted
from foundry.knowledge.library.weight import Weight, weight_of

# An expression of more distinct nodes than this is written to memory rather than inlined once more.
_LARGEST_EXPRESSION = 300


@dataclass(frozen=True)
class Fusion:
    steps: tuple[Step, ...]
    fused: tuple[str, ...]
    materialised: tuple[str, ...]


@dataclass
class _Fuser:
    buffers: dict[str, Buffer]
    steps: list[Step]
    kept: set[str]  # results of forward
    pinned: set[str]  # Recipe.materialise
    target: str
    gone: list[str] = field(default_factory=list)  # values that left memory, in order
    failed: dict[tuple[str, int, int], tuple[Step, Step]] = field(default_factory=dict)
    _reads: dict[int, tuple[Step, frozenset[str]]] = field(default_factory=dict)

    # ------------------------------------------------ queries

    def reads(self, step: Step) -> frozenset[str]:
        known = self._reads.get(id(step))
        if known is None:
            known = (step, frozenset(reads(step)))
            self._reads[id(step)] = known
        return known[1]

    def readers(self, name: str) -> list[int]:
        return [index for index, step in enumerate(self.steps) if name in self.reads(step)]

    def producers(self) -> Iterator[tuple[int, Kernel, str]]:
        """(step, kernel, buffer) of every buffer with one writer that fusion may move."""
        count: dict[str, int] = {}
        for step in self.steps:
            for name in writes(step):
                count[name] = count.get(name, 0) + 1
        for index, step in enumerate(self.steps):
            if not isinstance(step, TorchCall):
                for store in stores_of(step):
                    if count[store.buffer] == 1 and store.buffer not in self.pinned:
                        yield index, step, store.buffer

    def once(self, rule: str, first: Step, second: Step) -> bool:
        """Whether this pair has not failed this rule before."""
        return (rule, id(first), id(second)) not in self.failed

    def refuse(self, rule: str, first: Step, second: Step) -> None:
        self.failed[rule, id(first), id(second)] = (first, second)

    def needed(self, name: str, without: int) -> bool:
        """Whether a value must stay in memory once step `without` no longer reads it."""
        return name in self.kept or name in self.pinned or any(index != without for index in self.readers(name))

    # ------------------------------------------------ changes

    def joinable(self, first: int, second: int) -> list[int] | None:
        """The steps between that depend on `first`, or None when `second` depends on one of them."""
        late: list[int] = []
        changed = set(writes(self.steps[first]))
        read = set(self.reads(self.steps[first]))
        for index in range(first + 1, second + 1):
            step = self.steps[index]
            if index == second:
                carried = {name for other in late for name in writes(self.steps[other])}
                carried_reads = {name for other in late for name in self.reads(self.steps[other])}
                conflict = bool(self.reads(step) & carried or writes(step) & (carried | carried_reads))
                return None if conflict else late
            if self.reads(step) & changed or writes(step) & (changed | read):
                late.append(index)
                changed |= writes(step)
                read |= self.reads(step)
        return late

    def join(self, first: int, second: int, late: list[int], merged: Step) -> None:
        """Puts `merged` where `second` was, and the steps in `late` after it."""
        moved = [self.steps[index] for index in late]
        dropped = {first, second, *late}
        before = [step for index, step in enumerate(self.steps[:second]) if index not in dropped]
        after = self.steps[second + 1 :]
        lost = writes(self.steps[first]) | writes(self.steps[second])
        self.steps = [*before, merged, *moved, *after]
        self.gone += sorted(lost - writes(merged))


Rule = Callable[[_Fuser], bool]


def fuse(buffers: dict[str, Buffer], steps: list[Step], kept: set[str], recipe: Recipe) -> Fusion:
    """Steps in execution order with as few passes over memory as the rules allow."""
    fuser = _Fuser(buffers, list(steps), set(kept), set(recipe.materialise), recipe.target)
    _without_unread(fuser)
    fuser.gone.clear()
    rules: tuple[Rule, ...] = (_epilogues, _rows, _inline_maps, _inline_anywhere, _carry, _attention)
    while any(rule(fuser) for rule in rules):
        continue
    written = {name for step in fuser.steps for name in writes(step)}
    pinned = [name for name in recipe.materialise if name in written and name not in kept]
    fused = [name for name in dict.fromkeys(fuser.gone) if name not in written]
    return Fusion(tuple(fuser.steps), tuple(fused), tuple(pinned))


def _without_unread(fuser: _Fuser) -> None:
    """Drops stores of values that nothing reads, and steps left without stores."""
    while True:
        wanted = set(fuser.kept)
        for step in fuser.steps:
            wanted |= fuser.reads(step)
        steps: list[Step] = []
        for step in fuser.steps:
            if isinstance(step, TorchCall):
                if set(step.results) & wanted:
                    steps.append(step)
                continue
            if not writes(step) & wanted:
                continue
            steps.append(_pruned(step, wanted.__contains__))
        if len(steps) == len(fuser.steps) and all(new is old for new, old in zip(steps, fuser.steps, strict=True)):
            return
        fuser.steps = steps


def _pruned(kernel: Kernel, wanted: Callable[[str], bool]) -> Kernel:
    """The kernel without the stores that nobody wants."""
    if all(wanted(store.buffer) for store in stores_of(kernel)):
        return kernel
    if isinstance(kernel, RowKernel):
        stages = tuple(stage for stage in kernel.stages if not hasattr(stage, "store") or wanted(stage.store.buffer))
        return replace(kernel, stages=stages)
    return with_stores(kernel, tuple(store for store in kernel.stores if wanted(store.buffer)))


# ---------------------------------------------------------------- epilogue


def _epilogues(fuser: _Fuser) -> bool:
    for index, kernel, name in fuser.producers():
        if isinstance(kernel, MapKernel | RowKernel):
            continue
        for reader in fuser.readers(name):
            consumer = fuser.steps[reader]
            if not isinstance(consumer, MapKernel) or not fuser.once("epilogue", kernel, consumer):
                continue
            late = fuser.joinable(index, reader)
            stores = None if late is None else _epilogue(fuser, kernel, consumer, name)
            if late is None or stores is None:
                fuser.refuse("epilogue", kernel, consumer)
                continue
            own = tuple(store for store in kernel.stores if fuser.needed(store.buffer, reader))
            merged = replace(with_stores(kernel, own + stores), ops=kernel.ops + consumer.ops)
            fuser.join(index, reader, late, merged)
            return True
    return False


def _epilogue(fuser: _Fuser, kernel: Kernel, consumer: MapKernel, name: str) -> tuple[Store, ...] | None:
    """The consumer's stores over the producer's space, or None."""
    produced = {store.buffer: store for store in stores_of(kernel)}
    if any(buffer in fuser.pinned for buffer in produced if buffer in fuser.reads(consumer)):
        return None
    space = store_space(kernel)
    mapping = aligned_map(consumer.shape, sought(consumer, name), produced[name].view, space)
    if mapping is None:
        return None
    try:
        return tuple(
            Store(
                store.buffer,
                mapping.view(store.view),
                _limited(substituted(mapping.expr(store.value), produced, space)),
            )
            for store in consumer.stores
        )
    except views.NotAffine:
        return None


def _limited(expr: Expr) -> Expr:
    if sum(1 for _ in views.nodes(expr)) > _LARGEST_EXPRESSION:
        raise views.NotAffine
    return expr


# ---------------------------------------------------------------- rows


def _rows(fuser: _Fuser) -> bool:
    for index, kernel, name in fuser.producers():
        if not isinstance(kernel, RowKernel):
            continue
        for reader in fuser.readers(name):
            consumer = fuser.steps[reader]
            if not isinstance(consumer, MapKernel | RowKernel) or not fuser.once("rows", kernel, consumer):
                continue
            late = fuser.joinable(index, reader)
            merged: Kernel | None = None
            if late is not None and not any(store.buffer in fuser.pinned for store in stores_of(kernel)):
                merged = join_rows(kernel, consumer, name, few_rows=_few_rows(fuser.target))
            if late is None or merged is None or not _small(merged):
                fuser.refuse("rows", kernel, consumer)
                continue
            wanted = {name for name in writes(merged) if name not in writes(kernel) or fuser.needed(name, reader)}
            fuser.join(index, reader, late, _pruned(merged, wanted.__contains__))
            return True
    return False


def _few_rows(target: str) -> tuple[int, int]:
    """(rows, elements): with fewer rows than the first and at least so many elements, a second pass runs faster as
    a map of its own, which all cores or SMs share."""
    return (2, 16384) if target == "cpu" else (32, 8192)


def _small(kernel: Kernel) -> bool:
    return all(sum(1 for _ in views.nodes(expr)) <= _LARGEST_EXPRESSION for expr, _ in expressions(kernel))


# ---------------------------------------------------------------- inline


def _inline_maps(fuser: _Fuser) -> bool:
    return _inline(fuser, lambda step: isinstance(step, MapKernel))


def _inline_anywhere(fuser: _Fuser) -> bool:
    return _inline(fuser, lambda step: True)


def _inline(fuser: _Fuser, suits: Callable[[Step], bool]) -> bool:
    for index, kernel, name in fuser.producers():
        if not isinstance(kernel, MapKernel) or name in fuser.kept:
            continue
        readers = fuser.readers(name)
        consumers = [fuser.steps[reader] for reader in readers]
        if not readers or not all(suits(step) and name not in fixed_reads(step) for step in consumers):
            continue
        rule = f"inline {len(readers)}"
        if not all(fuser.once(rule, kernel, step) for step in consumers):
            continue
        store = next(store for store in kernel.stores if store.buffer == name)
        replaced = _replaced(fuser, kernel, store, consumers)
        if replaced is None:
            for step in consumers:
                fuser.refuse(rule, kernel, step)
            continue
        for reader, step in zip(readers, replaced, strict=True):
            fuser.steps[reader] = step
        rest = tuple(other for other in kernel.stores if other.buffer != name)
        if rest:
            fuser.steps[index] = replace(kernel, stores=rest)
        else:
            del fuser.steps[index]
        fuser.gone.append(name)
        return True
    return False


def _replaced(fuser: _Fuser, kernel: MapKernel, store: Store, consumers: list[Step]) -> list[Step] | None:
    """Every consumer with the map's expression in place of its loads, or None where it cannot or should not be."""
    if not views.is_identity(store.view, kernel.shape):
        return None
    weight = weight_of(store.value, kernel.shape)
    result: list[Step] = []
    for step in consumers:
        assert not isinstance(step, TorchCall)
        if not _worth_inlining(kernel, weight, store, step, len(consumers)):
            return None
        changed = _with_inlined(step, store, kernel.shape)
        if changed is None:
            return None
        result.append(replace(changed, ops=kernel.ops + step.ops))
    return result


def _with_inlined(step: Kernel, store: Store, shape: tuple[int, ...]) -> Kernel | None:
    """The consumer with the stored expression inlined, over finer dimensions where its own are too coarse."""

    def visit(expr: Expr, space: tuple[int, ...]) -> Expr:
        return _limited(inlined(expr, space, store, shape))

    for candidate in (step, finer_consumer(step, store.buffer, shape)):
        if candidate is not None:
            try:
                return rewritten(candidate, visit)
            except views.NotAffine:
                continue
    return None


def inlined(expr: Expr, space: tuple[int, ...], store: Store, shape: tuple[int, ...]) -> Expr:
    """`expr` with every load of the stored buffer replaced by the stored expression at that point."""

    def leaf(node: Load | Gather) -> Expr | None:
        if node.buffer != store.buffer:
            return None
        if isinstance(node, Gather):
            return views.at_gather(store.value, shape, node, space)
        return views.remap(store.value, shape, node.view, space)

    return replaced_loads(expr, leaf)


def _worth_inlining(kernel: MapKernel, weight: Weight, store: Store, step: Kernel, readers: int) -> bool:
    """Whether computing the value in its consumer costs no more than writing and reading it."""
    if weight.nothing:
        return True
    if readers > 1:
        return weight.cheap and weight.large_loads <= 1
    repeats = _repeats(kernel, store, step)
    if repeats > 1:
        return weight.cheap and weight.large_loads <= 2 and (repeats < 4 or weight.roots == 0)
    return True


def _repeats(kernel: MapKernel, store: Store, step: Kernel) -> float:
    """How often each element would be computed in `step`, in multiples of once."""
    own = math.prod(kernel.shape)
    most = 0.0
    if isinstance(step, RowKernel):
        rank = len(step.outer)
        for expr, space in expressions(step):
            for node in views.nodes(expr):
                if isinstance(node, Load | Gather) and node.buffer == store.buffer:
                    once_a_row = isinstance(node, Load) and not any(node.view.strides[rank:])
                    points = math.prod(step.outer) if once_a_row else math.prod(space)
                    most = max(most, points / own)
        return most
    for expr, space in expressions(step):
        if any(isinstance(node, Load | Gather) and node.buffer == store.buffer for node in views.nodes(expr)):
            factor = math.prod(space) / own
            operand = isinstance(step, GemmKernel) and (expr is step.a or expr is step.b)
            window = isinstance(step, PoolKernel) and expr is step.value and _overlaps(step)
            most = max(most, factor + (1 if operand or window else 0))
    return most


def _overlaps(kernel: PoolKernel) -> bool:
    return not kernel.kernel or any(width > step for width, step in zip(kernel.kernel, kernel.stride, strict=True))


# ---------------------------------------------------------------- carry


def _carry(fuser: _Fuser) -> bool:
    """A map whose result must stay in memory is stored by its first reader, which then needs no load of it."""
    for index, kernel, name in fuser.producers():
        if not isinstance(kernel, MapKernel) or len(kernel.stores) != 1:
            continue
        store = kernel.stores[0]
        for reader in fuser.readers(name):
            consumer = fuser.steps[reader]
            if not isinstance(consumer, MapKernel | RowKernel) or not fuser.once("carry", kernel, consumer):
                continue
            late = fuser.joinable(index, reader)
            merged = None if late is None else _carried(kernel, store, consumer)
            if late is None or merged is None:
                fuser.refuse("carry", kernel, consumer)
                continue
            fuser.join(index, reader, late, merged)
            return True
    return False


def _carried(kernel: MapKernel, store: Store, consumer: MapKernel | RowKernel) -> Kernel | None:
    if not views.is_identity(store.view, kernel.shape):
        return None
    space = store_space(consumer)
    load = next(
        (
            node
            for expr, _ in expressions(consumer)
            for node in views.nodes(expr)
            if isinstance(node, Load) and node.buffer == store.buffer
        ),
        None,
    )
    if load is None or not _covers(load.view.strides, load.view.offset, space, math.prod(kernel.shape)):
        return None
    weight = weight_of(store.value, kernel.shape)
    if isinstance(consumer, RowKernel) and not weight.cheap:
        return None
    try:
        value = _limited(views.remap(store.value, kernel.shape, load.view, space))
        changed = rewritten(consumer, lambda expr, shape: _limited(inlined(expr, shape, store, kernel.shape)))
    except views.NotAffine:
        return None
    carried = Store(store.buffer, load.view, value)
    ops = kernel.ops + consumer.ops
    if isinstance(changed, RowKernel):
        return replace(changed, stages=(Emit(carried), *changed.stages), ops=ops)
    assert isinstance(changed, MapKernel)
    return replace(changed, stores=(carried, *changed.stores), ops=ops)


def _covers(strides: tuple[int, ...], offset: int, space: tuple[int, ...], elements: int) -> bool:
    """Whether a view over `space` meets each of `elements` positions exactly once."""
    if offset or math.prod(space) != elements:
        return False
    dims = sorted(((step, size) for step, size in zip(strides, space, strict=True) if size > 1), reverse=True)
    expected = elements
    for step, size in dims:
        expected //= size
        if step != expected:
            return False
    return True


# ---------------------------------------------------------------- attention


def _attention(fuser: _Fuser) -> bool:
    """Products around a softmax become one kernel, unless a value between is wanted in memory."""
    for middle, kernel in enumerate(fuser.steps):
        if not isinstance(kernel, RowKernel):
            continue
        for last in fuser.readers(next(iter(writes(kernel)))):
            product = fuser.steps[last]
            firsts = [
                index
                for index, step in enumerate(fuser.steps[:middle])
                if isinstance(step, GemmKernel) and writes(step) & fuser.reads(kernel)
            ]
            if not isinstance(product, GemmKernel) or len(firsts) != 1 or not fuser.once("attention", kernel, product):
                continue
            first = fuser.steps[firsts[0]]
            assert isinstance(first, GemmKernel)
            between = writes(first) | writes(kernel)
            wanted = any(name in fuser.kept | fuser.pinned or len(fuser.readers(name)) != 1 for name in between)
            merged = None if wanted else join_attention(first, kernel, product)
            if merged is None:
                fuser.refuse("attention", kernel, product)
                continue
            gone = {firsts[0], middle, last}
            rest = [
                merged if index == last else step
                for index, step in enumerate(fuser.steps)
                if index not in gone - {last}
            ]
            fuser.steps = rest
            fuser.gone += sorted(between)
            return True
    return False
