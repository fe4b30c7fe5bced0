"""Hides, while the candidate's code runs, that a grader runs it: what it finds is what any benchmark's process shows,
and clocks that tell another time.

Only the audit's watched process does so. A file that is honest where it recognises the grader is wrong there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import platform
import struct
import sys
import time
import types
from pathlib import Path
from types import ModuleType, TracebackType

OURS = __name__.split(".")[0]
CACHE = "FOUNDRY_BUILD_CACHE"
ARGUMENTS = ["benchmark.py"]


class Disguise:
    """A context: inside it no module, argument or variable names the grader, and the garbage collector is on."""

    def __init__(self) -> None:
        self._hidden: dict[str, ModuleType] = {}
        self._arguments = sys.argv
        _hide_variables()

    def __enter__(self) -> None:
        names = [name for name in sys.modules if name == OURS or name.startswith(f"{OURS}.")]
        self._hidden = {name: sys.modules.pop(name) for name in names}
        self._hidden["__main__"] = sys.modules.pop("__main__")
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = list(ARGUMENTS)
        gc.enable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.disable()
        sys.argv = self._arguments
        sys.modules.update(self._hidden)


# Machine code of a clock_gettime: the kernel's time (system call 228), of which what has passed since a base is
# multiplied by a factor in 1024ths. Beside the code, at _STATE, lie the factor and the bases of 16 clocks.
_CODE = bytes.fromhex(
    "5756b8e40000000f055e5f85c0753e48690600ca9a3b4803460848ba887766554433221183e70f488b4cfa104829c8480faf0248c1f80a4801c8"
    "31d2b900ca9a3b48f7f14889064889560831c0c3"
)
_STATE, _UNIT, _CLOCKS = 2048, 1024, 16
_HOLE = bytes.fromhex("8877665544332211")  # where the code has the address of its state
_PAGE = mmap.PAGESIZE
_PAGES: list[mmap.mmap] = []  # they stay: a thread may be in one
_READ, _WRITE, _RUN = 1, 2, 4


class OtherClocks:
    """A context in which the clocks of C, C++ and Python (clock_gettime) run `factor` times as fast as they should."""

    def __init__(self, factor: float) -> None:
        self._factor = max(1, round(factor * _UNIT))
        self._place, self._original = 0, b""

    @staticmethod
    def work_here() -> bool:
        return platform.machine() == "x86_64" and sys.platform == "linux"

    def __enter__(self) -> None:
        page = mmap.mmap(-1, _PAGE, prot=_READ | _WRITE | _RUN)
        _PAGES.append(page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        bases = []
        for number in range(_CLOCKS):
            try:
                bases.append(time.clock_gettime_ns(number))
            except OSError:
                bases.append(0)
        code = _CODE.replace(_HOLE, struct.pack("<Q", start + _STATE))
        page[: len(code)] = code
        state = struct.pack(f"<qq{_CLOCKS}q", self._factor, 0, *bases)
        page[_STATE : _STATE + len(state)] = state
        self._place = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
        jump = b"\x48\xb8" + struct.pack("<Q", start) + b"\xff\xe0"  # mov rax, address; jmp rax
        self._original = ctypes.string_at(self._place, len(jump))
        _overwrite(self._place, jump)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _overwrite(self._place, self._original)


_CHANGED = contextlib.ExitStack()


def set_clocks(factor: float) -> None:
    """Clocks run at another speed from now on, or as they should again (0)."""
    _CHANGED.close()
    if factor:
        _CHANGED.enter_context(OtherClocks(factor))


def _overwrite(place: int, code: bytes) -> None:
    """Other machine code at an address."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first = place & -_PAGE
    size = (place + len(code) - first + _PAGE - 1) & -_PAGE
    if protect(first, size, _READ | _WRITE | _RUN):
        raise OSError(ctypes.get_errno(), "the clocks' machine code cannot be written to")
    ctypes.memmove(place, code, len(code))
    protect(first, size, _READ | _RUN)


def _hide_variables() -> None:
    """Takes our variables out of the environment; libraries that were compiled before are found all the same, where a
    file of ours looks for them without the variable."""
    cache = os.environ.get(CACHE)
    for name in [name for name in os.environ if name.startswith("FOUNDRY_")]:
        del os.environ[name]
    place = Path.home() / ".cache" / "foundry" / "build"
    if cache and Path(cache) != place:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(cache, target_is_directory=True)
