"""`foundry tune` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foundry.cli import app
from foundry.tools.machine.device import describe
from foundry.tools.targets.base import read_literals

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def get_inputs():
    return [torch.rand(64, 1024)]
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "double.py"
    path.write_text(TASK)
    return path


@pytest.mark.skipif(describe("cuda").present, reason="there is a GPU")
def test_without_the_device_nothing_is_tuned(task: Path) -> None:
    found = CliRunner().invoke(app, ["tune", str(task), "--target", "cuda"])
    assert found.exit_code == 3 and "there is no cuda device here" in found.output


@pytest.mark.slow
def test_a_task_is_tuned_into_a_kernel_file(task: Path, tmp_path: Path) -> None:
    out = tmp_path / "kernel.py"
    found = CliRunner().invoke(
        app, ["tune", str(task), "--target", "cpu", "--seconds", "2", "--out", str(out), "--json"]
    )
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    literals = read_literals(out.read_text())
    assert document["tried"] >= 1 and document["kernels"][0]["choices"]
    assert literals is not None and literals.about["target"] == "cpu"
