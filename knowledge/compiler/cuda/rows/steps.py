"""A row kernel's passes as CUDA needs them: the C++ type of each reduction's state, and the named values that it
gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foundry.knowledge.compiler.cuda.dialect import register_type
from foundry.knowledge.compiler.ir import kernels as ir
from foundry.knowledge.compiler.schedule.passes import RowStep, SoftmaxPair, Stage, schedule_passes


@dataclass(frozen=True)
class Accumulator:
    """One reduction of a pass.

    `state` is the C++ type of its state, `state_bytes` its size. `defines` has (name of a result, member expression of
    the state). `indexed`: the state takes positions with the values."""

    name: str
    state: str
    value: ir.Expr
    value_type: str
    indexed: bool
    defines: tuple[tuple[str, str], ...]
    state_bytes: int


@dataclass(frozen=True)
class ReducePass:
    """A pass over the row that reduces it, one state for each reduction."""

    accumulators: tuple[Accumulator, ...]

    @property
    def values(self) -> tuple[ir.Expr, ...]:
        """The expressions that the reductions take, in order."""
        return tuple(item.value for item in self.accumulators)


@dataclass(frozen=True)
class EmitPass:
    """A pass over the row that stores one value for each element."""

    emits: tuple[ir.Emit, ...]

    @property
    def values(self) -> tuple[ir.Expr, ...]:
        """The expressions that are stored, in order."""
        return tuple(item.store.value for item in self.emits)


Step = ReducePass | EmitPass | RowStep
_LIGHT_STATES = ("Sum", "Prod", "Extreme", "Truth")


def steps_of(stages: Sequence[Stage], *, online: bool) -> list[Step]:
    """The steps of a row kernel in order: its passes, each followed by what is computed once a row after it. All stores
    come last.

    `online`: maximum and sum of a softmax take one pass together, with rescaling."""
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
    """The CUDA form of a reduction; a softmax's maximum and sum become one state."""
    if isinstance(stage, SoftmaxPair):
        return _online(stage.maximum, stage.total)
    kind = register_type(stage.dtype)
    value = register_type(stage.value.dtype)
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
    return Accumulator(
        stage.name, state, stage.value, value_type=value_type, indexed=indexed, defines=defines, state_bytes=state_bytes
    )


def state_bytes(steps: Sequence[Step]) -> int:
    """Bytes of the states of all reductions in one thread."""
    return sum(item.state_bytes for step in steps if isinstance(step, ReducePass) for item in step.accumulators)


def is_light(steps: Sequence[Step]) -> bool:
    """True if every reduction costs only a few instructions an element."""
    states = (item.state for step in steps if isinstance(step, ReducePass) for item in step.accumulators)
    return all(state.startswith(_LIGHT_STATES) for state in states)


def _online(first: ir.Reduction, second: ir.Reduction) -> Accumulator:
    """One state for the maximum `first` and the sum `second` of a softmax."""
    kind = register_type(first.dtype)
    defines = ((first.name, "maximum"), (second.name, "total()"))
    size = 16 if kind == "double" else 8
    return Accumulator(
        first.name,
        f"SoftmaxState<{kind}>",
        first.value,
        value_type=kind,
        indexed=False,
        defines=defines,
        state_bytes=size,
    )
