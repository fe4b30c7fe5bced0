"""A task that no tracer can follow still says what PyTorch runs in it, and that is its first diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from foundry.agents.playbook.diagnosis import diagnose
from foundry.agents.prompt_text.standing import operators
from foundry.knowledge.candidate import REFERENCE
from foundry.tools.task.file import read_task
from foundry.tools.task.intake import _capture

UNTRACEABLE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(int(float(x[0, 0].abs().item()) * 0) + 3):
            x = torch.tanh(x @ x) + 1.0
        return x if bool((x == x).all()) else torch.stack([row for row in x if row.sum().item() > 0])


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""


def test_its_operators_are_its_diagnosis(toy: Any, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(UNTRACEABLE)
    answer = _capture(read_task(tmp_path / "loop.py"), torch.device("cpu"))
    assert answer.graphs == [] and answer.note
    ran = tuple(answer.ran.rows)
    found = {row.name: row for row in ran}
    assert found["aten::mm"].calls == 3 and found["aten::mm"].flops == 3 * 2 * 64**3
    assert found["aten::tanh"].traffic_bytes == 3 * 2 * 64 * 64 * 4 and sum(row.ms for row in ran) > 0

    reference = toy.evaluation(None)
    reference = replace(reference, candidate=replace(reference.candidate, id=REFERENCE), profile=None)
    brief = toy.brief(parent=reference, lowered=None, graph=None, ran=ran)
    told = diagnose(brief)
    assert "could not be traced" in told.evidence and "mm 3x" in told.evidence and "0 MB moved" not in told.evidence
    assert "Fuse" in told.action or told.limiter == "compute"
    assert "- aten::mm: 3 calls" in operators(brief)
    later = diagnose(replace(brief, parent=toy.evaluation(None)))
    assert "0 MB moved" not in later.evidence
