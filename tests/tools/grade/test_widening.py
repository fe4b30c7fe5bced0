"""The truth of a model whose code names its types is as exact as that of any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


SERVING = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(64).to(torch.bfloat16))
        self.qkv = nn.Linear(64, 192, bias=False, dtype=torch.bfloat16)
        self.out = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
        self.router = nn.Linear(64, 4, bias=False)
        self.experts = nn.Parameter((torch.randn(4, 64, 64) / 8).to(torch.bfloat16))
        self.register_buffer("packed", torch.randint(-127, 128, (64, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(64, 1) / 64)

    def norm(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.gain * wide.to(x.dtype)

    def forward(self, x):
BODY


def get_inputs():
    return [torch.randn(32, 64, dtype=torch.bfloat16)]
"""
BODIES = {
    "attention": """
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        places = torch.arange(32, device=x.device).float()[:, None] / 10000 ** (torch.arange(64).float() / 64)
        q, k = (part.float() * places.cos() + part.float().roll(32, -1) * places.sin() for part in (q, k))
        share = F.softmax((q.bfloat16() @ k.bfloat16().T) / 8, dim=-1, dtype=torch.float32).to(torch.bfloat16)
        return x + self.out(share @ v)""",
    "experts": """
        share, chosen = self.router(x.float()).softmax(-1, dtype=torch.float).topk(2, dim=-1)
        share = (share / share.sum(-1, keepdim=True)).to(torch.bfloat16)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for number in range(4):
            rows, places = torch.where(chosen == number)
            out.index_add_(0, rows, (F.silu(x[rows] @ self.experts[number]) * share[rows, places, None]).float())
        return out.type(torch.bfloat16)""",
    "quantised": """
        largest = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6)
        weight = self.packed.to(torch.bfloat16) * self.scale.to(torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scaled = F.linear((x.float() / largest).type_as(x), weight)
        return torch.tensor(scaled.shape[0], dtype=torch.half) * (scaled.float() * largest).half()""",
}


@pytest.mark.parametrize("name", BODIES)
def test_the_truth_of_serving_code_is_what_it_computes_in_float64(name: str, tmp_path: Path) -> None:
    """Casts to float32 and to 16 bits between products round PyTorch's answer, and not the truth."""
    text = SERVING.replace("BODY", BODIES[name].strip("\n"))
    (tmp_path / "serving.py").write_text(text)
    (case,) = cases_of(read_task(tmp_path / "serving.py"), [3], "cpu", only_first=True)
    trial = case.trial(AS_GIVEN, 5)
    assert trial.note == "" and trial.is_wider == (True,)
    assert 1e-4 < trial.ieee[0].norm < 3e-2
    forward = text[text.index("    def norm") : text.index("def get_inputs")]
    for narrow in (".float()", ".bfloat16()", ".half()"):
        forward = forward.replace(narrow, ".double()")
    for narrow in ("torch.float32", "torch.bfloat16", "torch.float)", "torch.half"):
        forward = forward.replace(narrow, "torch.float64" + narrow[len(narrow.rstrip(")")) :])
    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn}
    exec(
        "class Wide(nn.Module):\n" + forward.replace('with torch.autocast("cpu", dtype=torch.float64)', "if True"),
        space,
    )
    wide = case._model.double()
    wide.__class__ = space["Wide"]
    with torch.no_grad():
        exact = wide(trial.inputs.value()[0].double()).flatten()
    assert float((trial.expected[0].truth - exact).norm() / exact.norm()) < 1e-12
    assert torch.get_default_dtype() is torch.float32
