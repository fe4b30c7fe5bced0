"""The truth of a model whose code names its types is as exact as that of any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.protocol.rules import AS_GIVEN
from foundry.tools.task.file import read_task

MIXED = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Parameter(torch.randn(4, 64))
        self.up = nn.Linear(64, 128, dtype=torch.bfloat16)
        self.down = nn.Linear(128, 64, dtype=torch.bfloat16)

    def forward(self, x):
        share = ROUTED
        out = torch.zeros(x.shape, dtype=torch.float32)
        return (out + share[:, :1] * self.down(self.up(x).relu()).float()).to(x.dtype)


def get_inputs():
    return [torch.randn(32, 64, dtype=torch.bfloat16)]
"""


@pytest.mark.parametrize(
    "routed", ["(x.float() @ self.router.t()).softmax(-1)", "(x @ self.router.t().to(x.dtype)).softmax(-1)"]
)
def test_types_that_a_model_names_are_as_wide_as_its_truth(routed: str, tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(MIXED.replace("ROUTED", routed))
    (case,) = cases_of(read_task(tmp_path / "mixed.py"), [3], "cpu", only_first=True)
    trial = case.trial(AS_GIVEN, 5)
    assert trial.note == ""
    assert 1e-4 < trial.ieee[0].norm < 1e-2  # what PyTorch rounds in 16 bits
    assert torch.get_default_dtype() is torch.float32
