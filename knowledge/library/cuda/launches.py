"""Launch records: how a printed CUDA kernel says what to launch, for the candidate's own launcher.

`PrintedKernel.call` of the CUDA target is a JSON list of records {"kernel", "grid": [x, y, z], "block": [x, y, z],
"shared_bytes", "args", "prepares"}. An argument is a buffer's name, "workspace+<bytes>" for scratch memory,
"prepared+<bytes>" for memory that is kept between calls, or an integer (64-bit). Launches that prepare fill that memory
from parameters; they run only when a parameter has changed. Dynamic and static shared memory above 48 KB together need
the function's attribute raised, which the candidate does at load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

KERNEL_PREFIX = "foundry_"
MAX_SHARED_BYTES = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024}


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[str | int, ...]
    shared_bytes: int = 0
    prepares: bool = False


def encode(launches: Iterable[Launch]) -> str:
    return json.dumps([asdict(launch) for launch in launches])


def decode(call: str) -> list[Launch]:
    return [
        Launch(
            kernel=item["kernel"],
            grid=tuple(item["grid"]),
            block=tuple(item["block"]),
            args=tuple(item["args"]),
            shared_bytes=int(item["shared_bytes"]),
            prepares=bool(item["prepares"]),
        )
        for item in json.loads(call)
    ]


def workspace(offset: int) -> str:
    """The argument for scratch memory `offset` bytes into the workspace."""
    return f"workspace+{offset}"


def prepared(offset: int) -> str:
    """The argument for memory that is kept between calls, `offset` bytes into the kernel's part of it."""
    return f"prepared+{offset}"


def max_shared_bytes(arch: str) -> int:
    """Dynamic shared memory one block may have (CUDA C++ Programming Guide, compute capabilities)."""
    base = arch.rstrip("af")
    return MAX_SHARED_BYTES.get(base, 48 * 1024 if base < "sm_80" else 99 * 1024)
