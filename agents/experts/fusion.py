"""The fusion expert: which operators share a kernel, one-pass algorithms, exact rewrites, number of launches."""

from __future__ import annotations

from foundry.agents.expert import Expert, Opinion
from foundry.agents.situation import Situation
from foundry.knowledge.compiler.algebra.rewrites import REASONS, rewrite_graph
from foundry.knowledge.thought import Move


def opinion(move: Move, situation: Situation) -> Opinion:
    """Weighs a change of structure by the bytes and launches that it saves or adds."""
    if move.kind == "fuse":
        return _fuse(move, situation)
    if move.kind == "split":
        return _split(move, situation)
    if move.aspect == "algorithm":
        return _algorithm(move, situation)
    if move.kind == "rewrite":
        return _rewrite(move, situation)
    if move.kind == "unwrite":
        return Opinion(0.5, "undoes an exact rewrite")
    return Opinion(1.0)


def _fuse(move: Move, situation: Situation) -> Opinion:
    """Weighs keeping a value in registers: it saves one write, one read and a launch."""
    size = situation.value_bytes(move.name)
    saved_ms = _traffic_ms(2 * size, situation)
    if saved_ms is None or not situation.candidate_ms:
        return Opinion(2.0, f"{move.name} is neither written nor read: {2 * size / 1e6:.4g} MB less")
    share = min(1.0, saved_ms / situation.candidate_ms)
    return Opinion(
        1.0 + 3.0 * share, f"{2 * size / 1e6:.4g} MB less is worth {saved_ms:.3g} ms, {100 * share:.0f} % of now"
    )


def _split(move: Move, situation: Situation) -> Opinion:
    """Weighs writing a value to memory: it adds a write and a read, and pays if a fused kernel spills, recomputes or
    vectorises badly."""
    size = situation.value_bytes(move.name)
    added_ms = _traffic_ms(2 * size, situation)
    uses = len(situation.brief.graph.users.get(move.name, [])) if situation.brief.graph else 1
    cost = f"costs {2 * size / 1e6:.4g} MB" + (f" or {added_ms:.3g} ms" if added_ms is not None else "")
    if uses > 1:
        return Opinion(1.2, f"{move.name} has {uses} users and is computed once; {cost}")
    if situation.limiter in ("occupancy", "instruction_mix", "memory_latency"):
        return Opinion(0.7, f"two simpler kernels; {cost}")
    return Opinion(0.25, cost)


def _algorithm(move: Move, situation: Situation) -> Opinion:
    """Prefers one pass if the data does not fit in the cache, and separate, simpler passes if it does."""
    word = f"{move.name}={move.value}".lower()
    one_pass = any(part in word for part in ("online", "welford", "onepass", "one_pass", "single"))
    if not one_pass:
        return Opinion(1.2 if situation.limiter in ("compute", "instruction_mix") else 1.0)
    beyond = situation.traffic_bytes > situation.brief.device.cache_bytes
    sizes = f"{situation.traffic_bytes / 1e6:.4g} MB against {situation.brief.device.cache_bytes / 1e6:.4g} MB of cache"
    return Opinion(1.8 if beyond else 0.8, f"reads the data once; {sizes}")


def _rewrite(move: Move, situation: Situation) -> Opinion:
    """Weighs an exact rewrite of the graph by the share of arithmetic and of least traffic that it saves."""
    lowered, graph = situation.brief.lowered, situation.brief.graph
    applied = lowered.rewrites_applied if lowered else ()
    if graph is None or move.name not in REASONS:
        return Opinion(1.6, "" if move.reason else "an exact rewrite of the graph")
    now, then = (rewrite_graph(graph, names).graph for names in (applied, (*applied, move.name)))
    flops, size = (_share_saved(*pair) for pair in ((now.flops, then.flops), (now.min_bytes, then.min_bytes)))
    return Opinion(
        1.2 + 4.8 * max(flops, size), f"{100 * flops:.0f} % of the arithmetic and {100 * size:.0f} % of the bytes less"
    )


def _share_saved(now: int, then: int) -> float:
    """The saved share, 0 to 1."""
    return max(0.0, 1 - then / now) if now else 0.0


def _traffic_ms(size: int, situation: Situation) -> float | None:
    """The time in ms to move `size` bytes at the measured bandwidth; None if it was not measured."""
    return 1e3 * size / situation.bandwidth if situation.bandwidth else None


EXPERT = Expert(
    name="fusion",
    mandate="Decide which operators share a kernel and by which exact algorithm: fewer bytes, fewer launches.",
    prompt="fusion",
    aspects={"fusion": 1.3, "rewrite": 1.2, "algorithm": 1.2, "precision": 0.4},
    answers={
        "memory_bandwidth": 3.0,
        "launch_overhead": 3.0,
        "synchronisation": 1.5,
        "instruction_mix": 1.5,
        "compute": 1.2,
        "memory_latency": 1.0,
        "occupancy": 1.0,
    },
    opinion=opinion,
    calls=("compile", "check", "quick_time", "profile", "sass", "show", "history", "search_experience"),
)
