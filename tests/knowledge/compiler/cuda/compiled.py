"""Compiles many kernels' cases with nvcc as one unit: what the emulator accepts, nvcc must too."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.knowledge.compiler.cuda.cases import H200, Case
from tests.knowledge.compiler.cuda.emulated import SIXTEEN

from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.module import FLAGS
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.compiler.printers import print_kernel
from foundry.tools.targets.base import first_error
from foundry.tools.targets.cuda.build import parse_ptxas


def spills_of(cases: Mapping[str, Case], folder: Path, arch: str = "sm_90a") -> dict[str, float]:
    """Bytes that each kernel spills."""
    printed = {name: print_kernel(case.kernel, case.plan(), H200, case.choices) for name, case in cases.items()}
    return compile_unit(printed, folder, arch)


def compile_unit(printed: Mapping[str, PrintedKernel], folder: Path, arch: str = "sm_90a") -> dict[str, float]:
    """Compiles printed kernels as one unit; bytes that each of its functions spills."""
    parts = [SIXTEEN, runtime_header()]
    for name, text in printed.items():
        parts += [shared for shared in text.shared if shared not in parts]
        parts.append(text.functions.replace("foundry_", f"foundry_{name}_"))
    source = folder / "all.cu"
    source.write_text("\n".join(parts))
    command = ["nvcc", *FLAGS, f"-arch={arch}", str(source), "-o", str(folder / "all.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, first_error(done.stderr)
    kernels = parse_ptxas(done.stdout + done.stderr)
    assert len(kernels) >= len(printed)
    return {name: facts["spill_bytes"] for name, facts in kernels.items()}
