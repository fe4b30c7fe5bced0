"""What PyTorch has to be asked about the memory and the work of one kind of device, in the processes that import it."""

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
        """True if PyTorch sees a device of this kind."""
        return True

    def make_context(self) -> None:
        """Makes the process's context on the device, which takes seconds on some."""

    def synchronise(self) -> None:
        """Waits for all work that was started."""

    def free_bytes(self) -> int:
        """Memory of the device that nobody holds; 0 where it is the host's."""
        return 0

    def stay_within(self, nbytes: int) -> None:
        """Refuses this process more memory of the device than so much."""

    def allocated_bytes(self) -> int:
        """Memory of the device that PyTorch holds for tensors; 0 where it is the host's."""
        return 0

    def peak_bytes(self) -> int:
        """The most of `allocated_bytes` since `forget_peak`."""
        return 0

    def forget_peak(self) -> None:
        """Begins a new peak."""

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
    """What answers for a torch.device, or for the type of one."""
    return _of_type(device.type if isinstance(device, torch.device) else device)


@functools.cache
def _of_type(kind: str) -> TorchDevice:
    place = find_torch_side(kind)
    found: TorchDevice = load_part(place)() if place else UnknownDevice()
    return found
