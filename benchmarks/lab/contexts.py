"""What CUDA contexts cost a host: one alone, and eight at once on one GPU and on all, by the number of hardware queues.

    python benchmarks/lab/contexts.py

Each process has a context of its own on one GPU, as the grader's have: seconds until all have theirs, and until all are
gone once they are killed. The driver alone, without PyTorch.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

from foundry.tools.targets.cuda.describe import visible_gpus

QUEUES = (8, 4, 2, 1)
AT_ONCE = 8


def hold_context(gpu: str, queues: int, told: int, tells: int) -> None:
    """In a process of its own: makes a context when told to, tells whether it has one, and waits to be killed."""
    try:
        has_one = make_context(gpu, queues, told)
    except OSError:
        has_one = False
    os.write(tells, b"y" if has_one else b"n")
    signal.pause()


def make_context(gpu: str, queues: int, told: int) -> bool:
    os.environ |= {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
    driver = ctypes.CDLL("libcuda.so.1")
    os.read(told, 1)
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    driver.cuCtxSetCurrent(context)
    return bool(driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)) == 0)


def measure(count: int, gpus: list[str], queues: int) -> tuple[float, float]:
    """(seconds until `count` processes have contexts, until all are gone). Raises RuntimeError if one got none."""
    begin, begun = os.pipe()
    done, tells = os.pipe()
    processes = []
    for number in range(count):
        process = os.fork()
        if not process:
            hold_context(gpus[number % len(gpus)], queues, begin, tells)
        processes.append(process)
    time.sleep(0.2)  # all wait
    start = time.monotonic()
    os.write(begun, b"x" * count)
    answers = b"".join(os.read(done, 1) for _ in processes)
    made = time.monotonic()
    for process in processes:
        os.kill(process, signal.SIGKILL)
    for process in processes:
        os.waitpid(process, 0)
    gone = time.monotonic()
    for handle in (begin, begun, done, tells):
        os.close(handle)
    if answers != b"y" * count:
        raise RuntimeError("a process got no context")
    return made - start, gone - made


def main() -> None:
    gpus = visible_gpus()
    if not gpus:
        raise SystemExit("there is no NVIDIA GPU here")
    measure(1, gpus[:1], QUEUES[0])  # the first one finds the driver cold
    for queues in QUEUES:
        for count, places in ((1, gpus[:1]), (AT_ONCE, gpus[:1]), (AT_ONCE, gpus)):
            made, gone = measure(count, places, queues)
            where = f"{count} on {len(places)} GPUs"
            print(f"{queues} queues, {where}: made in {made:.3f} s ({made / count:.3f} each), gone in {gone:.3f} s")


if __name__ == "__main__":
    main()
