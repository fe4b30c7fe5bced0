"""A model of an installed package in a file that needs torch only: the same tensors, made without the package."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda.module import _BROUGHT
from foundry.knowledge.library.file.skeleton import skeleton_text
from foundry.knowledge.library.lower import lower, seeds
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task_text import foreign_imports
from foundry.tools.task import loading
from foundry.tools.task.file import read_task
from foundry.tools.task.intake import captured_case
from foundry.tools.task.loading import LoadedTask

DEVICE = Device("cpu", "test", "x86-64", 2, 32 << 20, 64, 8 << 30)
CPU = torch.device("cpu")
PACKAGE = """
import math
import random

import numpy
import torch
from torch import nn

TABLE = numpy.linspace(0.0, 1.0, 5000)


class Settings:
    def __init__(self, width, depth):
        self.width, self.depth = width, depth


class Rotary(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("rates", 1.0 / 100.0 ** (torch.arange(0, width, 2).float() / width), persistent=False)
        self.register_buffer("phases", torch.tensor([0.25, -0.5, 1.5e-7]))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        nn.init.trunc_normal_(self.down.weight, std=0.02)
        nn.init.orthogonal_(self.up.weight)
        self.register_parameter("absent", None)
        self.drop = None
        self.scale = nn.Parameter(torch.full((width,), 0.5), requires_grad=False)
        self.up.bias.data = torch.zeros(2 * width).add_(torch.rand(2 * width) / math.sqrt(width))

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))) * self.scale)


class Tied(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.narrow = nn.Parameter(self.embed.weight.data.half())

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens)))


class Stack(nn.Module):
    def __init__(self, settings):
        super().__init__()
        settings.seen = True  # a constructor may change what it is given
        self.layers = nn.ModuleList(Layer(settings.width) for _ in range(settings.depth))
        self.layers[-1].eval()
        self.again = self.layers[0]
        self.rotary = Rotary(settings.width)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * torch.cat([self.rotary.rates, self.rotary.rates]).cos() + self.rotary.phases.sum()


class Drawn(nn.Module):
    def __init__(self, how):
        super().__init__()
        draw = {"numpy": lambda: numpy.random.randn(4), "random": lambda: [random.random() for _ in range(4)]}[how]
        self.fine = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.tensor(draw(), dtype=torch.float32))

    def forward(self, x):
        return self.fine(x) * self.weight


class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.tensor(numpy.concatenate([TABLE, TABLE])))

    def forward(self, x):
        return x * self.table.float()[:4]


class Unset(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4))

    def forward(self, x):
        return x * self.weight


class Reversed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.register_load_state_dict_pre_hook(lambda module, state, *rest: state.pop("old", None))

    def forward(self, x):
        return x * self.weight
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "tinylayers.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    yield
    sys.modules.pop("tinylayers", None)


def task_of(tmp_path: Path, made: str, inputs: str, init: str = "[]", takes: str = "", options: str = "") -> LoadedTask:
    path = tmp_path / "job.py"
    path.write_text(
        "import torch\nfrom torch import nn\nimport tinylayers\n\nROWS = 4\n\n\n"
        f"class Model(nn.Module):\n    def __init__(self{takes}):\n        super().__init__()\n"
        f"        self.inner = {made}\n\n    def forward(self, x, *, scale=1.0):\n        return self.inner(x)\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return {init}\n"
    )
    if options:
        path.with_suffix(".toml").write_text(options)
    return loading.load(read_task(path))


def stack(tmp_path: Path, options: str = 'mode = "eval"') -> LoadedTask:
    return task_of(
        tmp_path,
        "tinylayers.Stack(settings)",
        "torch.randn(ROWS, 8)",
        "[tinylayers.Settings(8, 2)]",
        ", settings",
        options,
    )


def model_of(graph: OpGraph) -> Any:
    """The skeleton's class Model, from the graph as it comes from another process."""
    found = decode(OpGraph, encode(graph)).construction
    assert found is not None, graph.kept_class
    module = ModuleType("skeleton")
    sys.modules["skeleton"] = module
    exec("import hashlib\nimport torch\n" + skeleton_text([found]), module.__dict__)
    return module.__dict__["Model"]


def seeded(make: Any, seed: int) -> nn.Module:
    loading.seed_everything(seed)
    found: nn.Module = make()
    return found


def test_what_torch_does_not_bring_is_foreign() -> None:
    text = (
        "import torch.nn as nn\nimport numpy as np, einops.layers\nfrom .beside import f\n\ndef g():\n    import timm\n"
    )
    assert foreign_imports(text + "from dataclasses import dataclass\n") == ("einops", ".beside", "timm")


@pytest.mark.parametrize("seed", [0, 1, 20])
def test_a_replay_holds_the_models_tensors_under_any_seed(seed: int, tmp_path: Path) -> None:
    task = stack(tmp_path, options="")
    settings = task.module.tinylayers.Settings(8, 2)
    skeleton = model_of(captured_case(task, CPU))
    own, other = seeded(lambda: task.module.Model(settings), seed), seeded(lambda: skeleton(settings), seed)
    assert list(own.state_dict()) == list(other.state_dict())
    for (name, one), (_, two) in zip(own.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, two) and one.requires_grad == two.requires_grad and one.stride() == two.stride(), name
    for (name, buffer), (_, its) in zip(own.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(buffer, its) and buffer.dtype is its.dtype, name
    modes = [{name: module.training for name, module in model.named_modules()} for model in (own, other)]
    assert modes[0] == modes[1] and not modes[1]["inner.layers.1"]
    inner: Any = other.get_submodule("inner")
    assert inner.again is inner.layers[0] and inner.layers[0].absent is None
    states: list[Any] = [own.state_dict(), other.state_dict()]
    assert states[0]._metadata == states[1]._metadata


def test_the_random_stream_goes_on_from_the_same_place(tmp_path: Path) -> None:
    task = stack(tmp_path, options="")
    settings = task.module.tinylayers.Settings(8, 2)
    skeleton = model_of(captured_case(task, CPU))
    seeded(lambda: task.module.Model(settings), 5)
    expected = torch.rand(4)
    seeded(lambda: skeleton(settings), 5)
    assert torch.equal(torch.rand(4), expected)


def test_tied_weights_stay_one_tensor(tmp_path: Path) -> None:
    task = task_of(tmp_path, "tinylayers.Tied(50, 8)", "torch.randint(0, 50, (2, 5))")
    model = seeded(model_of(captured_case(task, CPU)), 0)
    inner: Any = model.get_submodule("inner")
    assert inner.head.weight is inner.embed.weight and inner.narrow.dtype is torch.float16
    state = {key: torch.full_like(value, 2.0) for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert bool((inner.embed.weight == 2).all()) and inner.head.weight is inner.embed.weight
    copied: Any = copy.deepcopy(model)
    assert copied.inner.head.weight is copied.inner.embed.weight
    again: Any = pickle.loads(pickle.dumps(model))
    assert again.inner.head.weight is again.inner.embed.weight
    assert model.to(torch.float64).get_parameter("inner.narrow").dtype is torch.float64


def test_other_arguments_than_the_recorded_ones_raise(tmp_path: Path) -> None:
    task = stack(tmp_path)
    skeleton, settings = model_of(captured_case(task, CPU)), task.module.tinylayers.Settings
    skeleton(settings=settings(8, 2))
    used = settings(8, 2)
    task.module.Model(used)
    skeleton(used)
    with pytest.raises(
        ValueError, match=r"holds the parameters of Model\(settings=Settings\(.*'depth': 2.*not those of"
    ):
        skeleton(settings(8, 3))
    with pytest.raises(TypeError, match="settings"):
        skeleton()


@pytest.mark.parametrize("how", ["numpy", "random"])
def test_draws_that_torch_does_not_see_keep_the_class_and_name_the_parameter(how: str, tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, f"tinylayers.Drawn({how!r})", "torch.randn(3, 4)"), CPU)
    assert graph.construction is None
    assert graph.kept_class.startswith("the values of inner.weight are not made by torch's calls alone")
    device = DEVICE
    source = (tmp_path / "job.py").read_text()
    text = lower([graph], seeds(graph, device)[0], task_source=source, device=device).source
    assert "import tinylayers" in text
    assert text.startswith(
        "# Foundry kernel, target cpu. Needs torch, g++ and tinylayers, because the values of inner."
    )


def test_a_large_table_from_outside_of_torch_keeps_the_class(tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, "tinylayers.Large()", "torch.randn(3, 4)"), CPU)
    assert "takes a tensor of 78 KB from outside of torch" in graph.kept_class


def test_a_state_that_is_loaded_in_a_way_of_its_own_keeps_the_class(tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, "tinylayers.Reversed()", "torch.randn(3, 4)"), CPU)
    assert graph.kept_class == "inner (Reversed) saves or loads its state in a way of its own"


def test_memory_to_which_nothing_was_written_need_not_be_equal(tmp_path: Path) -> None:
    graph = captured_case(task_of(tmp_path, "tinylayers.Unset()", "torch.randn(3, 4)"), CPU)
    assert seeded(model_of(graph), 0).get_parameter("inner.weight").shape == (4,)


def test_a_task_that_imports_torch_only_keeps_its_text(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x + 1\n\n\n"
        "def get_inputs():\n    return [torch.randn(3)]\n"
    )
    graph = captured_case(loading.load(read_task(path)), CPU)
    assert graph.construction is None and not graph.kept_class


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

    def forward(self, x):
        return self.mix(x) @ self.mix.table.to(x.device) + self.table.to(x.device)[0]
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
        assert torch.allclose(own(x), new(x), atol=1e-5)
    cuda = Device("cuda", "test", "sm_90", 132, 50 << 20, 227 << 10, 80 << 30)
    text = lower([graph], seeds(graph, cuda)[0], task_source=task.task.source, device=cuda).source
    compile(text, "kernel.py", "exec")
    assert "_brought(parameters[" in text and "def _brought(" in text
    held: Any = new
    held.table = torch.zeros(16, 16)
    own.get_submodule("").table = torch.zeros(16, 16)
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
