"""A package of layers that a test makes, tasks that import it, and what stands in for their classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from foundry.knowledge.codec import decode, encode
from foundry.knowledge.compiler.file.skeleton import skeleton_text
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import Construction, OpGraph
from foundry.tools.task import loading
from foundry.tools.task.file import read_task
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


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets `import tinylayers` work until the test ends."""
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
    return class_of(found)


def class_of(found: Construction) -> Any:
    module = ModuleType("skeleton")
    sys.modules["skeleton"] = module
    exec("import hashlib\nimport torch\n" + skeleton_text([found]), module.__dict__)
    return module.__dict__["Model"]


def seeded(make: Any, seed: int) -> nn.Module:
    loading.seed_everything(seed)
    found: nn.Module = make()
    return found
