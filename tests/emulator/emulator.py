"""Runs CUDA kernels on the CPU: results, bounds and synchronisation are checked, speed is not.

The kernels are rewritten a little (dynamic shared memory), compiled by g++ behind `cuda_emulator.h`, and launched as
the launch records say. It is how a machine without a GPU proves a CUDA template's results.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from foundry.knowledge.compiler.cuda.launches import Argument, Launch, TensorMap
from foundry.knowledge.errors import MissingTool
from foundry.knowledge.opgraph import ITEM_BYTES

HEADERS = [Path(__file__).with_name(name) for name in ("cuda_emulator.h", "fibers.h", "clusters.h", "warp_products.h")]
COMPILE_LIMIT_S = 120
UNCLEARED = 0xFFC1FFC1  # a word of uninitialised memory: NaN in every type
FLAGS = ("-std=c++17", "-O0", "-fopenmp", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\s*\w+\s*\)\s*|alignas\s*\(\s*\w+\s*\)\s*)?([\w:\s]+?)\s+(\w+)\s*\[\s*\]\s*;"
)
_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](?:cuda\w*|math_constants)\.h[>"].*$', re.MULTILINE)


class EmulationError(Exception):
    """The source does not compile for the emulator; the first error line says why."""


def emulation_source(source: str, launches: Sequence[Launch]) -> tuple[str, list[str]]:
    """C++ text with an entry `int emulate(void** buffers, char* workspace)`, and the buffers' names in its order."""
    memories = [arg.memory if isinstance(arg, TensorMap) else arg for launch in launches for arg in launch.args]
    names = sorted({name for name in memories if isinstance(name, str) and not _offset(name)[0]})
    order = {name: number for number, name in enumerate(names)}
    lines = [_launch_line(launch, order) for launch in launches]
    body = _DYNAMIC_SHARED.sub(r"EMULATED_DYNAMIC_SHARED(\1, \2);", _INCLUDE.sub("", source))
    entry = 'extern "C" int emulate(void** buffers, char* workspace) {\n' + "\n".join(lines) + "\n    return 0;\n}\n"
    return f'#include "cuda_emulator.h"\n{body}\n{entry}', names


@functools.cache
def header_folder() -> Path:
    """A folder with the emulator's header and its precompiled form, which goes with this process: reading the header
    and what it includes is most of what compiling a small kernel costs."""
    folder = tempfile.TemporaryDirectory(prefix="emulator-")
    atexit.register(folder.cleanup)
    header, *_ = [Path(shutil.copy(path, folder.name)) for path in HEADERS]
    command = ["g++", *FLAGS, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run(command, check=False, capture_output=True, timeout=COMPILE_LIMIT_S)  # without it, it is only slower
    return header.parent


def build_emulation(source: str, launches: Sequence[Launch], folder: Path) -> tuple[Path, list[str]]:
    """Compiles the kernels for the CPU into `folder`; returns the library and the order of its buffers.

    Raises EmulationError with the first compiler error, MissingTool without g++."""
    text, names = emulation_source(source, launches)
    key = hashlib.sha256(text.encode()).hexdigest()[:24]
    library = folder / f"emulated-{key}.so"
    if library.exists():
        return library, names
    unit = folder / f"emulated-{key}.cpp"
    unit.write_text(text)
    try:
        command = ["g++", *FLAGS, f"-I{header_folder()}", str(unit), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S)
    except FileNotFoundError as error:
        raise MissingTool("the emulator needs g++", "sudo apt-get install g++") from error
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if " error: " in line), done.stderr[:200])
        raise EmulationError(first)
    return library, names


def run_emulation(library: Path, names: Sequence[str], addresses: Mapping[str, int], workspace_bytes: int = 0) -> None:
    """Launches the kernels on CPU memory in this process. Call it in a child: a violation ends the process with 97."""
    buffers = (ctypes.c_void_p * max(len(names), 1))(*[addresses[name] for name in names])
    words = workspace_bytes // 4 + 64
    workspace = (ctypes.c_uint32 * words)(*[UNCLEARED] * words)
    aligned = (ctypes.addressof(workspace) + 255) & ~255
    ctypes.CDLL(str(library)).emulate(buffers, ctypes.c_void_p(aligned))


def _offset(argument: str) -> tuple[bool, int]:
    """(True, bytes) for "workspace+<bytes>", else (False, 0)."""
    if argument.startswith("workspace+"):
        return True, int(argument.removeprefix("workspace+"))
    return False, 0


def _argument(argument: Argument, order: Mapping[str, int]) -> str:
    if isinstance(argument, int):
        return f"{argument}LL"
    if isinstance(argument, TensorMap):
        strides = (ITEM_BYTES[argument.dtype], *argument.stride_bytes)
        shape = ", ".join(f"{{{', '.join(map(str, values))}}}" for values in (argument.sizes, strides, argument.box))
        base = f"static_cast<const char*>({_argument(argument.memory, order)}) + {argument.offset_bytes}"
        return f"bulk::Map{{{base}, {shape}}}"
    if _offset(argument)[0]:
        return f"static_cast<void*>(workspace + {_offset(argument)[1]})"
    return f"buffers[{order[argument]}]"


def _launch_line(launch: Launch, order: Mapping[str, int]) -> str:
    arguments = [_argument(argument, order) for argument in launch.args]
    grid, block = (f"dim3({', '.join(str(size) for size in sizes)})" for sizes in (launch.grid, launch.block))
    words = [str(launch.cluster), grid, block, str(launch.shared_bytes), launch.kernel, *arguments]
    return f"    emulator::launch({', '.join(words)});"
