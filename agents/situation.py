"""A brief as a kernel engineer reads it: bytes, operations and milliseconds against the device's ceilings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from foundry.agents.brief import Brief
from foundry.knowledge.candidate import REFERENCE, Choice, Profile, Timing
from foundry.knowledge.compiler.ir.kernels import KernelSummary, Tunable
from foundry.knowledge.compiler.lowered import plan_name
from foundry.knowledge.device import Ceilings
from foundry.knowledge.limits import REUSE_FLOPS_PER_BYTE
from foundry.knowledge.roofline import allowed_precision, used_precision
from foundry.knowledge.thought import Diagnosis, Move

FLOAT_BYTES = 4
# Operators whose arithmetic is a polynomial or a division of 10 to 30 instructions an element; FLOP counts hide it.
COSTLY_KINDS = frozenset(
    [
        *[
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "tanh",
            "sigmoid",
            "erf",
            "gelu",
        ],
        *["silu", "mish", "softplus", "pow", "rsqrt", "sqrt", "div", "elu", "selu", "softmax", "_softmax", "logsumexp"],
        *["log_softmax", "_log_softmax", "cross_entropy", "cross_entropy_loss"],
    ]
)


def size_of(value: Choice | None) -> int | None:
    """A number as it is, a tile "6x2" as its area; None for other names."""
    if value is None or isinstance(value, int):
        return value
    sides = value.lower().split("x")
    return math.prod(map(int, sides)) if len(sides) > 1 and all(side.isdigit() for side in sides) else None


@dataclass(frozen=True)
class Situation:
    """Numbers of `brief.parent`, computed once. Times are ms, rates per second; None where nothing was measured."""

    brief: Brief
    diagnosis: Diagnosis | None = None

    @property
    def timing(self) -> Timing | None:
        """Timing of the parent; None if it was not timed."""
        return self.brief.parent.timing

    @property
    def profile(self) -> Profile | None:
        """Profile of the parent; None if it was not profiled."""
        return self.brief.parent.profile

    @property
    def ceilings(self) -> Ceilings | None:
        """Measured ceilings of the device; None if they were not measured."""
        return self.brief.device.ceilings

    @property
    def candidate_ms(self) -> float | None:
        """Milliseconds of one call of the parent; None if it was not timed."""
        return self.timing.candidate_ms if self.timing else None

    @property
    def limiter(self) -> str:
        """The limiter that the diagnosis names; "" if it names none."""
        return (self.diagnosis.limiter if self.diagnosis else None) or ""

    @cached_property
    def kernels(self) -> dict[str, KernelSummary]:
        """The kernels of the lowered parent, by name; none if it was not lowered."""
        return {kernel.name: kernel for kernel in self.brief.lowered.kernels} if self.brief.lowered else {}

    @cached_property
    def traffic_bytes(self) -> int:
        """Bytes that the candidate's kernels move, with intermediate values; the graph's least bytes if unknown."""
        if self.kernels:
            return sum(kernel.traffic_bytes for kernel in self.kernels.values())
        if self.brief.graph is None:
            return sum(row.traffic_bytes for row in self.brief.ran) if self.is_reference else 0
        return self.brief.graph.min_bytes

    @cached_property
    def least_bytes(self) -> int:
        """Bytes that every kernel of this graph must move."""
        if self.brief.lowered:
            return self.brief.lowered.traffic_bytes
        return self.brief.graph.min_bytes if self.brief.graph else 0

    @cached_property
    def flops(self) -> int:
        """Operations of one forward: the parent's, else the graph's; without a graph what PyTorch ran."""
        if self.brief.lowered:
            return self.brief.lowered.flops
        if self.brief.graph is None:
            return sum(row.flops for row in self.brief.ran) if self.is_reference else 0
        return self.brief.graph.flops

    @cached_property
    def bandwidth(self) -> float | None:
        """The ceiling that applies: the last-level cache's when everything fits, else memory's (bytes/s)."""
        if self.ceilings is None:
            return None
        return self.ceilings.cache_bytes_per_s if self.fits_cache else self.ceilings.copy_bytes_per_s

    @property
    def fits_cache(self) -> bool:
        """True if all bytes that it moves fit the last-level cache (it is timed with cold caches all the same)."""
        return self.traffic_bytes <= self.brief.device.cache_bytes

    @property
    def floor_ms(self) -> float | None:
        """The task's roofline floor as every part of a prompt tells it: by the ceilings that stand there (ms)."""
        graph, task, device = self.brief.graph, self.brief.task, self.brief.device
        if graph is None:
            return None
        precision = allowed_precision(graph, task.options.policy, device.target)
        return device.floor_ms(graph.flops, graph.min_bytes, precision)

    @property
    def memory_ms(self) -> float:
        """Milliseconds that the memory traffic takes at the ceiling of bandwidth; 0.0 if that is unknown."""
        return 1e3 * self.traffic_bytes / self.bandwidth if self.bandwidth else 0.0

    @property
    def arithmetic_ms(self) -> float:
        """Milliseconds that the operations take at the ceiling of arithmetic; 0.0 if that is unknown."""
        return 1e3 * self.flops / self.flops_ceiling if self.flops_ceiling else 0.0

    @property
    def flops_ceiling(self) -> float | None:
        """The rate of the arithmetic that the candidate uses (FLOP/s)."""
        if self.ceilings is None:
            return None
        labels = self.brief.lowered.labels if self.brief.lowered else ()
        return self.ceilings.flops_per_s(used_precision(self.brief.graph, labels))

    @property
    def reuses_values(self) -> bool:
        """True if each value that must move takes part in many operations, so that register blocks pay."""
        return self.flops >= REUSE_FLOPS_PER_BYTE * max(1, self.least_bytes)

    @cached_property
    def achieved_bytes_per_s(self) -> float | None:
        """Bytes a second: counted by the hardware if the profiler can, else the kernels' modelled traffic over the
        time."""
        if self.profile and self.profile.rung == "counters" and self.profile.achieved_bytes_per_s > 0:
            return self.profile.achieved_bytes_per_s
        return 1e3 * self.traffic_bytes / self.candidate_ms if self.candidate_ms else None

    @cached_property
    def achieved_flops_per_s(self) -> float | None:
        """The parent's operations a second, by the hardware's counters if they were read; None if it was not timed."""
        if self.profile and self.profile.rung == "counters" and self.profile.achieved_flops_per_s > 0:
            return self.profile.achieved_flops_per_s
        return 1e3 * self.flops / self.candidate_ms if self.candidate_ms else None

    @property
    def launches(self) -> int:
        """Kernels that one forward of the parent starts, at least 1."""
        if self.profile and self.profile.launches > 0:
            return self.profile.launches
        if self.is_reference:
            return max(1, sum(row.calls for row in self.brief.ran))
        return max(1, len(self.kernels))

    @property
    def is_reference(self) -> bool:
        """True if the parent is the task's own module, which PyTorch runs operator by operator."""
        return self.brief.parent.candidate.id == REFERENCE

    @property
    def launch_ms(self) -> float:
        """Milliseconds that all launches take at the measured cost of one; 0.0 if that is unknown."""
        return self.launches * self.ceilings.launch_ms if self.ceilings else 0.0

    @property
    def fraction_of_floor(self) -> float | None:
        """The profile's share of the roofline floor; None if it is unknown or 0."""
        return self.profile.fraction_of_floor if self.profile and self.profile.fraction_of_floor > 0 else None

    @cached_property
    def shares(self) -> dict[str, float]:
        """Each kernel's share of the time, as it was measured or else as it is modelled; shares sum to 1."""
        measured = {plan_name(kernel.name): kernel.ms for kernel in self.profile.kernels} if self.profile else {}
        times = {name: measured.get(name, 0.0) for name in self.kernels}
        if not any(times.values()):
            times = {name: self.kernel_ms(kernel) for name, kernel in self.kernels.items()}
        total = sum(times.values())
        even = 1 / max(1, len(times))
        return {name: time / total if total > 0 else even for name, time in times.items()}

    @property
    def dominant(self) -> str:
        """The kernel with the largest share, "" without kernels."""
        return max(self.shares, key=lambda name: self.shares[name], default="")

    def kernel_ms(self, kernel: KernelSummary) -> float:
        """Roofline time of one kernel plus its launch (Williams et al. 2009), in ms; bytes where nothing is known."""
        if self.ceilings is None or not self.bandwidth or not self.flops_ceiling:
            return float(max(1, kernel.traffic_bytes))
        costly = self.costly_share(kernel)
        arithmetic = kernel.flops * (1 + 4 * costly) / self.flops_ceiling
        return 1e3 * max(arithmetic, kernel.traffic_bytes / self.bandwidth) + self.ceilings.launch_ms

    def costly_share(self, kernel: KernelSummary) -> float:
        """Fraction of the kernel's operators that are transcendental or divide."""
        kinds = [self.op_kinds.get(name, name) for name in kernel.ops]
        return sum(kind in COSTLY_KINDS for kind in kinds) / len(kinds) if kinds else 0.0

    @cached_property
    def op_kinds(self) -> dict[str, str]:
        """The kind of operator that makes each value of the graph; empty without a graph."""
        graph = self.brief.graph
        return {value.name: op.kind for op in graph.ops for value in op.outputs} if graph else {}

    def value_bytes(self, name: str) -> int:
        """Size of a value of the graph, 0 when unknown. A value that lowering derives is named after its origin."""
        values = self.brief.graph.values if self.brief.graph else {}
        origins = [known for known in values if name == known or name.startswith(f"{known}_")]
        return values[max(origins, key=len)].spec.nbytes if origins else 0

    def tunable(self, move: Move) -> Tunable | None:
        """The tunable that a move sets; None for another kind of move."""
        kernel = self.kernels.get(move.kernel)
        found = [tunable for tunable in kernel.tunables if tunable.name == move.name] if kernel else []
        return found[0] if found else None

    def is_larger(self, move: Move) -> bool | None:
        """True if a "set" move raises a size, False if not; None for values that are names."""
        value, was = size_of(move.value), size_of(move.was)
        return None if value is None or was is None else value > was

    def tile_bytes(self, move: Move) -> int | None:
        """float32 bytes of the kernel's largest two-dimensional tile after the move; None when it has none."""
        kernel = self.kernels.get(move.kernel)
        if kernel is None:
            return None
        chosen = {**kernel.choices, move.name: move.value}
        names = {tunable.name for tunable in kernel.tunables if tunable.aspect == "tile"}
        sides = sorted(
            (value for name, value in chosen.items() if name in names and isinstance(value, int)), reverse=True
        )
        return sides[0] * sides[1] * FLOAT_BYTES if len(sides) >= 2 else None

    @property
    def stagnating(self) -> bool:
        """True if the island no longer improves."""
        return self.brief.stagnant_generations > 0
