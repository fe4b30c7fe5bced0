"""CUDA templates against float64 truth: run on the emulator everywhere, as whole candidates on a GPU where one is."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.emulator.emulator import build_emulation
from tests.knowledge.library.cuda.cases import H200, Case
from tests.knowledge.library.cuda.window_cases import CASES, SIXTEEN_BIT

from foundry.knowledge.library.cuda.dialect import runtime_header
from foundry.knowledge.library.cuda.launches import decode
from foundry.knowledge.library.cuda.module import FLAGS
from foundry.knowledge.library.file.assemble import Entry
from foundry.knowledge.library.printers import module_file, print_kernel
from foundry.tools.targets.base import first_error
from foundry.tools.targets.cuda import parse_ptxas

SIXTEEN = "#define FOUNDRY_SIXTEEN_BIT"
CHILD = """
import json, sys, numpy
from pathlib import Path
from tests.emulator.emulator import run_emulation
order = json.loads(sys.argv[2])
arrays = {name: numpy.load(f"{sys.argv[3]}/{name}.npy") for name in order["names"]}
addresses = {name: array.ctypes.data for name, array in arrays.items()}
run_emulation(Path(sys.argv[1]), order["names"], addresses, order["workspace"])
for name in order["outputs"]:
    numpy.save(f"{sys.argv[3]}/{name}.npy", arrays[name])
"""


def storage(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    """A dense tensor's elements in memory order; NumPy has no bfloat16, so its bits."""
    flat = torch.as_strided(tensor, (tensor.numel(),), (1,))
    return (flat.view(torch.int16) if tensor.dtype == torch.bfloat16 else flat).numpy().copy()


@pytest.mark.parametrize("name", [*CASES, *SIXTEEN_BIT])
def test_emulated(name: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    case = (CASES | SIXTEEN_BIT)[name]()
    printed = print_kernel(case.kernel, case.plan(), H200, case.choices)
    text = "\n".join([SIXTEEN, runtime_header(), *printed.shared, printed.functions])
    library, names = build_emulation(text, decode(printed.call), tmp_path)
    for key, tensor in case.inputs.items():
        numpy.save(tmp_path / f"{key}.npy", storage(tensor))
    for key, tensor in case.outputs.items():
        numpy.save(
            tmp_path / f"{key}.npy", storage(torch.full_like(tensor, math.nan if tensor.is_floating_point() else 1))
        )
    order = json.dumps({"names": names, "outputs": list(case.outputs), "workspace": printed.workspace_bytes})
    argv = [sys.executable, "-c", CHILD, str(library), order, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {}
    for key, tensor in case.outputs.items():
        flat = torch.from_numpy(numpy.load(tmp_path / f"{key}.npy")).view(tensor.dtype)
        found[key] = torch.as_strided(flat, tensor.shape, tensor.stride())
    case.check(found)
    for key, wanted in case.choices.items():
        assert printed.choices[key] == wanted, f"{key} was not taken"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("arch", ["sm_90a"])
def test_every_template_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    """All cases in one unit: what the emulator accepts, nvcc must too."""
    parts = [SIXTEEN, runtime_header()]
    for name, make in (CASES | SIXTEEN_BIT).items():
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
    torch.manual_seed(7)
    case = (CASES | SIXTEEN_BIT)[name]()
    case.check(run_candidate(candidate(case), case))
