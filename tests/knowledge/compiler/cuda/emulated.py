"""Runs many kernels' cases on the emulator, several to a compile, and compares their outputs with the truth."""

from __future__ import annotations

import json
import math
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
from tests.knowledge.compiler.cuda.cases import H200, Case

from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.launches import Argument, Launch, TensorMap, decode, encode
from foundry.knowledge.compiler.cuda.sharing import share_texts
from foundry.knowledge.compiler.ir.kernels import PrintedKernel
from foundry.knowledge.compiler.printers import print_kernel
from foundry.knowledge.device import Device

SIXTEEN = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>"
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


def parts(count: int) -> list[Any]:
    """The numbers of `count` parts of the cases, each with some of every kind, for a test each. A quarter of them, one
    at least, is asked always; the others are slow tests."""
    asked = max(1, count // 4)
    return [pytest.param(part, marks=[pytest.mark.slow] * (part >= asked)) for part in range(count)]


def check_emulated(cases: Mapping[str, Case], folder: Path, device: Device = H200, *, shares: bool = False) -> int:
    """Prints, compiles as one unit, runs in a child and checks the cases; each takes the choices that it asks for.
    Returns how many texts they have; where it `shares` them, one for kernels that are alike.

    Outputs hold NaN (or 1) beforehand. Raises AssertionError that names the case."""
    kernels: list[PrintedKernel | None] = []
    for name, case in cases.items():
        printed = print_kernel(case.kernel, case.plan(), device, case.choices)
        for key, wanted in case.choices.items():
            assert printed.choices[key] == wanted, f"{name}: {key} was not taken"
        call = encode([_renamed(launch, name) for launch in decode(printed.call)])
        functions = printed.functions.replace("foundry_", f"foundry_{name}_")
        kernels.append(replace(printed, functions=functions, call=call))
    if shares:
        steps = [replace(case.kernel, name=f"{name}_{case.kernel.name}") for name, case in cases.items()]
        kernels = list(share_texts(steps, kernels))
    found = [kernel for kernel in kernels if kernel]
    own = dict.fromkeys(kernel.functions for kernel in found)
    texts = [SIXTEEN, runtime_header(), *dict.fromkeys(text for kernel in found for text in kernel.shared), *own]
    launches = [launch for kernel in found for launch in decode(kernel.call)]
    workspace = max(kernel.workspace_bytes for kernel in found)
    for name, case in cases.items():
        for key, tensor in case.inputs.items():
            numpy.save(folder / f"{name}.{key}.npy", storage(tensor))
        for key, tensor in case.outputs.items():
            fill = math.nan if tensor.is_floating_point() else 1
            numpy.save(folder / f"{name}.{key}.npy", storage(torch.full_like(tensor, fill)))
    library, names = build_emulation("\n".join(texts), launches, folder)
    outputs = [f"{name}.{key}" for name, case in cases.items() for key in case.outputs]
    order = json.dumps({"names": names, "outputs": outputs, "workspace": workspace})
    done = subprocess.run([sys.executable, "-c", CHILD, str(library), order, str(folder)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    for name, case in cases.items():
        case.check({key: _output(folder, name, key, truth) for key, truth in case.outputs.items()}, name)
    return len(own)


def storage(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    """A dense tensor's elements in memory order; NumPy has no bfloat16, so its bits."""
    flat = torch.as_strided(tensor, (tensor.numel(),), (1,))
    return (flat.view(torch.int16) if tensor.dtype == torch.bfloat16 else flat).numpy().copy()


def _renamed(launch: Launch, case: str) -> Launch:
    """The launch with its kernel and buffers told apart from those of the other cases of one unit."""

    def own(argument: Argument) -> Argument:
        if isinstance(argument, TensorMap):
            return replace(argument, memory=str(own(argument.memory)))
        return argument if isinstance(argument, int) or argument.startswith("workspace") else f"{case}.{argument}"

    args = tuple(own(argument) for argument in launch.args)
    return replace(launch, kernel=launch.kernel.replace("foundry_", f"foundry_{case}_"), args=args)


def _output(folder: Path, case: str, key: str, truth: torch.Tensor) -> torch.Tensor:
    flat = torch.from_numpy(numpy.load(folder / f"{case}.{key}.npy")).view(truth.dtype)
    return flat.as_strided(truth.shape, truth.stride())
