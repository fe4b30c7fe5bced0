"""Candidate files from recipes: built, loaded and compared with the model they were lowered from."""

from __future__ import annotations

import copy
import importlib.util
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.ir.kernels import Kernel, Plan, PrintedKernel, ScanKernel
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.printers.cpu import CpuPrinter
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.tools.task.capture import capture
from foundry.tools.task.loading import flatten

DEVICE = Device("cpu", "test", "x86-64", 2, 32 << 20, 32, 8 << 30)
GPU = Device("cuda", "test", "sm_90", 132, 50 << 20, 16, 80 << 30, present=False)

NET = """
    import torch
    import torch.nn as nn

    class Model(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.BatchNorm1d(width)
            self.linear = nn.Linear(width, 5)

        def forward(self, x):
            h = self.norm(x)
            return torch.softmax(self.linear(h).relu(), -1), x.cumsum(1)

    def get_init_inputs():
        return [8]
"""


class Lab:
    """A task's source with its reference model, and candidates of it."""

    def __init__(self, source: str, folder: Path) -> None:
        self.source, self.folder = textwrap.dedent(source), folder
        namespace: dict[str, Any] = {}
        exec(compile(self.source, "task.py", "exec"), namespace)
        self.arguments = namespace["get_init_inputs"]()
        torch.manual_seed(0)
        self.model = namespace["Model"](*self.arguments)

    def lowered(
        self, *inputs: Sequence[torch.Tensor], recipe: Recipe | None = None, device: Device = DEVICE
    ) -> Lowered:
        graphs = [capture(copy.deepcopy(self.model), given) for given in inputs]
        return lower(graphs, recipe or Recipe(device.target), task_source=self.source, device=device)

    def compare(self, lowered: Lowered, inputs: Sequence[torch.Tensor]) -> None:
        path = self.folder / f"candidate_{len(list(self.folder.glob('*.py')))}.py"
        path.write_text(lowered.source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        candidate = module.ModelNew(*self.arguments)
        candidate.load_state_dict(self.model.state_dict())
        reference = copy.deepcopy(self.model)
        with torch.no_grad():
            for have, want in zip(flatten(candidate(*inputs)), flatten(reference(*inputs)), strict=True):
                torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)
        for key, want in reference.state_dict().items():
            torch.testing.assert_close(candidate.state_dict()[key], want, rtol=1e-5, atol=1e-5)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Lab]:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    return lambda source: Lab(source, tmp_path)


def test_a_candidate_file_computes_what_its_task_does_and_updates_its_buffers(lab: Callable[[str], Lab]) -> None:
    task = lab(NET)
    inputs = [torch.randn(16, 8)]
    lowered = task.lowered(inputs)
    assert lowered.labels.count("prepared_weights") <= 1 and not any("torch:" in label for label in lowered.labels)
    task.compare(lowered, inputs)
    for kernel in lowered.kernels:
        assert kernel.flops > 0 and kernel.traffic_bytes > 0 and kernel.ops
    assert lowered.flops > 2 * 16 * 8 * 5 and lowered.traffic_bytes > 4 * 16 * 8 * 2


def test_several_shapes_share_a_file(lab: Callable[[str], Lab]) -> None:
    task = lab(NET)
    lowered = task.lowered([torch.randn(16, 8)], [torch.randn(6, 8)])
    task.compare(lowered, [torch.randn(16, 8)])
    task.compare(lowered, [torch.randn(6, 8)])


def test_a_kernel_that_the_printer_refuses_is_left_to_torch(
    lab: Callable[[str], Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = CpuPrinter.print_kernel

    def refusing(
        printer: CpuPrinter, kernel: Kernel, plan: Plan, device: Device, choices: dict[str, Choice]
    ) -> PrintedKernel:
        if isinstance(kernel, ScanKernel):
            raise CannotLower("no scans today")
        return original(printer, kernel, plan, device, choices)

    monkeypatch.setattr(CpuPrinter, "print_kernel", refusing)
    task = lab(NET)
    inputs = [torch.randn(16, 8)]
    lowered = task.lowered(inputs)
    assert "torch:cumsum" in lowered.labels
    assert not any("cumsum" in kernel.ops for kernel in lowered.kernels)
    task.compare(lowered, inputs)


def test_nothing_but_calls_of_torch_is_no_candidate(lab: Callable[[str], Lab]) -> None:
    source = NET.replace("h = self.norm(x)", "return torch.linalg.matrix_exp(x)")
    with pytest.raises(CannotLower, match="no kernel for linalg_matrix_exp, and nothing else"):
        lab(source).lowered([torch.randn(8, 8)])
    with pytest.raises(CannotLower, match="no captured graph"):
        lab(NET).lowered()


def test_the_same_recipe_lowers_for_a_gpu_that_is_not_here(lab: Callable[[str], Lab]) -> None:
    lowered = lab(NET).lowered([torch.randn(16, 8)], device=GPU)
    assert "__global__" in lowered.source and "class ModelNew(Model)" in lowered.source
    assert {kernel.template for kernel in lowered.kernels} >= {"row", "gemm", "scan"}
