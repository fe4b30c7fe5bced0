"""Memory and synchronisation of one kind of device through PyTorch, for the processes that import it."""

from __future__ import annotations

import ctypes
import functools

import torch

from foundry.knowledge.targets import find_torch_side, load_part


class TorchDevice:
    """The host: a call has ended when it returns, and memory is the process's own. Other kinds override all of it."""

    is_host = True
    has_tf32 = False
    failure = "crash"  # the outcome of a timed call that raises

    def is_available(self) -> bool:
        """True if PyTorch sees a device of this kind; always for the host."""
        return True

    def make_context(self) -> None:
        """Makes the process's context on the device, which takes seconds on some."""

    def synchronise(self) -> None:
        """Waits for all work that was started."""

    def free_bytes(self) -> int:
        """Free memory of the device in bytes; 0 if it is the host's."""
        return 0

    def stay_within(self, nbytes: int) -> None:
        """Limits this process to `nbytes` bytes of the device's memory."""

    def allocated_bytes(self) -> int:
        """Memory of the device in bytes that PyTorch holds for tensors; 0 if it is the host's."""
        return 0

    def peak_bytes(self) -> int:
        """The largest `allocated_bytes` since `forget_peak`, in bytes; 0 if it is the host's memory."""
        return 0

    def forget_peak(self) -> None:
        """Starts a new measurement of `peak_bytes`."""

    def release(self) -> None:
        """Gives free memory back to the system."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


class UnknownDevice(TorchDevice):
    """A type of torch.device that no target uses, as "meta": there is nothing to wait for, and no memory to count."""

    is_host = False

    def release(self) -> None:
        """Holds nothing."""


def torch_device_of(device: torch.device | str) -> TorchDevice:
    """The `TorchDevice` of a torch.device or of its type ("cuda"); an `UnknownDevice` for types without a target."""
    return _of_type(device.type if isinstance(device, torch.device) else device)


@functools.cache
def _of_type(kind: str) -> TorchDevice:
    """The functions for a kind of device ("cuda"), cached; UnknownDevice if no target has it."""
    place = find_torch_side(kind)
    found: TorchDevice = load_part(place)() if place else UnknownDevice()
    return found
