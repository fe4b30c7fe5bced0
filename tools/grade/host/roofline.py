"""Profile of a candidate: what limits it, from its time, the graph, its build, and what was seen of its process.

Rates are analytic: operations and compulsory bytes of the graph, over the measured time. A kernel that moves more than
it must shows a lower rate, which is the point.
"""

from __future__ import annotations

import re
from dataclasses import replace

from foundry.knowledge.candidate import Audit, Build, Profile, Timing
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device, Precision
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.roofline import Floors, floor_in_force, used_precision
from foundry.tools.audit.text.native import native_code
from foundry.tools.audit.text.source import Unreadable, foundry_literals, read_source
from foundry.tools.profiling.gather import Seen, evidence, whole
from foundry.tools.profiling.ladder import climb, with_diagnosis
from foundry.tools.targets.registry import target_of


def profile(
    text: str,
    build: Build,
    audit: Audit,
    timing: Timing,
    device: Device,
    graph: OpGraph | None = None,
    lowered: Lowered | None = None,
    *,
    floors: Floors | None = None,
    seen: Seen | None = None,
) -> Profile:
    """The profile of a candidate whose `audit` names its labels; `floors` are its task's, `seen` is what was observed
    of its process, where it was.

    Without a graph rates are 0 and the fraction of the floor is 0 (unknown); without ceilings the floor is 0.
    """
    flops, traffic_bytes = (graph.flops, graph.min_bytes) if graph is not None else (0, 0)
    seconds = timing.candidate_ms / 1e3
    used = used_precision(graph, audit.labels)
    known = floors or Floors(None, None, None)
    traffic_ms, used_ms, allowed_ms = known.traffic_ms or 0.0, known.used_ms or 0.0, known.allowed_ms or 0.0
    floor_ms = floor_in_force(used_ms, traffic_ms, timing.candidate_ms)
    facts = {**_roofline_facts(device, flops, traffic_bytes, seconds, used), **_build_facts(build)}
    started = launches(text, lowered)
    analytic = Profile(
        rung="roofline",
        achieved_bytes_per_s=traffic_bytes / seconds if seconds > 0 else 0.0,
        achieved_flops_per_s=flops / seconds if seconds > 0 else 0.0,
        fraction_of_floor=floor_ms / timing.candidate_ms if timing.candidate_ms > 0 else 0.0,
        floor_ms=floor_ms,
        launches=started,
        facts=facts,
        allowed_floor_ms=floor_in_force(allowed_ms, traffic_ms, timing.candidate_ms),
        traffic_floor_ms=traffic_ms,
        notes=seen.notes if seen else (),
    )
    around = whole(device, seen, timing.candidate_ms, started)
    climbed = climb(evidence(build, device, lowered, seen), around, target_of(device))
    return replace(with_diagnosis(analytic, climbed, device), launches=max(1, around.launches))


def _roofline_facts(
    device: Device, flops: int, traffic_bytes: int, seconds: float, precision: Precision
) -> dict[str, float | str]:
    """Both sides of the roofline in ms, the higher one, each one's share of `seconds`, flops a byte, and if traffic
    fits the cache. Neither sides nor shares without the device's ceilings."""
    facts: dict[str, float | str] = {
        "flops": float(flops),
        "traffic_bytes": float(traffic_bytes),
        "precision": precision,
    }
    if traffic_bytes:
        facts["flops_per_byte"] = flops / traffic_bytes
    memory_ms, arithmetic_ms = (
        device.floor_ms(0, traffic_bytes, precision),
        device.floor_ms(flops, 0, precision),
    )
    if memory_ms is not None and arithmetic_ms is not None:
        facts["memory_floor_ms"] = memory_ms
        facts["arithmetic_floor_ms"] = arithmetic_ms
        facts["roof"] = "memory" if memory_ms >= arithmetic_ms else "arithmetic"
        if seconds > 0 and memory_ms:
            facts["bandwidth_used"] = memory_ms / (1e3 * seconds)
        if seconds > 0 and arithmetic_ms:
            facts["arithmetic_used"] = arithmetic_ms / (1e3 * seconds)
        facts["in_cache"] = "yes" if traffic_bytes <= device.cache_bytes else "no"
    return facts


def _build_facts(build: Build) -> dict[str, float | str]:
    """The compiler's report: vector width and instruction mix on a CPU; registers, spills and occupancy on a GPU."""
    resources = build.resources
    facts: dict[str, float | str] = {}
    if resources.kernels:
        facts.update(registers=float(resources.registers), spill_bytes=float(resources.spill_bytes))
        facts["shared_bytes"] = float(resources.shared_bytes)
        if resources.occupancy is not None:
            facts["occupancy"] = resources.occupancy
    elif resources.vector_bytes:
        facts["vector_bytes"] = float(resources.vector_bytes)
    whole = sum(resources.instruction_mix.values())
    if resources.scalar_loops:
        facts["scalar_loops"] = ", ".join(resources.scalar_loops)
    for name, count in resources.instruction_mix.items():
        if whole and name != "other":
            facts[f"mix_{name}"] = count / whole
    return facts


def launches(text: str, lowered: Lowered | None = None) -> int:
    """Number of kernels (GPU) or parallel regions (CPU) that one forward starts, at least 1.

    Read from the file's FOUNDRY record, else from the lowered plan, else counted in the native code's text.
    """
    source = read_source(text)
    about = {} if isinstance(source, Unreadable) else foundry_literals(source.tree).get("FOUNDRY", {})
    listed = about.get("launches") if isinstance(about, dict) else None
    if isinstance(listed, dict | list) and listed:
        return len(listed)
    if lowered is not None and lowered.kernels:
        return len(lowered.kernels)
    code = native_code(text)
    return max(1, len(re.findall(r"<<<", code)) or len(re.findall(r"#\s*pragma\s+omp\s+parallel\b", code)))
