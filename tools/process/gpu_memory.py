"""GPU memory that several processes map, shared by an open file that is sent between them. Free of torch.

CUDA's own handles for sharing (cudaIpcMemHandle) fail between processes that do not see each other; files from the
virtual memory interface (CUDA driver API, "Virtual Memory Management") do not. Any holder of the file may write to
the memory, so only data that each of them may change belongs there.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import Any

_PINNED, _ON_DEVICE, _POSIX_FILE, _READ_WRITE = 1, 1, 1, 3  # CUmemAllocationType and others of cuda.h

POLL_S = 0.05  # seconds between two attempts to allocate


class _Location(ctypes.Structure):
    """C struct CUmemLocation of the CUDA driver API."""

    _fields_ = (("kind", ctypes.c_int), ("number", ctypes.c_int))


class _Flags(ctypes.Structure):
    """C struct of allocation flags inside CUmemAllocationProp."""

    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("direct", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    """C struct CUmemAllocationProp of the CUDA driver API."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    """C struct CUmemAccessDesc of the CUDA driver API."""

    _fields_ = (("location", _Location), ("rights", ctypes.c_int))


class OutOfGpuMemory(Exception):
    """The device has too little free memory for a request."""


class SharedGpuMemory:
    """One block of the first device's memory, mapped into this process until `close` or until the object is freed.

    The process must have a context on the device (PyTorch makes one with its first tensor).
    """

    def __init__(self, block: int, nbytes: int) -> None:
        """Maps the driver's block into this process; releases the block if that fails."""
        self.nbytes = nbytes
        self.address = 0
        self._block = block
        try:
            self.address = _mapped(block, nbytes)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(nbytes: int, patience_s: float = 0.0) -> SharedGpuMemory:
        """A new block of at least `nbytes`. Raises OutOfGpuMemory, OSError.

        While it does not fit, this waits up to `patience_s` seconds for memory that ending processes or other tasks
        release.
        """
        unit = _granularity()
        block = ctypes.c_ulonglong()
        none = ctypes.c_ulonglong(0)
        size, stop = -(-max(nbytes, 1) // unit) * unit, time.monotonic() + patience_s
        while True:
            try:
                _call("cuMemCreate", ctypes.byref(block), ctypes.c_size_t(size), ctypes.byref(_properties()), none)
                return SharedGpuMemory(block.value, size)
            except OutOfGpuMemory:
                if time.monotonic() > stop:
                    raise
                time.sleep(POLL_S)

    @staticmethod
    def opened(handle: int, nbytes: int) -> SharedGpuMemory:
        """The block behind another process's open file, which stays the caller's. Raises OSError."""
        block = ctypes.c_ulonglong()
        _call("cuMemImportFromShareableHandle", ctypes.byref(block), ctypes.c_void_p(handle), _POSIX_FILE)
        return SharedGpuMemory(block.value, nbytes)

    def handle(self) -> int:
        """A new open file that stands for the block."""
        handle = ctypes.c_int()
        block = ctypes.c_ulonglong(self._block)
        _call("cuMemExportToShareableHandle", ctypes.byref(handle), block, _POSIX_FILE, ctypes.c_ulonglong(0))
        return handle.value

    def close(self) -> None:
        """Unmaps the block after the device has finished its work; the last process to do so frees the memory."""
        if self.address:
            _call("cuCtxSynchronize", may_fail=True)
            _call("cuMemUnmap", ctypes.c_ulonglong(self.address), ctypes.c_size_t(self.nbytes), may_fail=True)
            _call("cuMemAddressFree", ctypes.c_ulonglong(self.address), ctypes.c_size_t(self.nbytes), may_fail=True)
        if self._block:
            _call("cuMemRelease", ctypes.c_ulonglong(self._block), may_fail=True)
        self.address = self._block = 0

    def __del__(self) -> None:
        """Unmaps the memory, unless that has been done."""
        self.close()


def _mapped(block: int, nbytes: int) -> int:
    """The address at which a block is mapped for reading and writing."""
    address = ctypes.c_ulonglong()
    size = ctypes.c_size_t(nbytes)
    none = ctypes.c_ulonglong(0)
    _call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), none, none)
    try:
        _call("cuMemMap", address, size, ctypes.c_size_t(0), ctypes.c_ulonglong(block), none)
        access = _Access(_Location(_ON_DEVICE, 0), _READ_WRITE)
        _call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))
    except OSError:
        _call("cuMemAddressFree", address, size, may_fail=True)
        raise
    return address.value


@functools.cache
def _granularity() -> int:
    """Size in bytes of which every block must be a multiple."""
    size = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(_properties()), 0)
    return size.value


def _properties() -> _Properties:
    """Memory of the first device that can be shared by an open file."""
    return _Properties(_PINNED, _POSIX_FILE, _Location(_ON_DEVICE, 0), None, _Flags())


@functools.cache
def _driver() -> Any:
    """The CUDA driver's library, loaded once in a process. Raises OSError without one."""
    return ctypes.CDLL("libcuda.so.1")


_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


def _call(name: str, *arguments: Any, may_fail: bool = False) -> None:
    """Calls a function of the CUDA driver; raises OutOfGpuMemory or OSError unless it `may_fail`."""
    code = getattr(_driver(), name)(*arguments)
    if code == _OUT_OF_MEMORY and not may_fail:
        raise OutOfGpuMemory(f"{name}: the GPU is out of memory")
    if code and not may_fail:
        raise OSError(code, f"{name} failed with CUDA error {code}")
