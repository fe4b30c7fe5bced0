"""What a row kernel does, as passes over the row: grouped reductions, stores, and what is worth keeping on chip.

Free of any syntax: `row.py` chooses the shape, `row_text.py` writes the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.dialect import register
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    Emit,
    EmitRow,
    Expr,
    Gather,
    Iota,
    Let,
    Load,
    Named,
    Reduction,
)
from foundry.knowledge.compiler.ir.scalar import Numbering
from foundry.knowledge.opgraph import ITEM_BYTES

Stage = Reduction | Let | Emit | EmitRow


@dataclass(frozen=True)
class Accumulator:
    """One reduction of a pass: its state's C++ type and what it defines (name -> member expression of the state)."""

    name: str
    state: str
    value: Expr
    value_type: str
    indexed: bool
    defines: tuple[tuple[str, str], ...]
    state_bytes: int


@dataclass(frozen=True)
class ReducePass:
    accumulators: tuple[Accumulator, ...]

    @property
    def values(self) -> tuple[Expr, ...]:
        return tuple(item.value for item in self.accumulators)


@dataclass(frozen=True)
class EmitPass:
    emits: tuple[Emit, ...]

    @property
    def values(self) -> tuple[Expr, ...]:
        return tuple(item.store.value for item in self.emits)


RowStep = Let | EmitRow
Step = ReducePass | EmitPass | RowStep
# Of which a few take no longer than reading more of the chip's memory.
_CHEAP = ("cast", "add", "sub", "mul", "neg", "abs", "relu", "minimum", "maximum")
_LIGHT_STATES = ("Sum", "Prod", "Extreme", "Truth")


def _apply(op: str, dtype: str, *args: Expr) -> Apply:
    return Apply(op, args, dtype)  # type: ignore[arg-type]


def expand(stages: Sequence[Stage], length: int) -> list[Stage]:
    """Moments and logsumexp as two exact passes each: right where the row stays on chip and a pass costs no traffic."""
    out: list[Stage] = []
    for stage in stages:
        if not isinstance(stage, Reduction) or stage.op not in ("moments", "logsumexp"):
            out.append(stage)
            continue
        name, dtype = stage.name, stage.dtype
        if stage.op == "moments":
            mean = Named(f"{name}.mean", dtype)
            deviation = _apply("square", dtype, _apply("sub", dtype, stage.value, mean))
            out.append(Reduction(f"{name}.sum", "sum", stage.value, dtype))
            scaled = _apply("div", dtype, Named(f"{name}.sum", dtype), Const(float(length), dtype))
            out.append(Let(f"{name}.mean", scaled))
            out.append(Reduction(f"{name}.m2", "sum", deviation, dtype))
            continue
        top = Named(f"{name}.max", dtype)
        shift = Named(f"{name}.shift", dtype)
        out.append(Reduction(f"{name}.max", "max", stage.value, dtype))
        finite = _apply("where", dtype, _apply("isinf", "bool", top), Const(0.0, dtype), top)
        out.append(Let(f"{name}.shift", finite))
        exponential = _apply("exp", dtype, _apply("sub", dtype, stage.value, shift))
        out.append(Reduction(f"{name}.sum", "sum", exponential, dtype))
        total = _apply("log", dtype, Named(f"{name}.sum", dtype))
        out.append(Let(name, _apply("add", dtype, shift, total)))
    return out


def softmax_pairs(stages: Sequence[Stage]) -> dict[int, int]:
    """Indices of max(v) and sum(exp(v - max)) reductions that one online pass computes together."""
    pairs: dict[int, int] = {}
    for i, first in enumerate(stages):
        if not isinstance(first, Reduction) or first.op != "max" or first.dtype not in ("float32", "float64"):
            continue
        wanted = _apply("exp", first.dtype, _apply("sub", first.dtype, first.value, Named(first.name, first.dtype)))
        for j in range(i + 1, len(stages)):
            second = stages[j]
            if isinstance(second, Reduction) and second.op == "sum" and _same(second.value, wanted):
                pairs[i] = j
                break
    return pairs


def _accumulator(stage: Reduction) -> Accumulator:
    kind = register(stage.dtype)
    value = register(stage.value.dtype)
    size = 8 if kind in ("double", "long long") else 4
    states: dict[str, tuple[str, int]] = {
        "sum": (f"Sum<{kind}>", 2 * size),
        "prod": (f"Prod<{kind}>", size),
        "max": (f"Extreme<{kind}, true>", size),
        "min": (f"Extreme<{kind}, false>", size),
        "argmax": (f"Arg<{value}, true>", 16),
        "argmin": (f"Arg<{value}, false>", 16),
        "any": ("Truth<false>", 4),
        "all": ("Truth<true>", 4),
        "moments": (f"Moments<{kind}>", 3 * size),
        "logsumexp": (f"SoftmaxState<{kind}>", 2 * size),
    }
    state, state_bytes = states[stage.op]
    defines: tuple[tuple[str, str], ...] = ((stage.name, "result()"),)
    if stage.op == "moments":
        defines = ((f"{stage.name}.mean", "mean"), (f"{stage.name}.m2", "m2"))
    elif stage.op == "logsumexp":
        defines = ((stage.name, "logsumexp()"),)
    indexed = stage.op in ("argmax", "argmin")
    value_type = value if indexed or stage.op in ("any", "all") else kind
    return Accumulator(stage.name, state, stage.value, value_type, indexed, defines, state_bytes)


def state_bytes(steps: Sequence[Step]) -> int:
    """Bytes of all reductions' states of one thread."""
    return sum(item.state_bytes for step in steps if isinstance(step, ReducePass) for item in step.accumulators)


def is_light(steps: Sequence[Step]) -> bool:
    """Whether an element takes a few instructions of every reduction."""
    states = (item.state for step in steps if isinstance(step, ReducePass) for item in step.accumulators)
    return all(state.startswith(_LIGHT_STATES) for state in states)


def _online(first: Reduction, second: Reduction) -> Accumulator:
    kind = register(first.dtype)
    defines = ((first.name, "maximum"), (second.name, "total()"))
    size = 16 if kind == "double" else 8
    return Accumulator(first.name, f"SoftmaxState<{kind}>", first.value, kind, False, defines, size)


def _same(one: Expr, other: Expr) -> bool:
    numbering = Numbering()
    return numbering.number(one) == numbering.number(other)


def names_in(exprs: Iterable[Expr]) -> set[str]:
    """Names of the values computed by the kernel that `exprs` use."""
    return {node.name for node in _distinct(exprs) if isinstance(node, Named)}


def _distinct(exprs: Iterable[Expr]) -> list[Expr]:
    numbering = Numbering()
    for expr in exprs:
        numbering.number(expr)
    return numbering.nodes


def passes(stages: Sequence[Stage], *, online: bool) -> list[Step]:
    """Stages in the fewest passes in which each comes after what it needs: reductions of the same depth share one, and
    all stores the last one."""
    pairs = softmax_pairs(stages) if online else {}
    skipped = set(pairs.values())
    depth: dict[str, int] = {}  # of what is named: the passes it takes
    reductions: dict[int, list[Accumulator]] = {}
    rows: dict[int, list[RowStep]] = {}
    emits: list[Emit] = []
    for i, stage in enumerate(stages):
        value = stage.store.value if isinstance(stage, Emit | EmitRow) else stage.value
        ready = max((depth.get(name, 0) for name in names_in([value])), default=0)
        if i in skipped:
            continue
        if isinstance(stage, Reduction):
            partner = stages[pairs[i]] if i in pairs else None
            item = _online(stage, partner) if isinstance(partner, Reduction) else _accumulator(stage)
            depth |= {name: ready + 1 for name, _ in item.defines}
            reductions.setdefault(ready + 1, []).append(item)
        elif isinstance(stage, Emit):
            emits.append(stage)
        else:
            if isinstance(stage, Let):
                depth[stage.name] = ready
            rows.setdefault(ready, []).append(stage)
    steps: list[Step] = [*rows.get(0, ())]
    for level in range(1, max(reductions, default=0) + 1):
        steps += [ReducePass(tuple(reductions[level])), *rows.get(level, ())]
    return [*steps, EmitPass(tuple(emits))] if emits else steps


def cached(steps: Iterable[Step], outer: int) -> list[Expr]:
    """The values worth keeping on chip: those that several passes need and that no reduction's result enters.

    `outer` is the number of outer dimensions. The largest such sub-expressions are kept, so that x + residual takes
    one register an element instead of two; a widened load is kept narrow.
    """
    loops = [step for step in steps if isinstance(step, ReducePass | EmitPass)]
    numbering = Numbering()
    roots = [[numbering.number(value) for value in loop.values] for loop in loops]
    keepable = _keepable(numbering, outer)
    uses = [0] * len(numbering.nodes)
    for loop in roots:
        for number in _reachable(numbering, loop):
            uses[number] += 1
    taken: dict[int, None] = {}
    seen: set[int] = set()

    def visit(number: int) -> None:
        if number in seen:
            return
        seen.add(number)
        if keepable[number] and uses[number] > 1:
            node, children = numbering.nodes[number], numbering.children[number]
            narrow = isinstance(node, Apply) and node.op == "cast" and isinstance(node.args[0], Load)
            taken.setdefault(children[0] if narrow else number)
            return
        for child in numbering.children[number]:
            visit(child)

    for loop in roots:
        for number in loop:
            visit(number)
    return _narrowest([numbering.nodes[number] for number in taken], outer)


def _narrowest(kept: list[Expr], outer: int) -> list[Expr]:
    """What is kept, or what it is made of where that is smaller and making it again takes a few instructions."""
    reads: list[Expr] = []
    for node in _distinct(kept):
        if isinstance(node, Apply) and not _is_cheap(node):
            return kept
        if isinstance(node, Gather | Iota | Named):
            return kept
        if isinstance(node, Load) and any(node.view.strides[outer:]):
            reads.append(node)
    steps = sum(isinstance(node, Apply) and node.op != "cast" for node in _distinct(kept))
    return reads if steps <= len(kept) and kept_bytes(reads) < kept_bytes(kept) else kept


def _is_cheap(node: Apply) -> bool:
    return node.op in _CHEAP or (node.op == "div" and isinstance(node.args[1], Const))


def kept_bytes(kept: Iterable[Expr]) -> int:
    """Bytes on chip of one element of what is kept: loads as they are in memory, the rest as it is computed."""
    return sum(_bytes_of(expr) for expr in kept)


def _bytes_of(expr: Expr) -> int:
    return ITEM_BYTES[expr.dtype] if isinstance(expr, Load) else 8 if register(expr.dtype) == "double" else 4


def _keepable(numbering: Numbering, outer: int) -> list[bool]:
    """For each numbered node: it moves along the reduced dimensions and no computed name enters it. Children have
    lower numbers than their parents."""
    moves: list[bool] = []
    free: list[bool] = []
    for node, children in zip(numbering.nodes, numbering.children, strict=True):
        own = isinstance(node, Load | Gather | Iota) and any(node.view.strides[outer:])
        moves.append(own or any(moves[child] for child in children))
        free.append(not isinstance(node, Named) and all(free[child] for child in children))
    kinds = [isinstance(node, Apply | Load | Gather) for node in numbering.nodes]
    return [a and b and c for a, b, c in zip(moves, free, kinds, strict=True)]


def _reachable(numbering: Numbering, roots: Iterable[int]) -> set[int]:
    found: set[int] = set()
    stack = list(roots)
    while stack:
        number = stack.pop()
        if number not in found:
            found.add(number)
            stack.extend(numbering.children[number])
    return found
