"""A row kernel's stages as passes over the row, and what is worth keeping between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cpu.space import distinct
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Emit,
    EmitRow,
    Expr,
    Gather,
    Let,
    Load,
    Named,
    Reduction,
    RowKernel,
)
from foundry.knowledge.compiler.ir.scalar import Numbering

_CHEAP = frozenset(
    {"add", "sub", "mul", "neg", "abs", "square", "relu", "maximum", "minimum", "cast", "where", "clamp"}
)


@dataclass(frozen=True)
class SoftmaxPair:
    """A maximum m of x and the sum of exp(x - m), taken in one pass with rescaling."""

    maximum: Reduction
    total: Reduction

    @property
    def name(self) -> str:
        return self.maximum.name

    @property
    def value(self) -> Expr:
        return self.maximum.value


@dataclass(frozen=True)
class Pass:
    """One walk over the row: its reductions and elementwise stores, then the stages `after` it, once for each row."""

    reductions: tuple[Reduction | SoftmaxPair, ...]
    emits: tuple[Emit, ...]
    after: tuple[Let | EmitRow, ...]

    @property
    def values(self) -> list[Expr]:
        return [r.value for r in self.reductions] + [emit.store.value for emit in self.emits]


@dataclass(frozen=True)
class Schedule:
    """A row kernel's stages in order; `before` are the stages that need no pass over the row."""

    before: tuple[Let | EmitRow, ...]
    passes: tuple[Pass, ...]


def defined_names(reduction: Reduction | SoftmaxPair) -> tuple[str, ...]:
    """The Named values that a reduction gives to later stages."""
    if isinstance(reduction, SoftmaxPair):
        return (reduction.maximum.name, reduction.total.name)
    if reduction.op == "moments":
        return (f"{reduction.name}.mean", f"{reduction.name}.m2")
    return (reduction.name,)


def schedule(kernel: RowKernel, *, online: bool) -> Schedule:
    """The fewest passes in which each stage comes after what it needs. `online` computes a maximum and the sum of
    exponentials over it in one pass."""
    pairs = softmax_pairs(kernel) if online else {}
    level: dict[str, int] = {}
    reductions: dict[int, list[Reduction | SoftmaxPair]] = {}
    emits: dict[int, list[Emit]] = {}
    after: dict[int, list[Let | EmitRow]] = {}
    joined = {pair.total.name for pair in pairs.values()}
    for stage in kernel.stages:
        value = stage.value if isinstance(stage, Reduction | Let) else stage.store.value
        ready = max((level[node.name] for node in distinct([value]) if isinstance(node, Named)), default=0)
        if isinstance(stage, Reduction):
            if stage.name in joined:
                continue
            item = pairs.get(stage.name, stage)
            for name in defined_names(item):
                level[name] = ready + 1
            reductions.setdefault(ready + 1, []).append(item)
        elif isinstance(stage, Emit):
            emits.setdefault(ready + 1, []).append(stage)
        else:
            if isinstance(stage, Let):
                level[stage.name] = ready
            after.setdefault(ready, []).append(stage)
    count = max([*reductions, *emits, 0])
    passes = tuple(
        Pass(tuple(reductions.get(i, ())), tuple(emits.get(i, ())), tuple(after.get(i, ())))
        for i in range(1, count + 1)
    )
    return Schedule(tuple(after.get(0, ())), passes)


def softmax_pairs(kernel: RowKernel) -> dict[str, SoftmaxPair]:
    """Maxima that are used by exactly one sum of exp(value - maximum); by the maximum's name."""
    numbering = Numbering()
    maxima = {s.name: s for s in kernel.stages if isinstance(s, Reduction) and s.op == "max"}
    found: dict[str, SoftmaxPair] = {}
    for stage in kernel.stages:
        if not isinstance(stage, Reduction) or stage.op != "sum":
            continue
        outer = stage.value
        if not isinstance(outer, Apply) or outer.op != "exp":
            continue
        inner = outer.args[0]
        if not isinstance(inner, Apply) or inner.op != "sub" or not isinstance(inner.args[1], Named):
            continue
        maximum = maxima.get(inner.args[1].name)
        if maximum is None or maximum.dtype not in ("float32", "float64"):
            continue
        if numbering.number(maximum.value) == numbering.number(inner.args[0]):
            found.setdefault(maximum.name, SoftmaxPair(maximum, stage))
    return found


def staged_values(sweeps: Sequence[Iterable[Expr]], contiguous: frozenset[int]) -> list[Expr]:
    """Values that one sweep over the row computes, a later sweep needs again, and that cost more than a load.

    `contiguous` holds the identities of leaves that are read in order: reading those again is as cheap as a copy.
    """
    numbering = Numbering()
    computed: set[int] = set()
    staged: dict[int, Expr] = {}
    for sweep in sweeps:
        exprs = list(sweep)
        stack, seen = list(exprs), set[int]()
        while stack:
            node = stack.pop()
            number = numbering.number(node)
            if number in seen:
                continue
            seen.add(number)
            if number in computed and _worth_keeping(node, contiguous):
                staged.setdefault(number, node)
            elif isinstance(node, Apply):
                stack.extend(node.args)
            elif isinstance(node, Gather):
                stack.append(node.index)
        computed |= {numbering.number(node) for node in distinct(exprs)}
    return list(staged.values())


def _worth_keeping(node: Expr, contiguous: frozenset[int]) -> bool:
    if isinstance(node, Gather):
        return True
    if isinstance(node, Load):
        return id(node) not in contiguous
    if not isinstance(node, Apply):
        return False
    below = distinct([node])
    moving = {(leaf.buffer, leaf.view) for leaf in below if isinstance(leaf, Load) and any(leaf.view.strides)}
    scattered = any(isinstance(leaf, Gather) for leaf in below)
    return scattered or len(moving) > 1 or any(isinstance(n, Apply) and n.op not in _CHEAP for n in below)
