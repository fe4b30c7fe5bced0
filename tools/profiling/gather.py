"""Collects evidence about each kernel from the records of a build and from observations of its process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foundry.knowledge.candidate import Build
from foundry.knowledge.compiler.lowered import Lowered, plan_name
from foundry.knowledge.device import Device
from foundry.tools.targets.cpu.sampling import by_function
from foundry.tools.targets.evidence import KernelEvidence, Whole


@dataclass(frozen=True)
class Seen:
    """Observations of one forward in its process.

    `launches` are a GPU's, in their order: [name, microseconds, blocks, threads]. `samples` are a CPU's: number of
    samples for each (function, library).
    """

    ms: float = 0.0
    launches: tuple[tuple[str, float, int, int], ...] = ()
    samples: Mapping[tuple[str, str], int] | None = None
    # Instruction counts of loops in libraries that the candidate built.
    instructions: Mapping[str, Mapping[str, float]] | None = None
    counters: tuple[tuple[str, dict[str, float]], ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""  # the reason why nothing was observed


def seen_launches(rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, float, int, int], ...]:
    """Valid rows of a runner's list of launches. The runner is a candidate's process, so rows may hold anything."""
    found = []
    for row in rows:
        if len(row) == 4 and isinstance(row[0], str) and all(isinstance(item, int | float) for item in row[1:]):
            found.append((row[0][:200], max(0.0, float(row[1])), int(row[2]), int(row[3])))
    return tuple(found)


def evidence(build: Build, device: Device, lowered: Lowered | None, seen: Seen | None) -> list[KernelEvidence]:
    """Everything known of each kernel of a forward: the build's report, times of launches or CPU samples, counters."""
    found = _built(build, device, lowered, seen)
    if seen is None:
        return found
    if seen.launches:
        found = _launched(found, seen.launches)
    elif seen.samples:
        found = _sampled(found, by_function(seen.samples), seen.ms)
    return _counted(found, seen.counters) if seen.counters else found


def whole(device: Device, seen: Seen | None, ms: float, launches: int) -> Whole:
    """The forward as a whole, with the best rates that the device reached."""
    ceilings = device.ceilings
    started = len([row for row in seen.launches if row[2]]) if seen and seen.launches else launches
    if ceilings is None:
        return Whole(ms, started, cores=device.cores)
    rates = ceilings.copy_bytes_per_s, ceilings.ieee_flops_per_s, ceilings.tf32_flops_per_s
    return Whole(ms, started, ceilings.launch_ms, device.cores, *rates)


def _built(build: Build, device: Device, lowered: Lowered | None, seen: Seen | None) -> list[KernelEvidence]:
    """Evidence about each kernel from the build: the compiler's report and the machine code."""
    resources = build.resources
    instructions = {**((seen.instructions if seen else None) or {}), **resources.instructions}
    names = [*resources.kernels, *(name for name in instructions if name not in resources.kernels)]
    summaries = {kernel.name: kernel for kernel in lowered.kernels} if lowered else {}
    found = []
    for name in names:
        report = {**resources.kernels.get(name, {}), **instructions.get(name, {})}
        report["machine_vector_bytes"] = float(device.vector_bytes)
        summary = summaries.get(plan_name(name))
        bytes_moved, flops = (summary.traffic_bytes, summary.flops) if summary else (0, 0)
        found.append(KernelEvidence(name, report, traffic_bytes=bytes_moved, flops=flops))
    return found


def _launched(built: list[KernelEvidence], launches: Sequence[tuple[str, float, int, int]]) -> list[KernelEvidence]:
    """Adds times and launches of a GPU to the evidence from the build."""
    rows: dict[str, list[tuple[float, int, int]]] = {}
    for name, microseconds, blocks, threads in launches:
        rows.setdefault(name, []).append((microseconds, blocks, threads))
    found = []
    for name, calls in rows.items():
        known = next((kernel for kernel in built if _is_same(kernel.name, name)), KernelEvidence(name))
        _, blocks, threads = max(calls)
        report = {**known.report, "blocks": float(blocks), "threads": float(threads)} if blocks else known.report
        time_ms = sum(row[0] for row in calls) / 1e3
        found.append(replace(known, name=plain_kernel(name), report=report, ms=time_ms, calls=len(calls)))
    return found


def _sampled(built: list[KernelEvidence], shares: Mapping[str, float], ms: float) -> list[KernelEvidence]:
    """Adds shares of CPU samples to the evidence from the build."""
    known = {kernel.name: kernel for kernel in built}
    found = []
    for name, share in shares.items():
        outside = {} if name in known or not name.startswith("(") else {"is_outside": 1.0}
        found.append(replace(known.get(name, KernelEvidence(name, outside)), ms=share * ms, calls=1))
    return found


def _counted(kernels: list[KernelEvidence], counters: Sequence[tuple[str, dict[str, float]]]) -> list[KernelEvidence]:
    """Adds to each kernel the hardware counters of its longest launch."""
    found = []
    for kernel in kernels:
        own = [counts for name, counts in counters if _is_same(kernel.name, name)]
        longest = max(own, key=lambda counts: counts.get("gpu__time_duration.sum", 0.0), default={})
        found.append(replace(kernel, counters=longest))
    return found


def plain_kernel(name: str) -> str:
    """The bare name of a kernel: `void rows<8>(float*)` becomes `rows`."""
    return re.split(r"[<(]", name.replace("(anonymous namespace)::", ""))[0].split(" ")[-1]


def _is_same(built: str, launched: str) -> bool:
    """True if a symbol of a binary is the kernel that the driver calls by a demangled name."""
    plain = plain_kernel(launched)
    last = plain.split("::")[-1]
    return built in (launched, plain) or (built.startswith("_Z") and f"{len(last)}{last}" in built)
