"""How many blocks of a kernel a multiprocessor holds."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor (CUDA C++ Programming Guide, technical specifications by compute capability)."""

    threads: int = 2048
    blocks: int = 32
    shared_bytes: int = 233472
    registers: int = 65536


_MULTIPROCESSORS: dict[str, Multiprocessor] = {
    "sm_80": Multiprocessor(shared_bytes=167936),
    "sm_86": Multiprocessor(threads=1536, blocks=16, shared_bytes=102400),
    "sm_87": Multiprocessor(threads=1536, blocks=16, shared_bytes=167936),
    "sm_89": Multiprocessor(threads=1536, blocks=24, shared_bytes=102400),
    "sm_90": Multiprocessor(),
    "sm_100": Multiprocessor(),
    "sm_120": Multiprocessor(threads=1536, blocks=24, shared_bytes=102400),
}
_RESERVED_SHARED = 1024  # taken by the system from each block's share (compute capability 8 and later)


@dataclass(frozen=True)
class Occupancy:
    """Blocks resident on a multiprocessor, the fraction of its warps they fill, and what limits them."""

    blocks: int
    fraction: float
    limiter: str


def occupancy(arch: str, registers: int, shared_bytes: int, threads: int) -> Occupancy:
    """Theoretical occupancy, the closed form of NVIDIA's cuda_occupancy.h: registers are given out 256 a warp and by
    four warps, shared memory by 128 bytes plus the system's reserve."""
    limits = _MULTIPROCESSORS.get(arch.rstrip("af"), Multiprocessor())
    warps = math.ceil(threads / 32)
    per_warp = math.ceil(max(registers, 1) * 32 / 256) * 256
    by_registers = (limits.registers // per_warp) // 4 * 4 // warps
    by_shared = limits.shared_bytes // (math.ceil(shared_bytes / 128) * 128 + _RESERVED_SHARED)
    by_threads = limits.threads // 32 // warps
    found = [
        (by_registers, "registers"),
        (by_shared, "shared memory"),
        (by_threads, "threads"),
        (limits.blocks, "blocks"),
    ]
    blocks, limiter = min(found)
    return Occupancy(blocks, blocks * warps / (limits.threads // 32), limiter)
