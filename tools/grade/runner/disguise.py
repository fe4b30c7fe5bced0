"""Hides the grader from the candidate's code, changes the speed of clocks, and disables other libraries' arithmetic.

Only the audit's watched process does so. A file that is honest only when it recognises the grader is wrong there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import platform
import re
import struct
import sys
import time
import types
from pathlib import Path
from types import ModuleType, TracebackType

import torch

from foundry.tools.machine.installed import is_installed
from foundry.tools.process import procfs

OURS = __name__.split(".")[0]  # name of this package
CACHE = "FOUNDRY_BUILD_CACHE"
ARGUMENTS = ["benchmark.py"]  # sys.argv that the candidate sees


class Disguise:
    """A context in which no module, argument or variable names the grader, and the garbage collector is on."""

    def __init__(self) -> None:
        """Removes the grader's environment variables; modules and arguments are hidden only within the context."""
        self._hidden: dict[str, ModuleType] = {}
        self._arguments = sys.argv
        _hide_variables()

    def __enter__(self) -> None:
        """Takes the grader's modules out of sys.modules, replaces __main__ and sys.argv, enables garbage collection."""
        names = [name for name in sys.modules if name == OURS or name.startswith(f"{OURS}.")]
        self._hidden = {name: sys.modules.pop(name) for name in names}
        self._hidden["__main__"] = sys.modules.pop("__main__")
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = list(ARGUMENTS)
        gc.enable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Disables garbage collection; puts arguments and modules back."""
        gc.disable()
        sys.argv = self._arguments
        sys.modules.update(self._hidden)


# Machine code of a clock_gettime: the kernel's time (system call 228), with the time since a base multiplied by a
# factor in 1024ths. The factor and the bases of 16 clocks lie beside the code, at _STATE.
_CODE = bytes.fromhex(
    "5756b8e40000000f055e5f85c0753e48690600ca9a3b4803460848ba887766554433221183e70f488b4cfa104829c8480faf0248c1f80a4801c8"
    "31d2b900ca9a3b48f7f14889064889560831c0c3"
)
_STATE, _UNIT, _CLOCKS = 2048, 1024, 16
# A thread that waits for a time of day reads the slow clock, and the kernel, whose clock is ahead, wakes it at once,
# over and over: the thread of PyTorch's profiler, every 5 s, took a core. So a slow clock is set ahead by an hour.
_AHEAD_NS = 3600 * 10**9
_HOLE = bytes.fromhex("8877665544332211")  # placeholder in the code for the address of its state
_PAGE = mmap.PAGESIZE
_PAGES: list[mmap.mmap] = []  # kept for good: a thread may be executing in one
_READ, _WRITE, _RUN = 1, 2, 4


class OtherClocks:
    """A context in which the clocks of C, C++ and Python (clock_gettime) run `factor` times as fast.

    Slow clocks have the time of day set an hour ahead.
    """

    def __init__(self, factor: float) -> None:
        """`factor`: seconds that the clocks advance in one real second."""
        self._factor = max(1, round(factor * _UNIT))
        self._place, self._original = 0, b""

    @staticmethod
    def work_here() -> bool:
        """True on x86-64 Linux."""
        return platform.machine() == "x86_64" and sys.platform == "linux"

    def __enter__(self) -> None:
        """Overwrites the start of the C library's clock_gettime by a jump to code that returns the changed time."""
        page = mmap.mmap(-1, _PAGE, prot=_READ | _WRITE | _RUN)
        _PAGES.append(page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        bases = []
        for number in range(_CLOCKS):
            try:
                bases.append(time.clock_gettime_ns(number))
            except OSError:
                bases.append(0)
        if self._factor < _UNIT:
            bases[time.CLOCK_REALTIME] += _AHEAD_NS * _UNIT // (_UNIT - self._factor)
        code = _CODE.replace(_HOLE, struct.pack("<Q", start + _STATE))
        page[: len(code)] = code
        state = struct.pack(f"<qq{_CLOCKS}q", self._factor, 0, *bases)
        page[_STATE : _STATE + len(state)] = state
        self._place = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
        jump = b"\x48\xb8" + struct.pack("<Q", start) + b"\xff\xe0"  # mov rax, address; jmp rax
        self._original = ctypes.string_at(self._place, len(jump))
        _overwrite(self._place, jump)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Writes the clocks' original code back."""
        _overwrite(self._place, self._original)


_CHANGED = contextlib.ExitStack()


def pretend(factor: float, *, alone: bool) -> list[str]:
    """Undoes the change before, then sets the speed of clocks to `factor` (0: as usual).

    `alone` also disables the arithmetic of other libraries; returns which.
    """
    _CHANGED.close()
    if factor:
        _CHANGED.enter_context(OtherClocks(factor))
    return _silence_others() if alone else []


# ---------------------------------------------------------------- other libraries' arithmetic

_RETURN = b"\xc3"  # the instruction `ret`: a function that does nothing
_BLAS = [  # products, under the names that builds of OpenBLAS and BLIS give them
    f"{prefix}{kind}{name}{ending}"
    for kind in "sdcz"
    for name in ("gemm", "gemmt", "gemm3m", "gemv", "ger", "syrk", "syr", "symm", "symv", "trsm", "trmm", "dot", "axpy")
    for prefix in ("cblas_", "scipy_cblas_", "", "scipy_")
    for ending in ("", "64_", "_", "_64_")
]
_LOOPS, _LOOP_COUNT, _POINTER = 32, 48, 8  # offsets in NumPy's PyUFuncObject, and bytes of a pointer


def _silence_others() -> list[str]:
    """Disables NumPy's floating-point loops and the products of every BLAS but PyTorch's; returns the libraries
    changed.

    The functions' code is overwritten, so that names, tables and addresses all lead to nothing.
    """
    if not OtherClocks.work_here():
        return []
    found = [path for path in sorted(procfs.mapped_code()) if is_installed(path) and _silence_blas(path)]
    return [*found, "numpy"] if _silence_loops() else found


def _silence_blas(path: str) -> bool:
    """Overwrites the products of a mapped BLAS library (not PyTorch's) by a return until the end of the mode.

    True if it has any.
    """
    if "/torch/" in path or not re.search("blas|blis", Path(path).name):
        return False
    library, pytorch = (ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW) for name in (path, torch._C.__file__))
    places = {_address(library, name) for name in _BLAS} - {_address(pytorch, name) for name in _BLAS} - {0}
    for place in places:
        _CHANGED.callback(_overwrite, place, ctypes.string_at(place, len(_RETURN)))
        _overwrite(place, _RETURN)
    return bool(places)


def _address(library: ctypes.CDLL, name: str) -> int:
    """The address of a library's function; 0 if it has none of this name."""
    function = getattr(library, name, None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


def _silence_loops() -> bool:
    """Disables every loop of NumPy's functions that writes floating numbers; True if NumPy is loaded."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    page = mmap.mmap(-1, _PAGE, prot=_READ | _WRITE | _RUN)
    _PAGES.append(page)
    page[: len(_RETURN)] = _RETURN
    nothing = ctypes.addressof(ctypes.c_char.from_buffer(page))
    for function in {value for value in vars(numpy).values() if isinstance(value, numpy.ufunc)}:
        if ctypes.c_int.from_address(id(function) + _LOOP_COUNT).value != function.ntypes:
            return False  # its layout differs from the known versions'
        loops = ctypes.c_void_p.from_address(id(function) + _LOOPS).value or 0
        for number, types_of_one in enumerate(function.types[: function.ntypes]):
            if types_of_one[-1] in "efdgFDG":
                loop = ctypes.c_void_p.from_address(loops + number * _POINTER)
                _CHANGED.callback(setattr, loop, "value", loop.value)
                loop.value = nothing
    return True


def _overwrite(place: int, code: bytes) -> None:
    """Writes machine code to an address, whose pages are made writable meanwhile; raises OSError."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    first = place & -_PAGE
    size = (place + len(code) - first + _PAGE - 1) & -_PAGE
    if protect(first, size, _READ | _WRITE | _RUN):
        raise OSError(ctypes.get_errno(), "machine code cannot be written to")
    ctypes.memmove(place, code, len(code))
    protect(first, size, _READ | _RUN)


def _hide_variables() -> None:
    """Removes this package's environment variables; the build cache is linked to the place at which it is found
    without them."""
    cache = os.environ.get(CACHE)
    for name in [name for name in os.environ if name.startswith("FOUNDRY_")]:
        del os.environ[name]
    place = Path.home() / ".cache" / "foundry" / "build"
    if cache and Path(cache) != place:
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(cache, target_is_directory=True)
