"""A row kernel's stages as passes over the row. The plan has no target; each printer spells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.ir.scalar import Numbering
from foundry.knowledge.compiler.ir.views import nodes
from foundry.knowledge.opgraph import DType

Stage = ir.Reduction | ir.Let | ir.Emit | ir.EmitRow
RowStep = ir.Let | ir.EmitRow


@dataclass(frozen=True)
class SoftmaxPair:
    """A maximum m of x and the sum of exp(x - m), taken in one pass with rescaling."""

    maximum: ir.Reduction
    total: ir.Reduction

    @property
    def name(self) -> str:
        """The maximum's name."""
        return self.maximum.name

    @property
    def value(self) -> ir.Expr:
        """The value of which the maximum is taken."""
        return self.maximum.value


@dataclass(frozen=True)
class Pass:
    """One walk over the row: its reductions and elementwise stores, then the stages `after` it, once for each row."""

    reductions: tuple[ir.Reduction | SoftmaxPair, ...]
    emits: tuple[ir.Emit, ...]
    after: tuple[RowStep, ...]

    @property
    def values(self) -> list[ir.Expr]:
        """Values that the pass computes: of its reductions, then of its stores."""
        return [reduction.value for reduction in self.reductions] + [emit.store.value for emit in self.emits]


@dataclass(frozen=True)
class Schedule:
    """A row kernel's stages in order; `before` are the stages that need no pass over the row."""

    before: tuple[RowStep, ...]
    passes: tuple[Pass, ...]


def value_of(stage: Stage) -> ir.Expr:
    """The expression that a stage computes."""
    return stage.value if isinstance(stage, ir.Reduction | ir.Let) else stage.store.value


def stores_in(stages: Sequence[Stage]) -> list[ir.Store]:
    """The stores of all stages, those once a row included."""
    return [stage.store for stage in stages if isinstance(stage, ir.Emit | ir.EmitRow)]


def names_in(exprs: Sequence[ir.Expr]) -> set[str]:
    """Names of the values computed by the kernel that `exprs` use."""
    return {node.name for node in nodes(*exprs) if isinstance(node, ir.Named)}


def defined_names(reduction: ir.Reduction | SoftmaxPair) -> tuple[str, ...]:
    """The Named values that a reduction gives to later stages."""
    if isinstance(reduction, SoftmaxPair):
        return (reduction.maximum.name, reduction.total.name)
    if reduction.op == "moments":
        return (f"{reduction.name}.mean", f"{reduction.name}.m2")
    return (reduction.name,)


def schedule_passes(stages: Sequence[Stage], *, online: bool, stores_last: bool = False) -> Schedule:
    """The fewest passes in which each stage comes after what it needs.

    `online` computes a maximum and the sum of exponentials over it in one pass. `stores_last` leaves all elementwise
    stores to a pass of their own behind the last reduction; otherwise each joins the earliest pass that it can.
    """
    pairs = find_softmax_pairs(stages) if online else {}
    joined = {pair.total.name for pair in pairs.values()}
    level: dict[str, int] = {}  # name -> passes that must end before its value is known
    reductions: dict[int, list[ir.Reduction | SoftmaxPair]] = {}
    emits: dict[int, list[ir.Emit]] = {}
    after: dict[int, list[RowStep]] = {}
    for stage in stages:
        ready = max((level.get(name, 0) for name in names_in([value_of(stage)])), default=0)
        if isinstance(stage, ir.Reduction):
            if stage.name in joined:
                continue
            item = pairs.get(stage.name, stage)
            level |= dict.fromkeys(defined_names(item), ready + 1)
            reductions.setdefault(ready + 1, []).append(item)
        elif isinstance(stage, ir.Emit):
            emits.setdefault(ready + 1, []).append(stage)
        else:
            if isinstance(stage, ir.Let):
                level[stage.name] = ready
            after.setdefault(ready, []).append(stage)
    if stores_last and emits:
        every = [stage for stage in stages if isinstance(stage, ir.Emit)]
        emits = {max(reductions, default=0) + 1: every}
    passes = tuple(
        Pass(tuple(reductions.get(i, ())), tuple(emits.get(i, ())), tuple(after.get(i, ())))
        for i in range(1, max([*reductions, *emits, 0]) + 1)
    )
    return Schedule(tuple(after.get(0, ())), passes)


def find_softmax_pairs(stages: Sequence[Stage]) -> dict[str, SoftmaxPair]:
    """Floating maxima with the first sum of exp(value - maximum) behind each, by the maximum's name."""
    numbering = Numbering()
    maxima: dict[str, ir.Reduction] = {}
    found: dict[str, SoftmaxPair] = {}
    for stage in stages:
        if not isinstance(stage, ir.Reduction):
            continue
        if stage.op == "max" and stage.dtype in ("float32", "float64"):
            maxima[stage.name] = stage
        if stage.op != "sum" or not isinstance(stage.value, ir.Apply) or stage.value.op != "exp":
            continue
        inner = stage.value.args[0]
        if not isinstance(inner, ir.Apply) or inner.op != "sub" or not isinstance(inner.args[1], ir.Named):
            continue
        maximum = maxima.get(inner.args[1].name)
        if maximum is not None and numbering.number(maximum.value) == numbering.number(inner.args[0]):
            found.setdefault(maximum.name, SoftmaxPair(maximum, stage))
    return found


def _apply(op: str, dtype: DType, *args: ir.Expr) -> ir.Apply:
    """The operator applied to the arguments; the result has this dtype."""
    return ir.Apply(op, args, dtype)


def split_statistics(stages: Sequence[Stage], length: int) -> list[Stage]:
    """Moments and logsumexp as two exact passes each: right where the row stays on chip and a pass costs no traffic."""
    out: list[Stage] = []
    for stage in stages:
        if isinstance(stage, ir.Reduction) and stage.op == "moments":
            out += _split_moments(stage, length)
        elif isinstance(stage, ir.Reduction) and stage.op == "logsumexp":
            out += _split_logsumexp(stage)
        else:
            out.append(stage)
    return out


def _split_moments(stage: ir.Reduction, length: int) -> list[Stage]:
    """The mean, then the sum of squared deviations from it."""
    name, dtype = stage.name, stage.dtype
    total, mean = ir.Named(f"{name}.sum", dtype), ir.Named(f"{name}.mean", dtype)
    deviation = _apply("square", dtype, _apply("sub", dtype, stage.value, mean))
    return [
        ir.Reduction(total.name, "sum", stage.value, dtype),
        ir.Let(mean.name, _apply("div", dtype, total, ir.Const(float(length), dtype))),
        ir.Reduction(f"{name}.m2", "sum", deviation, dtype),
    ]


def _split_logsumexp(stage: ir.Reduction) -> list[Stage]:
    """The maximum, then the sum of exponentials of the distances from it (from 0 where it is infinite)."""
    name, dtype = stage.name, stage.dtype
    top, shift, total = (ir.Named(f"{name}.{part}", dtype) for part in ("max", "shift", "sum"))
    finite = _apply("where", dtype, _apply("isinf", "bool", top), ir.Const(0.0, dtype), top)
    exponential = _apply("exp", dtype, _apply("sub", dtype, stage.value, shift))
    return [
        ir.Reduction(top.name, "max", stage.value, dtype),
        ir.Let(shift.name, finite),
        ir.Reduction(total.name, "sum", exponential, dtype),
        ir.Let(name, _apply("add", dtype, shift, _apply("log", dtype, total))),
    ]
