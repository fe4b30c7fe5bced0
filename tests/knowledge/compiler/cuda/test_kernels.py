"""CUDA templates against float64 truth: run on the emulator everywhere, as whole candidates on a GPU where one is."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.cuda.cases import H200, Case, F, load, view
from tests.knowledge.compiler.cuda.compiled import spills_of
from tests.knowledge.compiler.cuda.emulated import check_emulated, parts
from tests.knowledge.compiler.cuda.window_cases import CASES, SIXTEEN_BIT, STAYING

from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import GemmKernel, Named, Store
from foundry.knowledge.compiler.printers import module_file, print_kernel

PARTS = 8
_EVERY = CASES | SIXTEEN_BIT | STAYING


def seeded(name: str) -> Case:
    """A case with the same numbers whatever other cases there are."""
    torch.manual_seed(7)
    return _EVERY[name]()


@pytest.mark.parametrize("part", parts(PARTS))
def test_emulated(part: int, tmp_path: Path) -> None:
    check_emulated({name: seeded(name) for name in sorted(_EVERY.keys() - STAYING)[part::PARTS]}, tmp_path)


@pytest.mark.parametrize("part", parts(4))
def test_blocks_that_stay_emulated(part: int, tmp_path: Path) -> None:
    check_emulated({name: seeded(name) for name in sorted(STAYING)[part::4]}, tmp_path, replace(H200, cores=2))


@pytest.mark.parametrize(("k", "stays"), [(64, 1), (256, 1), (1024, 0)])
def test_blocks_stay_where_storing_takes_longer_than_multiplying(k: int, stays: int) -> None:
    matrix = torch.empty(1).expand(16384, 16384)
    a, b = (load(name, *strides) for name, strides in (("a", (k, 1)), ("b", (16384, 1))))
    kernel = GemmKernel("product", (), 16384, 16384, k, a, b, (Store("y", view(16384, 1), Named("acc", "float32")),), F)
    case = Case(kernel, {"a": matrix[:, :k], "b": matrix[:k]}, {"y": matrix}, ieee_only=False)
    assert print_kernel(kernel, case.plan(), H200, {}).choices["stays"] == stays


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_templates_compile_without_spills(every: int, tmp_path: Path) -> None:
    spills = spills_of({name: seeded(name) for name in list(_EVERY)[::every]}, tmp_path)
    assert max(spills.values()) <= 256, spills


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
@pytest.mark.parametrize("name", [*_EVERY])
def test_on_the_gpu(name: str) -> None:
    case = seeded(name)
    case.check(run_candidate(candidate(case), case))
