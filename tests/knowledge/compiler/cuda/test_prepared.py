"""Weights that are packed once: kept between calls, packed again when they have changed, here and on a GPU."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.cuda.cases import gemm
from tests.knowledge.compiler.cuda.test_kernels import candidate
from tests.knowledge.compiler.cuda.test_module import H200, run

from foundry.knowledge.compiler.lower import lower, print_plan, seeds
from foundry.knowledge.compiler.lowered import Lowered
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(160, 200)
        self.down = nn.Linear(200, 72, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def get_inputs():
    return [torch.randn(70, 160)]


def get_init_inputs():
    return []
"""
SCRIPT = """
saved = torch.load("FOLDER/saved.pt")
model = ModelNew()
model.load_state_dict(saved["state"])
errors, places = [], []
for factor in (1.0, 1.0, 3.0):
    with torch.no_grad():
        if factor != 1.0:
            model.up.weight.mul_(factor), model.down.weight.mul_(factor)
        truth = torch.relu(saved["x"].double() @ model.up.weight.double().T + model.up.bias.double())
        truth = truth @ model.down.weight.double().T
        got = model(saved["x"]).double()
    errors.append(float((got - truth).norm() / truth.norm()))
    (held,) = [held for key, held in model._foundry_state.items() if key[0] == "prepared"]
    places.append(held.memory)
print(json.dumps({"errors": errors, "kept": places[0] is places[1], "replaced": places[1] is not places[2]}))
"""


def packed_linear(folder: Path) -> tuple[Lowered, dict[str, Any]]:
    (folder / "linear.py").write_text(TASK)
    task = read_task(folder / "linear.py")
    loaded = load(task, overrides={})
    model, inputs = loaded.build_model(0), loaded.inputs(0)
    graph = capture(model, inputs)
    seed = seeds(graph, H200)[0]
    names = [kernel.name for kernel, _ in print_plan(graph, seed, H200).kernel_pairs()]
    recipe = replace(seed, choices={name: {"precision": "half"} for name in names})
    lowered = lower([graph], recipe, task_source=task.source, device=H200)
    return lowered, {"x": inputs[0], "state": model.state_dict()}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_weights_are_packed_when_they_have_changed(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    lowered, saved = packed_linear(tmp_path)
    assert [kernel.choices["precision"] for kernel in lowered.kernels] == ["half", "half"]
    assert "tf32:half" in lowered.labels
    torch.save(saved, tmp_path / "saved.pt")
    answer: dict[str, Any] = run(
        forks, lowered.source, SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache"
    )
    assert max(answer["errors"]) < 6e-4
    assert answer["kept"] and answer["replaced"]


COPIED_SCRIPT = """
model, errors = ModelNew(), []
for x, w, bias, truth in torch.load("FOLDER/saved.pt"):
    (got,) = model(x, w, bias)
    errors.append(float((got.double() - truth).norm() / truth.norm()))
print(json.dumps(errors))
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_the_copy_engine_reads_each_call_its_own_tensors(
    forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    cases = [gemm(70, 72, 152, flip="b", dtype="bfloat16", precision="bfloat16", path="packed") for _ in range(2)]
    texts = {candidate(case) for case in cases}
    torch.save([(*case.inputs.values(), case.outputs["y"].double()) for case in cases], tmp_path / "saved.pt")
    text = texts.pop()
    errors: Any = run(forks, text, COPIED_SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    assert not texts and "_pack_a(" not in text and len(errors) == 2 and max(errors) < 5e-3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next call comes on another stream, whose launches nothing orders after the packing."""
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    lowered, saved = packed_linear(tmp_path)
    namespace: dict[str, Any] = {}
    exec(compile(lowered.source, "candidate.py", "exec"), namespace)
    model = namespace["ModelNew"]().cuda()
    model.load_state_dict(saved["state"])
    x = saved["x"].cuda()
    for stream in (torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(2))):  # type: ignore[no-untyped-call]
        with torch.no_grad(), torch.cuda.stream(stream):
            model.up.weight.mul_(1.5)
            truth = torch.relu(x.double() @ model.up.weight.double().T + model.up.bias.double())
            truth = truth @ model.down.weight.double().T
            got = model(x).double()
            assert float((got - truth).norm() / truth.norm()) < 6e-4
            torch.cuda.synchronize()
