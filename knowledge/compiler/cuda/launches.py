"""Launch records: a printed CUDA kernel's launches as data, for the candidate's own launcher.

`PrintedKernel.call` of the CUDA target is a JSON list of records {"kernel", "grid": [x, y, z], "block": [x, y, z],
"shared_bytes", "args", "prepares", "cluster"}.

An argument is one of these:
- a buffer's name
- "workspace+<bytes>": scratch memory
- "prepared+<bytes>": memory that is kept between calls
- an integer (64-bit)
- a tensor map of one of these memories, as an object of the fields of `TensorMap`

Launches that prepare fill the kept memory from parameters; they run only when a parameter has changed. Dynamic and
static shared memory above 48 KB together need the function's attribute raised, which the candidate does at load.
`cluster` neighbouring blocks run together and see each other's shared memory. With ALL_BLOCKS no block sees another's
shared memory, but all run at once, or the launch fails."""

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
    """Named parts of a kernel's scratch memory, each aligned to 256 bytes. `bytes` is the size of all of them."""

    def __init__(self) -> None:
        self.bytes = 0
        self._offsets: dict[str, int] = {}

    def reserve(self, name: str, size: int) -> None:
        """Appends a part of `size` bytes, which `argument` then finds by its name."""
        self._offsets[name] = self.bytes
        self.bytes += round_up(size, 256)

    def argument(self, name: str) -> str:
        """The launch argument for a part that was reserved. Raises KeyError for another name."""
        return workspace_argument(self._offsets[name])


def symbol_of(kernel: Kernel | TorchCall) -> str:
    """The name of a kernel's C++ function in its module: "foundry_" and the kernel's name as an identifier."""
    return KERNEL_PREFIX + re.sub(r"\W", "_", kernel.name)


@dataclass(frozen=True)
class TensorMap:
    """A tensor of three or four dimensions as TMA reads it, the innermost first.

    Boxes of it, 128 bytes wide, arrive in shared memory with their 16-byte pieces swizzled, and with zeros outside the
    tensor."""

    memory: str
    dtype: DType
    sizes: tuple[int, ...]
    stride_bytes: tuple[int, ...]  # strides of all dimensions but the innermost
    box: tuple[int, ...]
    offset_bytes: int = 0  # where in the memory the tensor begins


Argument = str | int | TensorMap


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: its function's name, its grid and block, and its arguments in order."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Argument, ...]
    shared_bytes: int = 0
    prepares: bool = False
    cluster: int = 1  # or ALL_BLOCKS


def encode(launches: Iterable[Launch]) -> str:
    """The JSON text of the launches, as `PrintedKernel.call` holds it."""
    return json.dumps([asdict(launch) for launch in launches])


def decode(call: str) -> list[Launch]:
    """The launches in the JSON text of `PrintedKernel.call`; the inverse of `encode`."""
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
    """A launch argument from its JSON form: an object becomes a TensorMap, names and integers stay."""
    if not isinstance(found, dict):
        return found
    sizes, strides, box = (tuple(found[key]) for key in ("sizes", "stride_bytes", "box"))
    return TensorMap(
        found["memory"], found["dtype"], sizes, stride_bytes=strides, box=box, offset_bytes=int(found["offset_bytes"])
    )


def workspace_argument(offset: int) -> str:
    """The launch argument for scratch memory, `offset` bytes into the workspace."""
    return f"workspace+{offset}"


def prepared_argument(offset: int) -> str:
    """The launch argument for memory that is kept between calls, `offset` bytes into the kernel's part of it."""
    return f"prepared+{offset}"


def max_shared_bytes(arch: str) -> int:
    """The most shared memory in bytes that one block may have, by the CUDA C++ Programming Guide. `arch` is like
    "sm_90a"; unknown ones get 99 KB, those before sm_80 get 48 KB."""
    base = arch.rstrip("af")
    return MAX_SHARED_BYTES.get(base, 48 * 1024 if base < "sm_80" else 99 * 1024)
