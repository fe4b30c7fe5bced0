"""Loops over neighbouring elements become vector instructions, whatever loop stands around them."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest
import torch
from tests.knowledge.library.lowering import as_module

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.library.cpu.module import COMPILER, FLAGS
from foundry.knowledge.library.lower import lower
from foundry.tools.machine.device import describe
from foundry.tools.task.capture import capture

MULTIPLIES = re.compile(r"\tvfn?m(?:add|sub)\d+(ps|ss)\b")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 instructions")
def test_a_mean_over_a_mask_multiplies_vectors(tmp_path: Path) -> None:
    """GCC 12 unrolled and jammed the loop over the rows, and made scalars of the one inside."""
    inputs = [torch.randn(64, 128, 384), torch.rand(64, 128) > 0.3]
    graph = capture(as_module(lambda x, m: (x * m.unsqueeze(-1)).sum(1)), inputs)
    text = lower([graph], Recipe("cpu"), task_source="", device=describe("cpu")).source
    source = text.split('SOURCE = r"""')[1].split('\n"""')[0]
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, "-S", "-x", "c++", "-", "-o", str(tmp_path / "kernel.s")]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    kinds = MULTIPLIES.findall((tmp_path / "kernel.s").read_text())
    assert kinds.count("ps") > kinds.count("ss")
