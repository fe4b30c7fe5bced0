"""Whole candidates of rewritten graphs: right, for changed weights too, declared, and without the work that is gone."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.cuda.test_module import H200, run

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.compiler.moves import apply, moves
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.task.capture import capture

CPU = Device("cpu", "test", "x86-64", 2, 32 << 20, 32, 8 << 30)
TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3)
        self.narrow = nn.AvgPool2d(2)
        self.linear = nn.Linear(8 * 5 * 5, 24)

    def forward(self, x):
        x = torch.tanh(self.narrow(self.convolution(x) * 0.5))
        return torch.sigmoid(self.linear(x.flatten(1)).sum(1, keepdim=True))
"""
SUMMED, AVERAGED = "sum-before-product", "average-into-weights"


def captured() -> tuple[OpGraph, Any, torch.Tensor]:
    namespace: dict[str, Any] = {}
    exec(compile(TASK, "task.py", "exec"), namespace)
    model, x = namespace["Model"](), torch.randn(4, 3, 12, 12)
    return capture(model, (x,)), model, x


def lowered_for(graph: OpGraph, device: Device, **recipe: Any) -> Lowered:
    return lower([graph], Recipe(device.target, **recipe), task_source=TASK, device=device)


def test_rewrites_are_moves_that_a_candidate_declares() -> None:
    graph, _, _ = captured()
    plain = lowered_for(graph, CPU)
    assert set(plain.rewrites_open) == {SUMMED, AVERAGED}
    offered = {move.name: move for move in moves(plain) if move.kind == "rewrite"}
    assert "averaged" in offered[AVERAGED].reason
    child = lower([graph], apply(plain.recipe, offered[SUMMED]), task_source=TASK, device=CPU)
    assert child.rewrites_applied == (SUMMED,) and child.rewrites_open == (AVERAGED,)
    assert {f"algebra:{SUMMED}", "prepared_weights"} <= set(child.labels) and child.flops < plain.flops
    assert lower([graph], child.recipe, task_source=TASK, device=CPU).source == child.source
    back = next(move for move in moves(child) if move.kind == "unwrite")
    again = lower([graph], apply(child.recipe, back), task_source=TASK, device=CPU)
    assert again.rewrites_applied == () and again.flops == plain.flops


def test_strict_leaves_the_tasks_own_operations() -> None:
    graph, _, _ = captured()
    found = lowered_for(graph, CPU, rewrites=(SUMMED, AVERAGED), ieee_only=True)
    assert found.rewrites_applied == found.rewrites_open == () and found.flops == graph.flops


def check(model: Any, candidate: Any, x: torch.Tensor) -> list[float]:
    """The error for the weights as they are, and after each of two changes in place."""
    errors = []
    for change in (None, "linear.weight", "convolution.weight"):
        with torch.no_grad():
            for side in (model, candidate):
                if change:
                    side.get_parameter(change).mul_(-1.5)
            errors.append(float((candidate(x) - model(x)).abs().max()))
    return errors


def test_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    graph, model, x = captured()
    lowered = lowered_for(graph, CPU, rewrites=(SUMMED, AVERAGED))
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(lowered.source, "candidate.py", "exec"), namespace)
    candidate = namespace["ModelNew"]()
    assert max(check(model, candidate, x)) < 1e-5
    held = candidate._foundry_state["prepared"]
    with torch.no_grad():
        candidate(x)
    assert candidate._foundry_state["prepared"] is held, "weights were made again although they are the same"


SCRIPT = """
saved = torch.load("FOLDER/saved.pt")
candidate, model = ModelNew(), Model()
for side in (model, candidate):
    side.load_state_dict(saved["state"])
errors = []
for change in (None, "linear.weight", "convolution.weight"):
    with torch.no_grad():
        for side in (model, candidate):
            if change:
                side.get_parameter(change).mul_(-1.5)
        errors.append(float((candidate(saved["x"]) - model(saved["x"])).abs().max()))
print(json.dumps({"errors": errors}))
"""


@pytest.mark.slow  # compiles for ten seconds
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_on_the_emulated_gpu(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    graph, model, x = captured()
    lowered = lowered_for(graph, H200, rewrites=(SUMMED, AVERAGED))
    exact: dict[str, dict[str, Choice]] = {kernel.name: {"precision": "ieee"} for kernel in lowered.kernels}
    lowered = lower([graph], replace(lowered.recipe, choices=exact), task_source=TASK, device=H200)
    torch.save({"x": x, "state": model.state_dict()}, tmp_path / "saved.pt")
    answer: Any = run(forks, lowered.source, SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert max(answer["errors"]) < 1e-5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    graph, model, x = captured()
    lowered = lowered_for(graph, H200, rewrites=(SUMMED, AVERAGED))
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(lowered.source, "candidate.py", "exec"), namespace)
    candidate = namespace["ModelNew"]().cuda()
    candidate.load_state_dict(model.state_dict())
    assert max(check(model.cuda(), candidate, x.cuda())) < 2e-3  # TF32
