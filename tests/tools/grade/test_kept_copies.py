"""Copies of an answer in a process are found and changed, however the answer lies in memory."""

from __future__ import annotations

import subprocess
import sys

SPOILED = """
import torch
from foundry.tools.grade.runner import copies

torch.manual_seed(0)
whole = torch.randn(4, 48, 2)
start, end = whole.unbind(-1)  # every second element of one tensor, as a model with two heads returns them
kept = start.clone()
found = copies.spoil(start, [5, 60])
changed = (kept != start).nonzero().shape[0]
print(found, changed)
"""


def test_copies_of_an_answer_with_gaps_are_changed() -> None:
    done = subprocess.run([sys.executable, "-c", SPOILED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found, changed = map(int, done.stdout.split())
    assert found >= 2 and changed == 16
