"""Loops over neighbouring elements become vector instructions, whatever loop stands around them."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.knowledge.compiler.lowering import as_module

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.cpu.module import COMPILER, FLAGS
from foundry.knowledge.compiler.lower import lower
from foundry.tools.machine.device import describe
from foundry.tools.task.capture import capture

MULTIPLIES = re.compile(r"\tvfn?m(?:add|sub)\d+(ps|ss)\b")
DIVIDES = re.compile(r"\tvdiv(ps|ss)\b")


pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 instructions")


def mostly_vectors(
    model: torch.nn.Module, inputs: list[torch.Tensor], folder: Path, instructions: re.Pattern[str] = MULTIPLIES
) -> bool:
    """Whether more of the kernels' instructions of a kind are of vectors than of single numbers."""
    kinds = instructions.findall(kernel_text(model, inputs, folder))
    return kinds.count("ps") > kinds.count("ss")


def kernel_text(model: torch.nn.Module, inputs: list[torch.Tensor], folder: Path) -> str:
    """The instructions of the first kernels of a model."""
    graph = capture(model, inputs)
    text = lower([graph], Recipe("cpu"), task_source="", device=describe("cpu")).source
    source = text.split('SOURCE = r"""')[1].split('\n"""')[0]
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, "-S", "-x", "c++", "-", "-o", str(folder / "kernel.s")]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return (folder / "kernel.s").read_text()


def test_a_mean_over_a_mask_multiplies_vectors(tmp_path: Path) -> None:
    """GCC 12 unrolled and jammed the loop over the rows, and made scalars of the one inside."""
    inputs = [torch.randn(64, 128, 384), torch.rand(64, 128) > 0.3]
    assert mostly_vectors(as_module(lambda x, m: (x * m.unsqueeze(-1)).sum(1)), inputs, tmp_path)


def test_an_enlarged_image_multiplies_vectors(tmp_path: Path) -> None:
    """The way from an index to a position was scalar: rounded, compared and cut off."""

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")

    assert mostly_vectors(as_module(model), [torch.randn(4, 8, 32, 32)], tmp_path)


def test_what_is_left_of_a_row_is_worked_out_in_vectors(tmp_path: Path) -> None:
    """Two of eighteen exponentials were scalar, and took as long as the other sixteen."""
    assert mostly_vectors(as_module(lambda x: torch.softmax(x, -1)), [torch.randn(256, 18)], tmp_path)


def test_lanes_are_compared_as_vectors_to_the_last(tmp_path: Path) -> None:
    """The last steps of a row's maximum were branches, which a processor guesses."""
    text = kernel_text(as_module(lambda x: x.amax(-1)), [torch.randn(4096, 16)], tmp_path)
    assert "vcmp" in text and "comiss" not in text


class States(torch.nn.Module):
    """The states of an LSTM alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.LSTM(32, 64)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)[0]


def test_cells_of_a_recurrent_layer_divide_vectors(tmp_path: Path) -> None:
    """Arrays of the gates' sums within the loop over units made scalars of it."""
    assert mostly_vectors(States(), [torch.randn(9, 4, 32)], tmp_path, DIVIDES)
