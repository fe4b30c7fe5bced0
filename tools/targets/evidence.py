"""Evidence about a kernel, from any rung, on which the rules for its limit are based."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

Finding = tuple[str, str]  # a cause of knowledge/limits.py, and the numbers that decided


@dataclass(frozen=True)
class KernelEvidence:
    """Evidence about one kernel.

    `report` is the compiler's and the machine code's (tools/targets); `counters` are the hardware's, by Nsight
    Compute's names. Both are empty and `ms` is 0 if their rung did not run.
    """

    name: str
    report: Mapping[str, float] = field(default_factory=dict)
    ms: float = 0.0  # total of all calls in one forward
    calls: int = 0
    traffic_bytes: float = 0.0  # bytes of all calls together, 0 if unknown
    flops: float = 0.0
    counters: Mapping[str, float] = field(default_factory=dict)

    def hot(self, *kinds: str) -> float:
        """Share of these instruction classes in the instructions of the kernel's loops, 0 to 1."""
        whole = sum(count for name, count in self.report.items() if name.startswith("hot_"))
        return sum(self.report.get(f"hot_{kind}", 0.0) for kind in kinds) / whole if whole else 0.0

    def inner(self, *kinds: str) -> float:
        """Share of these instruction classes in its hot loop alone, if the machine code tells that loop apart; else
        `hot`."""
        whole = sum(count for name, count in self.report.items() if name.startswith("inner_") and name != "inner_stack")
        return sum(self.report.get(f"inner_{kind}", 0.0) for kind in kinds) / whole if whole else self.hot(*kinds)

    def warps(self) -> float:
        """Warps of the whole grid; 0 if the launch is unknown."""
        return self.report.get("blocks", 0.0) * -(-self.report.get("threads", 0.0) // 32)


@dataclass(frozen=True)
class Whole:
    """One forward: its time by the clock, its launches, and the rates that this device reached at best."""

    ms: float = 0.0
    launches: int = 0
    launch_ms: float = 0.0
    cores: int = 0  # multiprocessors
    bytes_per_s: float = 0.0  # ceilings; 0 if they are unknown
    flops_per_s: float = 0.0  # float32 without tensor cores
    tensor_flops_per_s: float = 0.0


def percent(share: float) -> str:
    """A share between 0 and 1 as text in percent, three digits."""
    return f"{100 * share:.3g} %"


def of_kinds(kernel: KernelEvidence, kinds: Collection[str]) -> float:
    """Number of instructions of some classes in the whole kernel."""
    return sum(kernel.report.get(f"all_{kind}", 0.0) for kind in kinds)
