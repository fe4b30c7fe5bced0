"""A harness that prints one CPU kernel, compiles it and runs it on torch tensors."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._export.utils import _collect_all_valid_cia_ops
from torch._subclasses.fake_impls import op_implementations_dict
from torch.export.exported_program import _override_composite_implicit_decomp

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.ir.kernels import Buffer, Kernel, Plan, PrintedKernel
from foundry.knowledge.compiler.ir.scalar import CPU_DIALECT
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import Arrangement

FLAGS = ["-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-Wall", "-Werror", "-shared", "-fPIC"]
Printer = Callable[[Any, Plan, Device, dict[str, Choice]], PrintedKernel]


def native_device(cores: int = 2) -> Device:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    vector = 64 if "avx512f" in flags else 32 if "avx2" in flags else 16
    return Device("cpu", "test", "x86-64", cores, 32 << 20, vector, 8 << 30)


def _buffer(name: str, tensor: torch.Tensor, role: Any) -> Buffer:
    dtype: Any = str(tensor.dtype).removeprefix("torch.")
    return Buffer(name, tuple(tensor.shape), tuple(tensor.stride()), dtype, role)


@dataclass
class CpuHarness:
    """`run` prints, builds and calls one kernel; outputs are preset to NaN, so that a missed element shows."""

    folder: Path
    header: Path  # the run-time header, with its precompiled form beside it
    optimised: str  # how much, as g++ is told
    device: Device = field(default_factory=native_device)
    printed: PrintedKernel | None = None
    entry: Callable[[], None] | None = None
    alive: list[Any] = field(default_factory=list)

    def run(
        self,
        kernel: Kernel,
        printer: Printer,
        inputs: dict[str, torch.Tensor],
        outputs: dict[str, torch.Tensor],
        choices: dict[str, Choice] | None = None,
        parameters: tuple[str, ...] = (),
    ) -> PrintedKernel:
        buffers = {name: _buffer(name, t, "parameter" if name in parameters else "input") for name, t in inputs.items()}
        buffers |= {name: _buffer(name, t, "output") for name, t in outputs.items()}
        plan = Plan(buffers, (kernel,), (), Arrangement())
        printed = printer(kernel, plan, self.device, choices or {})
        tensors = {**inputs, **outputs}
        for name, size in printed.prepared_sizes.items():
            tensors[name] = torch.full((size,), float("nan"))
        for tensor in outputs.values():
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
        workspace = torch.full((printed.workspace_bytes + 64,), 0x7F, dtype=torch.uint8)
        library = self._build(printed, buffers, list(tensors))
        array = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors.values()))
        library.prepare(array)
        pointer = ctypes.c_void_p(workspace.data_ptr())
        self.entry = lambda: library.run(array, pointer)
        self.alive = [tensors, workspace, array, library]
        self.entry()
        assert bool((workspace[printed.workspace_bytes :] == 0x7F).all()), "wrote past its workspace"
        self.printed = printed
        return printed

    def _build(self, printed: PrintedKernel, buffers: dict[str, Buffer], names: list[str]) -> ctypes.CDLL:
        def unpack(position: int, name: str) -> str:
            text = CPU_DIALECT.storage[buffers[name].dtype] if name in buffers else "float"
            return f"  {text}* b_{name} = ({text}*)buffers[{position}]; (void)b_{name};"

        pointers = "\n".join(unpack(position, name) for position, name in enumerate(names))
        library = "\n".join(printed.shared)
        source = (
            f'#include "{self.header}"\n{library}\n{printed.functions}\n'
            f'extern "C" void prepare(void** buffers) {{\n{pointers}\n{"".join(printed.prepare.values())}\n}}\n'
            f'extern "C" void run(void** buffers, char* workspace) {{\n{pointers}\n{printed.call}\n}}\n'
        )
        command = ["g++", self.optimised, *FLAGS]
        stem = hashlib.sha256("\n".join([*command, source]).encode()).hexdigest()[:16]
        path = self.folder / f"{stem}.so"
        if not path.exists():  # other inputs may have asked for the same kernel
            text = self.folder / f"{stem}.cpp"
            text.write_text(source)
            done = subprocess.run([*command, str(text), "-o", str(path)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[:4000]
        return ctypes.CDLL(str(path))


class RememberedOverride:
    """Speeds up torch.export's override of 550 composite operators, which takes half of the time to trace a small
    module (twenty steps per operator). From the third time on it restores the state of the second time in one
    step."""

    def __init__(self) -> None:
        self.known: dict[Any, tuple[dict[Any, Any], Any]] = {}
        self.times = 0

    @contextmanager
    def __call__(self, wanted: Mapping[Any, Any], **options: Any) -> Iterator[None]:
        self.times += 1
        if self.times < 3 or options or wanted.keys() != self.known.keys():  # torch 2.6 has options
            with _override_composite_implicit_decomp(wanted, **options):
                self.known = {op: (dict(op.py_kernels), op_implementations_dict[op]) for op in wanted}
                yield
            return
        saved = {op: dict(op.py_kernels) for op in wanted}
        for op, (kernels, rule) in self.known.items():
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
            op_implementations_dict[op] = rule
        try:
            yield
        finally:
            for op, kernels in saved.items():
                op.py_kernels.clear()
                op.py_kernels.update(kernels)
                op._dispatch_cache.clear()
                op_implementations_dict.pop(op, None)


@pytest.fixture(scope="session", autouse=True)
def known_operators() -> Iterator[None]:
    """Caches torch.export's list of composite operators and their overrides, which it makes anew in each call: no
    test here registers one."""
    with pytest.MonkeyPatch.context() as patch:
        where = "torch.export.exported_program."
        patch.setattr(f"{where}_collect_all_valid_cia_ops", cache(_collect_all_valid_cia_ops))
        patch.setattr(f"{where}_override_composite_implicit_decomp", RememberedOverride())
        yield


@pytest.fixture(scope="session")
def optimised(request: pytest.FixtureRequest) -> str:
    """As in candidates; in two thirds of the time where slow tests are left out."""
    return "-O2" if "not slow" in request.config.option.markexpr else "-O3"


@pytest.fixture(scope="session")
def precompiled_header(tmp_path_factory: pytest.TempPathFactory, optimised: str) -> Path:
    """Reading the run-time header and what it includes is most of what compiling a small kernel costs."""
    header = tmp_path_factory.mktemp("header") / "runtime.h"
    header.write_text(read_library_text("cpu/runtime.h"))
    command = ["g++", optimised, *FLAGS, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return header


@pytest.fixture
def cpu_kernel(precompiled_header: Path, optimised: str) -> CpuHarness:
    return CpuHarness(precompiled_header.parent, precompiled_header, optimised)
