"""Launch records: a printed CUDA kernel's launches as data, for the candidate's own launcher.

`PrintedKernel.call` of the CUDA target is a JSON list of records {"kernel", "grid": [x, y, z], "block": [x, y, z],
"shared_bytes", "args", "prepares", "cluster"}. An argument is a buffer's name, "workspace+<bytes>" for scratch memory,
"prepared+<bytes>" for memory that is kept between calls, an integer (64-bit), or a tensor map of one of these memories,
as an object of the fields of `TensorMap`. Launches that prepare fill that memory from parameters; they run only when a
parameter has changed. Dynamic and static shared memory above 48 KB together need the function's attribute raised, which
the candidate does at load. `cluster` neighbouring blocks run together and see each other's shared memory; in a cluster
of ALL_BLOCKS none sees another's, but all run at once, or the launch fails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from foundry.knowledge.compiler.ir.arithmetic import round_up
from foundry.knowledge.compiler.ir.kernels import Kernel, TorchCall
from foundry.knowledge.opgraph import DType

KERNEL_PREFIX = "foundry_"
ALL_BLOCKS = 0
MAX_SHARED_BYTES = {"sm_80": 163 * 1024, "sm_86": 99 * 1024, "sm_89": 99 * 1024, "sm_90": 227 * 1024}


class Workspace:
    """Parts of the scratch memory of a kernel, each aligned to 256 bytes, by name."""

    def __init__(self) -> None:
        self.bytes = 0
        self._offsets: dict[str, int] = {}

    def reserve(self, name: str, size: int) -> None:
        """Appends a part of `size` bytes."""
        self._offsets[name] = self.bytes
        self.bytes += round_up(size, 256)

    def argument(self, name: str) -> str:
        """The part as an argument of a launch."""
        return workspace(self._offsets[name])


def symbol_of(kernel: Kernel | TorchCall) -> str:
    """The name of a kernel's function in its module."""
    return KERNEL_PREFIX + re.sub(r"\W", "_", kernel.name)


@dataclass(frozen=True)
class TensorMap:
    """A tensor of three or four dimensions as the copy engine reads it, the innermost first: boxes of it, 128 bytes
    wide, arrive in shared memory with their 16-byte pieces swizzled, and with zeros for what lies outside."""

    memory: str
    dtype: DType
    sizes: tuple[int, ...]
    stride_bytes: tuple[int, ...]  # of all but the innermost
    box: tuple[int, ...]
    offset_bytes: int = 0  # where in the memory the tensor begins


Argument = str | int | TensorMap


@dataclass(frozen=True)
class Launch:
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    shared_bytes: int = 0
    prepares: bool = False
    cluster: int = 1  # or ALL_BLOCKS


def encode(launches: Iterable[Launch]) -> str:
    return json.dumps([asdict(launch) for launch in launches])


def decode(call: str) -> list[Launch]:
    return [
        Launch(
            kernel=item["kernel"],
            grid=tuple(item["grid"]),
            block=tuple(item["block"]),
            args=tuple(_argument(argument) for argument in item["args"]),
            shared_bytes=int(item["shared_bytes"]),
            prepares=bool(item["prepares"]),
            cluster=int(item["cluster"]),
        )
        for item in json.loads(call)
    ]


def _argument(found: str | int | dict[str, Any]) -> Argument:
    if not isinstance(found, dict):
        return found
    sizes, strides, box = (tuple(found[key]) for key in ("sizes", "stride_bytes", "box"))
    return TensorMap(found["memory"], found["dtype"], sizes, strides, box, int(found["offset_bytes"]))


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
