"""The CUDA printer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.authored.cuda_page import CudaPage
from foundry.knowledge.compiler.authored.printing import print_authored
from foundry.knowledge.compiler.cuda.contractions.attention import print_attention
from foundry.knowledge.compiler.cuda.contractions.gemm import print_gemm
from foundry.knowledge.compiler.cuda.convolutions.conv import print_conv
from foundry.knowledge.compiler.cuda.dialect import CUDA_DIALECT, runtime_header
from foundry.knowledge.compiler.cuda.launches import max_shared_bytes
from foundry.knowledge.compiler.cuda.map import print_map
from foundry.knowledge.compiler.cuda.module import COMPILER, FLAGS, cuda_module
from foundry.knowledge.compiler.cuda.pool import print_pool
from foundry.knowledge.compiler.cuda.rows.recurrence import print_recurrence
from foundry.knowledge.compiler.cuda.rows.row import print_row
from foundry.knowledge.compiler.cuda.rows.scan import print_scan
from foundry.knowledge.compiler.cuda.rows.segment import print_segments
from foundry.knowledge.compiler.cuda.rows.select import print_select
from foundry.knowledge.compiler.cuda.rows.sort import print_sort
from foundry.knowledge.compiler.file.assemble import Body, Entry
from foundry.knowledge.compiler.ir import kernels
from foundry.knowledge.compiler.ir.kernels import Plan, PrintedKernel
from foundry.knowledge.compiler.printers.base import Print, Printer
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import DType


class CudaPrinter(Printer):
    """CUDA C++, compiled by nvcc to a cubin that the candidate launches through the driver."""

    folder = "cuda"
    compiler, flags = COMPILER, FLAGS
    loader = ("def _compiler():", "class _Map:")
    imports = "ctypes hashlib json os pathlib shutil subprocess sysconfig tempfile threading"
    call_text = '''def launch(kernel, grid, block, *values, shared_bytes=0):
    """Launches a kernel of SOURCE on the current stream with pointers of tensors, `long long` and `float`."""
    driver, function = _driver(), ctypes.c_void_p()
    module = _module(torch.cuda.current_device())
    _succeed(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()), kernel)
    if shared_bytes:
        _succeed(driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared_bytes), kernel)
    sizes = [(*extents, 1, 1, 1)[:3] for extents in (grid, block)]
    stream = torch.cuda.current_stream().cuda_stream
    config = _Config(*sizes[0], *sizes[1], shared_bytes, stream, None, 0)
    given = [_value(value, ctypes.c_longlong, ctypes.c_float) for value in values]
    places = (ctypes.c_void_p * max(len(given), 1))(*[ctypes.addressof(value) for value in given])
    _succeed(driver.cuLaunchKernelEx(ctypes.byref(config), function, places, None), f"launching {kernel}")
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
            kernels.ConvKernel: print_conv,
            kernels.AttentionKernel: print_attention,
            kernels.RecurrentKernel: print_recurrence,
            kernels.AuthoredStep: self.print_authored,
        }

    def print_authored(
        self, step: kernels.AuthoredStep, plan: Plan, device: Device, choices: Mapping[str, Choice]
    ) -> PrintedKernel:
        """Prints an author's kernel as launches."""
        return print_authored(step, plan, device, choices, CudaPage)

    def module(self, entries: Sequence[Entry], device: Device) -> Body:
        """The CUDA module of all entries, with what the file must know of it."""
        body = cuda_module(entries, device)
        return replace(body, about={**body.about, **super().literals(device)})

    def header(self) -> str:
        """Text of the CUDA header that every candidate contains."""
        return runtime_header()

    def element(self, dtype: DType) -> str:
        """CUDA type in which this dtype is stored."""
        return CUDA_DIALECT.storage[dtype]

    def literals(self, device: Device) -> dict[str, object]:
        """The literals of every target, the GPU's architecture, and no launches yet."""
        return {**super().literals(device), "arch": device.arch, "launches": {}}

    def limits(self, device: Device) -> str:
        """The device's limits in words, for an author of kernels."""
        shared = max_shared_bytes(device.arch) // 1024
        return (
            f"a multiprocessor has 65,536 registers (255 a thread at most), 2,048 threads and {shared + 1} KB of "
            f"shared memory ({shared} KB a block); a thread loads 16 bytes at once"
        )
