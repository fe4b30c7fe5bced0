"""A small task whose kernel has a reduction, a product with an epilogue, and parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from foundry.knowledge.device import Device
from foundry.knowledge.task import Task
from foundry.tools.machine.device import describe
from foundry.tools.selftest.faults.original import Original, original_of
from foundry.tools.task.capture import capture
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import load

TASK = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 70)
        self.norm = nn.LayerNorm(70)

    def forward(self, x):
        return torch.softmax(self.norm(F.relu(self.linear(x)) * 0.5), dim=1)


def get_inputs():
    return [torch.randn(33, 48)]
"""


def written(folder: Path, source: str = TASK) -> Task:
    (folder / "small.py").write_text(source)
    return read_task(folder / "small.py")


@pytest.fixture(scope="session")
def device() -> Device:
    return describe("cpu")


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory, device: Device) -> Original:
    task = written(tmp_path_factory.mktemp("task"))
    loaded = load(task)
    return original_of(task, [capture(loaded.build_model(0), loaded.inputs(0), overrides={})], device)
