"""The memory-tiling expert: tile shapes, vector width, register blocking, staging, layouts, occupancy."""

from __future__ import annotations

from foundry.agents.expert import Expert, Opinion
from foundry.agents.situation import Situation, size_of
from foundry.knowledge.thought import Move


def opinion(move: Move, situation: Situation) -> Opinion:
    """Weighs one setting by rules of thumb, from the limiter and the bytes involved."""
    rules = {"tile": _tile, "vector": _vector, "memory": _memory, "parallel": _parallel}
    rule = rules.get(move.aspect)
    return rule(move, situation) if rule else Opinion(1.0)


def _tile(move: Move, situation: Situation) -> Opinion:
    """Prefers larger tiles for reuse, until they no longer fit in the nearest cache or the registers."""
    tunable = situation.tunable(move)
    if isinstance(move.value, str) and size_of(move.value) is not None:
        if tunable is None or move.value not in tunable.values:
            return Opinion(1.0)  # measured elsewhere: this kernel has the value only with other settings
        place = tunable.values.index(move.value)  # register tiles are listed best first, by loads and registers
        order = f"{place + 1} of {len(tunable.values)} in the order of loads for each multiply-add"
        return Opinion(1.5 - place / len(tunable.values), order)
    larger = situation.is_larger(move)
    limiter = situation.limiter
    size = situation.tile_bytes(move)
    near = situation.brief.device.traits.near_bytes
    if size is not None and size > 8 * near and larger:
        return Opinion(0.4, f"its tile of {size / 1024:.0f} KiB leaves the nearest {near // 1024} KiB far behind")
    if larger is None:
        return Opinion(1.0)
    fit = f"a tile of {size / 1024:.0f} KiB against {near // 1024} KiB nearby" if size is not None else ""
    if limiter == "compute":
        return Opinion(1.6 if larger else 0.8, fit or ("more reuse of each loaded value" if larger else ""))
    if limiter in ("occupancy", "launch_overhead"):
        return Opinion(0.7 if larger else 1.6, fit or "frees registers and gives every core a share")
    if limiter in ("memory_latency", "instruction_mix", "synchronisation"):
        return Opinion(1.3 if larger else 0.9, fit or "longer runs of contiguous work")
    return Opinion(1.0, fit)


def _vector(move: Move, situation: Situation) -> Opinion:
    """Prefers full vector width if code is bound by instructions or latency. Unrolling hides latency and costs
    registers."""
    larger = situation.is_larger(move)
    limiter = situation.limiter
    if larger is None:
        return Opinion(1.0)
    if limiter == "occupancy":
        return Opinion(0.6 if larger else 1.7, "needs more registers" if larger else "fewer live registers")
    if "unroll" not in move.name.lower():
        return Opinion(1.4 if larger else 0.6, "wider registers" if larger else "narrower registers may clock higher")
    if limiter in ("memory_latency", "instruction_mix", "compute"):
        why = "more independent operations in flight" if larger else "shorter code, fewer live registers"
        return Opinion(1.5 if larger else 0.8, why)
    return Opinion(1.0)


def _memory(move: Move, situation: Situation) -> Opinion:
    """Weighs one memory setting.

    Prefers streaming stores where more bytes move than the cache holds, and none where they fit. Prefers to keep a row
    on the chip, and huge pages. Of all others it prefers the larger value if memory is the limiter.
    """
    device = situation.brief.device
    name = move.name.lower()
    if "staging" in name:
        stays = move.value != "stream"
        where = "the row waits on the chip between its passes" if stays else "the row is read again"
        return Opinion(1.5 if stays else 0.6, where)
    if name == "pages":
        return Opinion(1.5 if move.value == "huge" else 0.4, "page faults of a fresh output cost more than its stores")
    if "stream" in name or "nontemporal" in name:
        turns_on = str(move.value).lower() not in ("0", "off", "no", "none", "false")
        beyond = situation.least_bytes > device.cache_bytes
        size = f"{situation.least_bytes / 1e6:.4g} MB pass through {device.cache_bytes / 1e6:.4g} MB of cache"
        return Opinion(1.8 if turns_on == beyond else 0.4, size)
    if situation.limiter in ("memory_latency", "memory_bandwidth") and situation.is_larger(move):
        return Opinion(1.3, "a deeper queue of loads")
    return Opinion(1.0)


def _parallel(move: Move, situation: Situation) -> Opinion:
    """Prefers fewer threads for tiny work, coarser chunks if synchronisation limits, more blocks if cores are idle."""
    larger = situation.is_larger(move)
    limiter = situation.limiter
    if larger is None:
        return Opinion(1.0)
    counts_workers = "thread" in move.name.lower()
    if limiter == "launch_overhead" and counts_workers:
        return Opinion(0.6 if larger else 1.6, "waking fewer threads costs less than they bring")
    if limiter == "synchronisation" and not counts_workers:
        return Opinion(1.5 if larger else 0.7, "coarser items, fewer meetings")
    if limiter in ("occupancy", "memory_latency", "memory_bandwidth") and counts_workers:
        return Opinion(1.4 if larger else 0.6, f"{situation.brief.device.cores} cores share the work")
    return Opinion(1.0)


EXPERT = Expert(
    name="tiling",
    mandate="Make the memory system and the registers carry each kernel: tiles, vectors, staging, occupancy.",
    prompt="tiling",
    aspects={"tile": 1.2, "vector": 1.1, "memory": 1.1, "parallel": 1.0, "precision": 0.4},
    answers={
        "memory_latency": 3.0,
        "compute": 3.0,
        "occupancy": 3.0,
        "instruction_mix": 2.5,
        "synchronisation": 2.0,
        "memory_bandwidth": 1.2,
        "launch_overhead": 0.8,
    },
    opinion=opinion,
    calls=("compile", "check", "quick_time", "profile", "sass", "show", "history", "search_experience", "tune"),
    tunes=True,
)
