"""Limits of a correct kernel's speed: limiters that experts act on, causes that profilers tell apart, and the
ladder's rungs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Limiter = Literal[
    "memory_bandwidth",
    "memory_latency",
    "compute",
    "occupancy",
    "launch_overhead",
    "synchronisation",
    "instruction_mix",
]
# From the bottom: the bytes and operations of the graph; the compiler's report; the machine code; each kernel's
# time on the device; the hardware's counters. The first three need no device.
Rung = Literal["roofline", "compiler", "instructions", "times", "counters"]
RUNGS: tuple[Rung, ...] = ("roofline", "compiler", "instructions", "times", "counters")


LAUNCH_SHARE = 0.25  # share of a forward's time that its launches take, from which they limit it
SATURATED = 0.6  # share of a measured ceiling from which it is the limit

# Floating-point operations for each byte that must move, from which on blocks in registers pay, because each loaded
# value
# is used many times. A product of one row uses each weight once: 0.5 in float32, 4 with weights of 4 bits.
REUSE_FLOPS_PER_BYTE = 16.0


@dataclass(frozen=True)
class Cause:
    """The reason for a limiter, and the one thing to do about it."""

    limiter: Limiter
    action: str


CAUSES: Mapping[str, Cause] = {
    "bandwidth": Cause("memory_bandwidth", "Move fewer bytes: fuse neighbours, or read the data in fewer passes."),
    "cache_bandwidth": Cause("memory_bandwidth", "Reuse what was loaded: larger tiles in registers or shared memory."),
    "uncoalesced": Cause(
        "memory_latency",
        "Let neighbouring threads read neighbouring addresses: another mapping of threads, or a tile in shared memory.",
    ),
    "narrow_loads": Cause("memory_latency", "Load 16 bytes a thread (float4) and keep several loads in flight."),
    "latency": Cause(
        "memory_latency", "Put more independent loads in flight: unroll over independent elements, or prefetch."
    ),
    "gathers": Cause("memory_latency", "Order the data so that a vector's elements lie beside each other in memory."),
    "bank_conflicts": Cause(
        "memory_latency", "Pad or swizzle the tile in shared memory so that a warp meets all banks."
    ),
    "local_memory": Cause(
        "memory_latency", "Index arrays with constants (unrolled loops), so that they stay in registers."
    ),
    "spills": Cause(
        "occupancy", "Keep fewer values alive: a smaller tile a thread, less unrolling, or more registers."
    ),
    "few_warps": Cause(
        "occupancy", "Give every multiprocessor work: smaller tiles, or split the reduction over blocks."
    ),
    "low_occupancy": Cause("occupancy", "Let more warps be resident: less shared memory or fewer registers a block."),
    "barriers": Cause("synchronisation", "Wait less: one barrier a tile, warp shuffles, evenly shared work."),
    "atomics": Cause(
        "synchronisation", "Add up in registers and shared memory first, then one atomic a block, or none."
    ),
    "launches": Cause("launch_overhead", "Launch fewer kernels: fuse neighbours, or do small work in one launch."),
    "outside": Cause(
        "launch_overhead", "Most of the time passes outside the kernels: make forward allocate and call less."
    ),
    "arithmetic": Cause("compute", "Do fewer operations, or the products on tensor cores where the policy allows it."),
    "no_tensor_cores": Cause("compute", "Compute the product on tensor cores (mma.sync, wgmma), as the policy allows."),
    "tensor": Cause("compute", "Keep the tensor cores fed: wgmma, larger tiles, a deeper pipeline of copies."),
    "special_functions": Cause("instruction_mix", "Use fewer or cheaper exponentials, divisions and roots an element."),
    "integer": Cause(
        "instruction_mix", "Take index arithmetic out of the loop; strength-reduce divisions and remainders."
    ),
    "decoding": Cause(
        "instruction_mix",
        "Unpack with fewer instructions a value: whole vectors of packed ones at once (shifts, masks, table look-ups), "
        "scales on the sum of a group, integers multiplied as integers where that is exact.",
    ),
    "divergence": Cause(
        "instruction_mix", "Let all threads of a warp take the same way: sort the work, or use selects."
    ),
    "scalar_loop": Cause(
        "instruction_mix",
        "Vectorise the loop: along another axis than a short innermost one, or over several flattened; move operands "
        "into that order first and keep index arithmetic out of the loop.",
    ),
    "narrow_vectors": Cause("instruction_mix", "Use the machine's full vector width in the hot loops."),
}
