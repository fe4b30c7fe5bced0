"""A kernel's file of a task that imports packages or holds plain tensors: it runs where there is torch only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.tools.task.construction.tiny_package import CPU, DEVICE, install, seeded, stack

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.compiler.cuda.module import _BROUGHT
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.task import loading
from foundry.tools.task.file import read_task
from foundry.tools.task.intake import captured_case


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from install(tmp_path, monkeypatch)


FOLLOWS = """
import sys
sys.modules["tinylayers"] = None
sys.path.insert(0, {folder!r})
import torch
from kernel import ModelNew, Model
held = torch.load({data!r}, weights_only=False)
class Settings:
    def __init__(self, width, depth):
        self.width, self.depth = width, depth
for seed, state in held["states"].items():
    torch.manual_seed(seed)
    model = ModelNew(Settings(8, 2))
    own = model.state_dict()
    assert list(own) == list(state) and all(torch.equal(own[key], state[key]) for key in own), seed
model = model.eval()
model.load_state_dict(held["states"][0])
with torch.no_grad():
    out = model(held["x"])
assert torch.allclose(out, held["y"], atol=1e-5), (out - held["y"]).abs().max()
try:
    Model.forward(model, held["x"])
except NotImplementedError:
    print("right")
"""


def test_the_file_runs_where_the_package_is_absent(tmp_path: Path) -> None:
    task = stack(tmp_path)
    graph = decode(OpGraph, encode(captured_case(task, CPU)))
    recipe = seeds(graph, DEVICE)[0]
    text = lower([graph], recipe, task_source=task.task.source, device=DEVICE).source
    (tmp_path / "kernel.py").write_text(text)
    settings = task.module.tinylayers.Settings(8, 2)
    models = {seed: seeded(lambda: task.module.Model(settings), seed) for seed in (0, 1, 20)}
    x = torch.randn(4, 8)
    held = {
        "states": {seed: model.state_dict() for seed, model in models.items()},
        "x": x,
        "y": models[0].eval()(x).detach(),
    }
    torch.save(held, tmp_path / "held.pt")
    script = FOLLOWS.format(folder=str(tmp_path), data=str(tmp_path / "held.pt"))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stdout == "right\n", done.stderr
    cuda = Device("cuda", "test", "sm_90", 132, 50 << 20, 227 << 10, 80 << 30)
    recipe = seeds(graph, cuda)[0]
    text = lower([graph], recipe, task_source=task.task.source, device=cuda).source
    compile(text, "kernel.py", "exec")
    assert "tinylayers" not in text and "class Model(torch.nn.Module)" in text


def test_shapes_that_need_other_arguments_have_a_tree_each(tmp_path: Path) -> None:
    options = 'extra_shapes = [{ WIDTH = 16 }]\nmode = "eval"\n'
    path = tmp_path / "wide.py"
    path.write_text(
        "import torch\nfrom torch import nn\nfrom tinylayers import Layer\n\nWIDTH = 8\n\n\n"
        "class Model(nn.Module):\n    def __init__(self, width, depth=1):\n        super().__init__()\n"
        "        self.inner = Layer(width)\n\n    def forward(self, x):\n        return self.inner(x)\n\n\n"
        "def get_inputs():\n    return [torch.randn(4, WIDTH)]\n\n\ndef get_init_inputs():\n    return [WIDTH]\n"
    )
    path.with_suffix(".toml").write_text(options)
    task = read_task(path)
    cases = [loading.load(task), loading.load(task, overrides=task.options.extra_shapes[0])]
    graphs = [captured_case(case, CPU) for case in cases]
    recipe = seeds(graphs[0], DEVICE)[0]
    text = lower(graphs, recipe, task_source=task.source, device=DEVICE).source
    module = ModuleType("wide_kernel")
    sys.modules["wide_kernel"] = module
    exec(compile(text, "wide_kernel.py", "exec"), module.__dict__)
    for case, width in zip(cases, (8, 16), strict=True):
        own = case.build_model(3)
        new = seeded(lambda width=width: module.__dict__["ModelNew"](width), 3).eval()
        x = torch.randn(4, width)
        with torch.no_grad():
            assert torch.allclose(own(x), new(x), atol=1e-5)
    with pytest.raises(ValueError, match=r"Model\(width=8, depth=1\) or Model\(width=16, depth=1\)"):
        module.__dict__["ModelNew"](32)


TABLES = """
class Spread(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        self.mix.table = torch.rand(16, 16).t()
        self.table = torch.arange(256.0).view(16, 16) / 256
        self.few, self.one, self.fixed = torch.rand(16), torch.rand(()), torch.arange(16.0)

    def forward(self, x):
        return self.mix(x) @ self.mix.table.to(x.device) + self.table.to(x.device)[0] + self.few * self.one + self.fixed
"""


@pytest.mark.parametrize("imports", ["", "import tinylayers\n"])
def test_plain_tensors_that_forward_reads_come_with_the_model(imports: str, tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    path.write_text(
        f"import torch\nfrom torch import nn\n{imports}\n{TABLES}\n\nModel = Spread\n\n\n"
        "def get_inputs():\n    return [torch.randn(4, 16)]\n"
    )
    task = loading.load(read_task(path))
    graph = decode(OpGraph, encode(captured_case(task, CPU)))
    assert (graph.construction is not None) == bool(imports)
    text = lower([graph], seeds(graph, DEVICE)[0], task_source=task.task.source, device=DEVICE).source
    assert "tinylayers" not in text
    module = ModuleType("tables_kernel")
    sys.modules["tables_kernel"] = module
    exec(compile(text, "tables_kernel.py", "exec"), module.__dict__)
    x = torch.randn(4, 16)
    for seed in (0, 7):
        own, new = seeded(task.module.Model, seed), seeded(module.__dict__["ModelNew"], seed)
        with torch.no_grad():
            assert torch.allclose(own(x), new(x), atol=1e-5)
    cuda = Device("cuda", "test", "sm_90", 132, 50 << 20, 227 << 10, 80 << 30)
    text = lower([graph], seeds(graph, cuda)[0], task_source=task.task.source, device=cuda).source
    compile(text, "kernel.py", "exec")
    assert "_brought(parameters[" in text and "def _brought(" in text
    held: Any = new
    held.table = torch.zeros(16, 16)
    own.get_submodule("").table = torch.zeros(16, 16)
    with torch.no_grad():
        assert torch.allclose(own(x), new(x), atol=1e-5)


def test_a_plain_tensor_is_brought_to_the_device_once_for_each_of_its_values() -> None:
    space: dict[str, Any] = {}
    exec(_BROUGHT, space)
    brought, state, elsewhere = space["_brought"], {}, torch.device("meta")  # type: ignore[var-annotated]
    tensor = torch.arange(4.0)
    assert brought(tensor, "table", state, CPU) is tensor
    first = brought(tensor, "table", state, elsewhere)
    assert first.device == elsewhere and brought(tensor, "table", state, elsewhere) is first
    tensor.add_(1)
    assert brought(tensor, "table", state, elsewhere) is not first
