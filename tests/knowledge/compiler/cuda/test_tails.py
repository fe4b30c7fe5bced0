"""CUDA kernels with tails against float64 truth, whole plans of them on the emulator, as candidates on a GPU."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from tests.emulator.emulator import build_emulation
from tests.knowledge.compiler.cuda.cases import H200
from tests.knowledge.compiler.cuda.compiled import compile_unit
from tests.knowledge.compiler.cuda.emulated import CHILD, SIXTEEN, parts, storage
from tests.knowledge.compiler.cuda.tail_cases import CONVOLUTIONS, PRODUCTS, TailCase
from tests.knowledge.compiler.lowering import as_module, graph_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.cuda.convolutions import channels_last
from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.launches import Argument, Launch, TensorMap, decode
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.fusion import tails
from foundry.knowledge.compiler.ir.access import tail_of
from foundry.knowledge.compiler.ir.kernels import (
    ConvKernel,
    GemmKernel,
    Kernel,
    Plan,
    PrintedKernel,
    TorchCall,
)
from foundry.knowledge.compiler.plan import plan
from foundry.knowledge.compiler.printers import module_file, print_kernel
from foundry.knowledge.device import Device
from foundry.tools.task.loading import flatten

MODEL = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"
_EVERY = {f"product_{name}": make for name, make in PRODUCTS.items()}
_EVERY |= {f"conv_{name}": make for name, make in CONVOLUTIONS.items()}
PARTS = 4
# One of each way to reduce, and of each main loop.
_FEW: tuple[str, ...] = (
    "product_mma_odd",
    "product_wgmma_lse",
    "product_packed_groups",
    "product_ordinary",
    "conv_softmax",
)
_FEW += ("conv_pooled_phases", "conv_group_norm", "conv_windows")
_MORE = sorted(set(_EVERY) - set(_FEW))


@pytest.fixture(autouse=True)
def _long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "_LONG_ROW_BYTES", 0)
    monkeypatch.setattr(channels_last, "pays", lambda space: True)  # also where they are small
    torch.manual_seed(5)


def steps_of(case: TailCase, device: Device) -> tuple[Plan, list[tuple[Kernel, PrintedKernel]]]:
    planned = plan(graph_of(as_module(case.model), *case.inputs), Recipe("cuda", rewrites=("reduce-with-result",)))
    steps = [step for step in planned.steps if not isinstance(step, TorchCall)]
    assert case.has_tail == any(tail_of(step) for step in steps)
    printed = []
    for step in steps:
        is_contraction = isinstance(step, GemmKernel | ConvKernel)
        text = print_kernel(step, planned, device, case.choices if is_contraction else {})
        for key, wanted in case.choices.items() if is_contraction else ():
            assert text.choices[key] == wanted, f"{key} was not taken: {text.choices}"
        printed.append((step, text))
    return planned, printed


def check_plans(cases: Mapping[str, TailCase], folder: Path, device: Device = H200) -> None:
    """Prints all kernels of all cases, compiles them as one unit, runs them in a child and checks the results."""
    texts, launches, workspace, plans = [SIXTEEN, runtime_header()], [], 0, {}
    for name, case in cases.items():
        plans[name], printed = steps_of(case, device)
        for step, text in printed:
            own = f"foundry_{name}_{step.name}_"
            texts += [shared for shared in text.shared if shared not in texts]
            texts.append(text.functions.replace("foundry_", own))
            launches += [_renamed(launch, name, own) for launch in decode(text.call)]
            workspace = max(workspace, text.workspace_bytes)
        for buffer in plans[name].buffers.values():
            dtype = getattr(torch, buffer.dtype)
            made = torch.full((max(1, buffer.numel),), math.nan if dtype.is_floating_point else 1, dtype=dtype)
            if buffer.role == "input":
                made = case.inputs[int(buffer.source)]
            if buffer.data is not None:
                made = torch.tensor(buffer.data, dtype=dtype)
            numpy.save(folder / f"{name}.{buffer.name}.npy", storage(made))
    library, names = build_emulation("\n".join(texts), launches, folder)
    outputs = [f"{name}.{view.buffer}" for name in cases for view in plans[name].outputs]
    order = json.dumps({"names": names, "outputs": outputs, "workspace": workspace})
    done = subprocess.run([sys.executable, "-c", CHILD, str(library), order, str(folder)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    for name, case in cases.items():
        found = []
        for view in plans[name].outputs:
            dtype = getattr(torch, plans[name].buffers[view.buffer].dtype)
            flat = torch.from_numpy(numpy.load(folder / f"{name}.{view.buffer}.npy")).view(dtype)
            found.append(flat.as_strided(view.shape, view.strides, view.offset))
        check_results(case, found, name)


def check_results(case: TailCase, found: list[torch.Tensor], name: str) -> None:
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in case.inputs]
    wanted = case.model(*wide)
    for number, want in enumerate(wanted if isinstance(wanted, tuple) else (wanted,)):
        got = found[number].cpu()
        assert got.shape == want.shape
        if not want.is_floating_point():
            assert (got == want).double().mean() > 0.97, f"{name} {number}: {got} is not {want}"
            continue
        limit = 2e-2 if got.dtype == torch.bfloat16 else case.tolerance
        error = (got.double() - want).norm() / want.norm().clamp(min=1e-30)
        assert error < limit, f"{name} {number}: relative error {error:.2e}"


def _renamed(launch: Launch, case: str, kernel: str) -> Launch:
    def own(argument: Argument) -> Argument:
        if isinstance(argument, TensorMap):
            return replace(argument, memory=str(own(argument.memory)))
        return argument if isinstance(argument, int) or argument.startswith("workspace") else f"{case}.{argument}"

    return replace(
        launch, kernel=launch.kernel.replace("foundry_", kernel), args=tuple(own(argument) for argument in launch.args)
    )


def test_each_way_to_reduce(tmp_path: Path) -> None:
    check_plans({name: _EVERY[name]() for name in _FEW}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("part", parts(PARTS))
def test_emulated(part: int, tmp_path: Path) -> None:
    check_plans({name: _EVERY[name]() for name in _MORE[part::PARTS]}, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_compiles_without_spills(tmp_path: Path) -> None:
    """What the emulator accepts, nvcc must too."""
    printed = {f"{name}_{step.name}": text for name, make in _EVERY.items() for step, text in steps_of(make(), H200)[1]}
    spilled = {name: count for name, count in compile_unit(printed, tmp_path).items() if count > 256}
    assert not spilled


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("name", _EVERY)
def test_on_the_gpu(name: str) -> None:
    """As a candidate; a second call gives the same bits."""
    case = _EVERY[name]()
    planned, printed = steps_of(case, H200)
    text = module_file(MODEL, [Entry(planned, tuple(text for _, text in printed))], H200)
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    model, inputs = namespace["ModelNew"](), [tensor.cuda() for tensor in case.inputs]
    torch.full((1 << 22,), math.nan, device="cuda")  # what the allocator hands out next
    found, again = flatten(model(*inputs)), flatten(model(*inputs))
    torch.cuda.synchronize()
    check_results(case, found, name)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
