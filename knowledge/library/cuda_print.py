"""The CUDA printer: one entry that dispatches on the kernel's shape in the intermediate form."""

from __future__ import annotations

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda_attention import print_attention
from foundry.knowledge.library.cuda_conv import print_conv
from foundry.knowledge.library.cuda_gemm import print_gemm
from foundry.knowledge.library.cuda_map import print_map
from foundry.knowledge.library.cuda_pool import print_pool
from foundry.knowledge.library.cuda_row import print_row
from foundry.knowledge.library.cuda_scan import print_scan
from foundry.knowledge.library.ir import (
    ConvKernel,
    GemmKernel,
    Kernel,
    MapKernel,
    Plan,
    PoolKernel,
    PrintedKernel,
    RowKernel,
    ScanKernel,
)


def print_kernel(kernel: Kernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """`functions` are extern "C" __global__ kernels, `call` a JSON list of launch records (see cuda_launch.py).

    Raises CannotLower for a kernel beyond its template's limits.
    """
    if isinstance(kernel, MapKernel):
        return print_map(kernel, plan, device, choices)
    if isinstance(kernel, RowKernel):
        return print_row(kernel, plan, device, choices)
    if isinstance(kernel, GemmKernel):
        return print_gemm(kernel, plan, device, choices)
    if isinstance(kernel, ScanKernel):
        return print_scan(kernel, plan, device, choices)
    if isinstance(kernel, ConvKernel):
        return print_conv(kernel, plan, device, choices)
    if isinstance(kernel, PoolKernel):
        return print_pool(kernel, plan, device, choices)
    return print_attention(kernel, plan, device, choices)
