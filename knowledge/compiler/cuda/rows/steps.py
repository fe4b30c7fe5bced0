"""A row kernel's passes as CUDA spells them: the C++ type of each reduction's state and what it defines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.dialect import register
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.schedule.passes import RowStep, SoftmaxPair, Stage, schedule_passes


@dataclass(frozen=True)
class Accumulator:
    """One reduction of a pass: its state's C++ type and what it defines (name -> member expression of the state)."""

    name: str
    state: str
    value: ir.Expr
    value_type: str
    indexed: bool
    defines: tuple[tuple[str, str], ...]
    state_bytes: int


@dataclass(frozen=True)
class ReducePass:
    accumulators: tuple[Accumulator, ...]

    @property
    def values(self) -> tuple[ir.Expr, ...]:
        return tuple(item.value for item in self.accumulators)


@dataclass(frozen=True)
class EmitPass:
    emits: tuple[ir.Emit, ...]

    @property
    def values(self) -> tuple[ir.Expr, ...]:
        return tuple(item.store.value for item in self.emits)


Step = ReducePass | EmitPass | RowStep
_LIGHT_STATES = ("Sum", "Prod", "Extreme", "Truth")


def steps_of(stages: Sequence[Stage], *, online: bool) -> list[Step]:
    """The scheduled passes in order, each followed by what is computed once a row behind it; all stores come last."""
    plan = schedule_passes(stages, online=online, stores_last=True)
    steps: list[Step] = [*plan.before]
    for item in plan.passes:
        if item.reductions:
            steps.append(ReducePass(tuple(map(_accumulator, item.reductions))))
        steps += item.after
        if item.emits:
            steps.append(EmitPass(item.emits))
    return steps


def _accumulator(stage: ir.Reduction | SoftmaxPair) -> Accumulator:
    if isinstance(stage, SoftmaxPair):
        return _online(stage.maximum, stage.total)
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
    """True if an element takes a few instructions of every reduction."""
    states = (item.state for step in steps if isinstance(step, ReducePass) for item in step.accumulators)
    return all(state.startswith(_LIGHT_STATES) for state in states)


def _online(first: ir.Reduction, second: ir.Reduction) -> Accumulator:
    kind = register(first.dtype)
    defines = ((first.name, "maximum"), (second.name, "total()"))
    size = 16 if kind == "double" else 8
    return Accumulator(first.name, f"SoftmaxState<{kind}>", first.value, kind, False, defines, size)
