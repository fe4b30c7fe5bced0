"""The CPU printer: picks the template of each kernel."""

from __future__ import annotations

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library import ir
from foundry.knowledge.library.ir import Kernel, Plan, PrintedKernel


def print_kernel(kernel: Kernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """C++ for one kernel. Choices that are not legal for it take their defaults. Raises CannotLower."""
    match kernel:
        case ir.MapKernel():
            from foundry.knowledge.library.cpu_map import print_map

            return print_map(kernel, plan, device, choices)
        case ir.RowKernel():
            from foundry.knowledge.library.cpu_row import print_row

            return print_row(kernel, plan, device, choices)
        case ir.ScanKernel():
            from foundry.knowledge.library.cpu_scan import print_scan

            return print_scan(kernel, plan, device, choices)
        case ir.PoolKernel():
            from foundry.knowledge.library.cpu_pool import print_pool

            return print_pool(kernel, plan, device, choices)
        case ir.GemmKernel():
            from foundry.knowledge.library.cpu_gemm import print_gemm

            return print_gemm(kernel, plan, device, choices)
        case ir.ConvKernel():
            from foundry.knowledge.library.cpu_conv import print_conv

            return print_conv(kernel, plan, device, choices)
        case ir.AttentionKernel():
            from foundry.knowledge.library.cpu_attention import print_attention

            return print_attention(kernel, plan, device, choices)
    raise CannotLower(f"the CPU has no template for {type(kernel).__name__}")
