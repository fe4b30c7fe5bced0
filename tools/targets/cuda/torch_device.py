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
        return torch.cuda.is_available()

    def make_context(self) -> None:
        torch.zeros(1, device="cuda")

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    def stay_within(self, nbytes: int) -> None:
        """Limits PyTorch's memory on the first GPU to `nbytes` in this process."""
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total))

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated()

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated()

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        torch.cuda.empty_cache()
