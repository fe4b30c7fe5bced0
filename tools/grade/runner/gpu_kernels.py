"""Three GPU kernels of the grader: one occupies the whole GPU, one fills all shared memory, one waits for all others.

PTX that the driver compiles, so that no compiler is needed. Runs in a runner, in PyTorch's context.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any

import torch

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.extern .shared .align 16 .b8 held[];
.visible .entry fill(.param .u32 words, .param .u32 value)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  ld.param.u32 %r1, [words];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, held;
  shl.b32 %r6, %r3, 2;
  add.u32 %r5, %r5, %r6;
  shl.b32 %r6, %r4, 2;
again:
  setp.ge.u32 %p1, %r3, %r1;
  @%p1 bra done;
  st.volatile.shared.u32 [%r5], %r2;
  add.u32 %r5, %r5, %r6;
  add.u32 %r3, %r3, %r4;
  bra again;
done:
  ret;
}
.visible .entry wait(.param .u64 nanoseconds)
{
  .reg .pred %p<2>;
  .reg .b64 %d<5>;
  ld.param.u64 %d1, [nanoseconds];
  mov.u64 %d2, %globaltimer;
again:
  mov.u64 %d3, %globaltimer;
  sub.u64 %d4, %d3, %d2;
  setp.lt.u64 %p1, %d4, %d1;
  @%p1 bra again;
  ret;
}
.visible .entry meet(.param .u64 counter, .param .u32 wanted, .param .u64 nanoseconds)
{
  .reg .pred %p<4>;
  .reg .b32 %r<5>;
  .reg .b64 %d<7>;
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra together;
  ld.param.u64 %d1, [counter];
  cvta.to.global.u64 %d2, %d1;
  ld.param.u32 %r2, [wanted];
  ld.param.u64 %d3, [nanoseconds];
  mov.u64 %d4, %globaltimer;
  atom.global.add.u32 %r3, [%d2], 1;
again:
  ld.volatile.global.u32 %r4, [%d2];
  sub.u32 %r4, %r4, %r2;
  setp.ge.s32 %p2, %r4, 0;
  @%p2 bra together;
  mov.u64 %d5, %globaltimer;
  sub.u64 %d6, %d5, %d4;
  setp.lt.u64 %p3, %d6, %d3;
  @%p3 bra again;
together:
  bar.sync 0;
  ret;
}
"""
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
# Bytes of shared memory reserved by the system for each block (CUDA C++ Programming Guide, 16.8.3).
_RESERVED_BYTES = 1 << 10
_SLEEP_CYCLES_PER_MS = 2_000_000  # about 2 GHz
_MEETINGS = 3  # rounds; kernels ready on another stream get in between two of them
_MEETING_NS = 20_000_000  # ns after which a block gives up: something else keeps running


class GpuKernels:
    """The three kernels on the current device, loaded before a candidate.

    If the driver refuses them, nothing is raised; then shared memory is not filled, and only one multiprocessor is
    occupied.
    """

    def __init__(self) -> None:
        """Reads the device's limits and loads the kernels through the driver, if it takes them."""
        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._processors = int(properties.multi_processor_count)
        self._threads = int(properties.max_threads_per_multi_processor) // 2
        self._most = int(getattr(properties, "shared_memory_per_block_optin", 48 << 10))
        both = int(getattr(properties, "shared_memory_per_multiprocessor", 2 * self._most))
        self._half = min(self._most, both // 2 - _RESERVED_BYTES)
        self._stream: Any = torch.cuda.current_stream
        self._sleep: Any = torch.cuda._sleep
        self._fill: Any = None
        self._wait: Any = None
        self._meet: Any = None
        self._met = 0  # blocks that have arrived at a meeting so far
        self._counter: Any = None
        self._launch: Any = None
        torch.cuda.synchronize()  # makes the context that the driver's own functions need
        with contextlib.suppress(OSError, AttributeError):
            self._load(ctypes.CDLL("libcuda.so.1"))

    @property
    def refused(self) -> bool:
        """True if the driver refused the kernels."""
        return self._launch is None

    def _load(self, driver: Any) -> None:
        """Loads the module and finds its three kernels through the driver; leaves them unset if the driver refuses."""
        module = ctypes.c_void_p()
        if driver.cuModuleLoadData(ctypes.byref(module), _PTX):
            return
        fill, wait, meet = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        for function, name, size in ((fill, b"fill", self._most), (wait, b"wait", self._half), (meet, b"meet", 0)):
            if driver.cuModuleGetFunction(ctypes.byref(function), module, name):
                return
            if driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, size):
                return
        self._counter = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._fill, self._wait, self._meet, self._launch = fill, wait, meet, driver.cuLaunchKernel

    def fill_shared_memory(self, byte: int) -> bool:
        """Writes `byte` to all shared memory, on the current stream; True if it could.

        One block on each multiprocessor takes all of its shared memory. Otherwise a kernel would find there the
        leftovers of the last one, often the right values of its own last call. Now a kernel that reads shared memory
        it never wrote is wrong.
        """
        if self._launch is None:
            return False
        words, value = ctypes.c_uint32(self._most // 4), ctypes.c_uint32(byte * 0x01010101)
        return self._start(self._fill, self._processors, 1024, self._most, words, value)

    def hold(self, milliseconds: float) -> None:
        """Keeps every multiprocessor busy for some milliseconds, on the current stream.

        Two blocks on each take all of its threads and shared memory, so that no other stream's kernels run beside
        them.
        """
        if self._launch is not None:
            nanoseconds = ctypes.c_uint64(int(1e6 * milliseconds))
            if self._start(self._wait, 2 * self._processors, self._threads, self._half, nanoseconds):
                return
        self._sleep(int(_SLEEP_CYCLES_PER_MS * milliseconds))

    def wait_for_all(self) -> bool:
        """Holds the current stream until nothing else runs on the device; True if it could.

        Two blocks for each multiprocessor take all of its threads and end when all blocks have arrived. That cannot
        happen while another kernel has a thread.
        """
        if self._launch is None:
            return False
        blocks, started = 2 * self._processors, True
        for _ in range(_MEETINGS):
            self._met += blocks
            counter, wanted = ctypes.c_uint64(self._counter.data_ptr()), ctypes.c_uint32(self._met & 0xFFFFFFFF)
            limit = ctypes.c_uint64(_MEETING_NS)
            started = started and self._start(self._meet, blocks, self._threads, 0, counter, wanted, limit)
        return started

    def _start(self, function: Any, blocks: int, threads: int, shared_bytes: int, *parameters: Any) -> bool:
        """Launches one kernel on the current stream; True if the driver accepted it."""
        arguments = (ctypes.c_void_p * len(parameters))(*map(ctypes.addressof, parameters))
        sizes = [ctypes.c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, shared_bytes)]
        stream = ctypes.c_void_p(self._stream().cuda_stream)
        return not self._launch(function, *sizes, stream, arguments, None)


@functools.cache
def gpu_kernels() -> GpuKernels:
    """The kernels of this process, loaded at the first call."""
    return GpuKernels()
