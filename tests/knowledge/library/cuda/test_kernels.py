"""CUDA templates against float64 truth: run on the emulator everywhere, as whole candidates on a GPU where one is."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.knowledge.library.cuda.cases import H200, Case
from tests.knowledge.library.cuda.emulated import SIXTEEN, check_emulated
from tests.knowledge.library.cuda.window_cases import CASES, SIXTEEN_BIT

from foundry.knowledge.library.cuda.dialect import runtime_header
from foundry.knowledge.library.cuda.module import FLAGS
from foundry.knowledge.library.file.assemble import Entry
from foundry.knowledge.library.printers import module_file, print_kernel
from foundry.tools.targets.base import first_error
from foundry.tools.targets.cuda import parse_ptxas

PARTS = 8
_EVERY = CASES | SIXTEEN_BIT


def seeded(name: str) -> Case:
    """A case with the same numbers whatever other cases there are."""
    torch.manual_seed(7)
    return _EVERY[name]()


@pytest.mark.parametrize("part", range(PARTS))
def test_emulated(part: int, tmp_path: Path) -> None:
    check_emulated({name: seeded(name) for name in sorted(_EVERY)[part::PARTS]}, tmp_path)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("arch", ["sm_90a"])
def test_every_template_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    """All cases in one unit: what the emulator accepts, nvcc must too."""
    parts = [SIXTEEN, runtime_header()]
    for name, make in _EVERY.items():
        case = make()
        printed = print_kernel(case.kernel, case.plan(), H200, case.choices)
        parts += [text for text in printed.shared if text not in parts]
        parts.append(printed.functions.replace("foundry_", f"foundry_{name}_"))
    source = tmp_path / "all.cu"
    source.write_text("\n".join(parts))
    command = ["nvcc", *FLAGS, f"-arch={arch}", str(source), "-o", str(tmp_path / "all.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, first_error(done.stderr)
    kernels = parse_ptxas(done.stdout + done.stderr)
    assert len(kernels) > len(CASES)
    spilled = {name: facts["spill_bytes"] for name, facts in kernels.items() if facts["spill_bytes"] > 256}
    assert not spilled


def candidate(case: Case) -> str:
    plan = case.plan()
    printed = print_kernel(case.kernel, plan, H200, case.choices)
    model = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"
    return module_file(model, [Entry(plan, (printed,))], H200)


def run_candidate(text: str, case: Case) -> dict[str, torch.Tensor]:
    """Runs a candidate file on the GPU, its outputs poisoned by what the allocator held before."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    inputs = [tensor.cuda() for tensor in case.inputs.values()]
    for tensor in case.outputs.values():
        torch.full((max(tensor.numel(), 128) * 2,), math.nan, device="cuda")
    results = namespace["ModelNew"]()(*inputs)
    torch.cuda.synchronize()
    return dict(zip(case.outputs, results, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("name", [*CASES, *SIXTEEN_BIT])
def test_on_the_gpu(name: str) -> None:
    case = seeded(name)
    case.check(run_candidate(candidate(case), case))
