"""Skips configurations that the device cannot start, before they are compiled."""

from __future__ import annotations

from foundry.knowledge.compiler.cuda.launches import decode, max_shared_bytes
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.device import Device
from foundry.tools.targets.cuda.occupancy import occupancy

MOST_THREADS = 1024  # threads of a block
FEWEST_REGISTERS = 16  # registers a thread of any kernel


def unfit(printed: PrintedKernel, device: Device) -> str:
    """The reason why a launch of a kernel cannot start on the device, "" if none is known before compilation.

    It knows threads and shared memory, and assumes 16 registers a thread.
    """
    for launch in decode(printed.call):
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        if threads > MOST_THREADS:
            return f"{threads} threads a block"
        if launch.shared_bytes > max_shared_bytes(device.arch):
            return f"{launch.shared_bytes} bytes of shared memory a block"
        if occupancy(device.arch, FEWEST_REGISTERS, launch.shared_bytes, threads).blocks < 1:
            return f"no block of {threads} threads with {launch.shared_bytes} bytes shared fits"
    return ""
