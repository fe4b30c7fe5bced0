"""A GPU as PyTorch has it."""

from __future__ import annotations

import torch

from foundry.tools.process.torch_device import TorchDevice


class CudaDevice(TorchDevice):
    """Work is under way until it is waited for, and memory is the device's."""

    is_host = False
    has_tf32 = True
    failure = "launch_failure"

    def is_available(self) -> bool:
        """True if PyTorch can use a GPU."""
        return torch.cuda.is_available()

    def make_context(self) -> None:
        """Makes the process's CUDA context, by a tensor of one element."""
        torch.zeros(1, device="cuda")

    def synchronise(self) -> None:
        """Waits until the GPU has done all that was launched."""
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Free GPU memory in bytes, as the driver counts it."""
        return int(torch.cuda.mem_get_info()[0])

    def stay_within(self, nbytes: int) -> None:
        """Limits PyTorch's memory on the first GPU to `nbytes` in this process."""
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total))

    def allocated_bytes(self) -> int:
        """Bytes in PyTorch's tensors."""
        return torch.cuda.memory_allocated()

    def peak_bytes(self) -> int:
        """The most bytes in PyTorch's tensors since `forget_peak`."""
        return torch.cuda.max_memory_allocated()

    def forget_peak(self) -> None:
        """Begins a new peak."""
        torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        """Gives memory that PyTorch keeps for later tensors back to the GPU."""
        torch.cuda.empty_cache()
