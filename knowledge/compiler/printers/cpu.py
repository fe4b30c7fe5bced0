"""The C++ printer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.authored.cpu_page import CpuPage
from foundry.knowledge.compiler.authored.printing import print_authored
from foundry.knowledge.compiler.cpu.contractions.attention import print_attention
from foundry.knowledge.compiler.cpu.contractions.conv import print_conv
from foundry.knowledge.compiler.cpu.contractions.gemm import print_gemm
from foundry.knowledge.compiler.cpu.contractions.grouped import print_grouped
from foundry.knowledge.compiler.cpu.contractions.recurrence import print_recurrence
from foundry.knowledge.compiler.cpu.map import print_map
from foundry.knowledge.compiler.cpu.module import COMPILER, FLAGS, cpu_module
from foundry.knowledge.compiler.cpu.pool import print_pool
from foundry.knowledge.compiler.cpu.rows.row import print_row
from foundry.knowledge.compiler.cpu.rows.scan import print_scan
from foundry.knowledge.compiler.cpu.rows.segment import print_segments
from foundry.knowledge.compiler.cpu.rows.select import print_select
from foundry.knowledge.compiler.cpu.rows.sort import print_sort
from foundry.knowledge.compiler.file.assemble import Body, Entry
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir import kernels
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT
from foundry.knowledge.compiler.printers.base import Print, Printer
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import DType


class CpuPrinter(Printer):
    """C++ with OpenMP, compiled by the system's g++."""

    folder = "cpu"
    compiler, flags = COMPILER, FLAGS
    loader = ("def _machine():", "def _load():")
    imports = "ctypes hashlib json os pathlib platform subprocess tempfile"
    call_text = '''_LIBRARY = ctypes.CDLL(_library_path())


def call(function, *values):
    """Calls a function of SOURCE with pointers, `long` and `double`; returns what a function of type `long` does."""
    found = getattr(_LIBRARY, function)
    found.restype = ctypes.c_long
    return found(*[_value(value, ctypes.c_long, ctypes.c_double) for value in values])
'''

    def templates(self) -> Mapping[type, Print]:
        """The print function by kind of kernel."""
        return {
            kernels.MapKernel: print_map,
            kernels.RowKernel: print_row,
            kernels.ScanKernel: print_scan,
            kernels.SelectKernel: print_select,
            kernels.SortKernel: print_sort,
            kernels.SegmentKernel: print_segments,
            kernels.PoolKernel: print_pool,
            kernels.GemmKernel: print_gemm,
            kernels.GroupedKernel: print_grouped,
            kernels.ConvKernel: print_conv,
            kernels.AttentionKernel: print_attention,
            kernels.RecurrentKernel: print_recurrence,
            kernels.AuthoredStep: self.print_authored,
        }

    def print_authored(
        self, step: kernels.AuthoredStep, plan: Plan, device: Device, choices: Mapping[str, Choice]
    ) -> PrintedKernel:
        """Prints an author's kernel as calls of C++ functions."""
        return print_authored(step, plan, device, choices, CpuPage)

    def module(self, entries: Sequence[Entry], device: Device) -> Body:
        """The C++ module of all entries, with what the file must know of it."""
        body = cpu_module(entries)
        return replace(body, about={**body.about, **self.literals(device)})

    def header(self) -> str:
        """Text of the C++ header that every candidate contains."""
        return read_library_text("cpu/runtime.h")

    def element(self, dtype: DType) -> str:
        """C++ type in which this dtype is stored."""
        return CPU_DIALECT.storage[dtype]

    def limits(self, device: Device) -> str:
        """The number and width of vector registers in words, for an author of kernels."""
        registers = 32 if device.vector_bytes == 64 else 16
        return f"{registers} vector registers of {device.vector_bytes} bytes"
