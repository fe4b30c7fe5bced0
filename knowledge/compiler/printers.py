"""The printers of the targets: which template prints a kernel, and which writes the candidate's file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.file.assemble import Entry, Reference, assemble
from foundry.knowledge.compiler.ir import kernels
from foundry.knowledge.compiler.ir.kernels import Kernel, Plan, PrintedKernel
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower

Print = Callable[..., PrintedKernel]  # (a kernel of its own class, plan, device, choices)


def print_kernel(kernel: Kernel, plan: Plan, device: Device, choices: dict[str, Choice]) -> PrintedKernel:
    """The text of one kernel for the device's target.

    On the CPU `functions` are C++ functions and `call` is a C++ statement; in CUDA `functions` are extern "C"
    __global__ kernels and `call` is a JSON list of launch records (cuda/launches.py). Choices that are not legal for
    the kernel take their defaults. Raises CannotLower for a kernel beyond its template's limits.
    """
    return printers(device.target)[type(kernel)](kernel, plan, device, choices)


@functools.cache
def printers(target: str) -> Mapping[type, Print]:
    """The printer of each class of kernels, imported when its target is first asked for."""
    return _cpu() if target == "cpu" else _cuda()


def _cpu() -> Mapping[type, Print]:
    from foundry.knowledge.compiler.authored.printing import print_authored
    from foundry.knowledge.compiler.cpu.contractions.attention import print_attention
    from foundry.knowledge.compiler.cpu.contractions.conv import print_conv
    from foundry.knowledge.compiler.cpu.contractions.gemm import print_gemm
    from foundry.knowledge.compiler.cpu.contractions.recurrence import print_recurrence
    from foundry.knowledge.compiler.cpu.map import print_map
    from foundry.knowledge.compiler.cpu.pool import print_pool
    from foundry.knowledge.compiler.cpu.rows.row import print_row
    from foundry.knowledge.compiler.cpu.rows.scan import print_scan
    from foundry.knowledge.compiler.cpu.rows.segment import print_segments
    from foundry.knowledge.compiler.cpu.rows.select import print_select
    from foundry.knowledge.compiler.cpu.rows.sort import print_sort

    return {
        kernels.MapKernel: print_map,
        kernels.RowKernel: print_row,
        kernels.ScanKernel: print_scan,
        kernels.SelectKernel: print_select,
        kernels.SortKernel: print_sort,
        kernels.SegmentKernel: print_segments,
        kernels.PoolKernel: print_pool,
        kernels.GemmKernel: print_gemm,
        kernels.ConvKernel: print_conv,
        kernels.AttentionKernel: print_attention,
        kernels.RecurrentKernel: print_recurrence,
        kernels.AuthoredStep: print_authored,
    }


def _cuda() -> Mapping[type, Print]:
    from foundry.knowledge.compiler.authored.printing import print_authored
    from foundry.knowledge.compiler.cuda.contractions.attention import print_attention
    from foundry.knowledge.compiler.cuda.contractions.gemm import print_gemm
    from foundry.knowledge.compiler.cuda.convolutions.conv import print_conv
    from foundry.knowledge.compiler.cuda.map import print_map
    from foundry.knowledge.compiler.cuda.pool import print_pool
    from foundry.knowledge.compiler.cuda.rows.recurrence import print_recurrence
    from foundry.knowledge.compiler.cuda.rows.row import print_row
    from foundry.knowledge.compiler.cuda.rows.scan import print_scan
    from foundry.knowledge.compiler.cuda.rows.segment import print_segments
    from foundry.knowledge.compiler.cuda.rows.select import print_select
    from foundry.knowledge.compiler.cuda.rows.sort import print_sort

    return {
        kernels.MapKernel: print_map,
        kernels.RowKernel: print_row,
        kernels.ScanKernel: print_scan,
        kernels.SelectKernel: print_select,
        kernels.SortKernel: print_sort,
        kernels.SegmentKernel: print_segments,
        kernels.PoolKernel: print_pool,
        kernels.GemmKernel: print_gemm,
        kernels.ConvKernel: print_conv,
        kernels.AttentionKernel: print_attention,
        kernels.RecurrentKernel: print_recurrence,
        kernels.AuthoredStep: print_authored,
    }


def module_file(reference: Reference | str, entries: Sequence[Entry], device: Device) -> str:
    """The text of a candidate that runs `entries`, dispatched on input shapes, with the parameters of `reference` (or
    of the class Model in a task's source). Raises CannotLower for a target without a printer.
    """
    if isinstance(reference, str):
        reference = Reference(reference)
    if device.target == "cpu":
        from foundry.knowledge.compiler.cpu.module import cpu_module

        body = cpu_module(entries)
    elif device.target == "cuda":
        from foundry.knowledge.compiler.cuda.module import cuda_module

        body = cuda_module(entries, device)
    else:
        raise CannotLower(f"no module template for target {device.target}")
    return assemble(reference, entries, body, device.target)
