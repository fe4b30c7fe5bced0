"""In which order rows are read that no block holds: by what lies together of a row, never by a single shape."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.knowledge.compiler.cuda.cases import H200, F, load, op

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.ir.kernels import (
    Buffer,
    Emit,
    Named,
    Plan,
    PrintedKernel,
    Reduction,
    RowKernel,
    Store,
)
from foundry.knowledge.compiler.printers import print_kernel
from foundry.knowledge.opgraph import Arrangement, contiguous_strides


def channels(batch: int, count: int, size: int, **choices: Choice) -> PrintedKernel:
    """Each channel without its mean, of a tensor that nobody has to make."""
    shape = (batch, count, size)
    value = load("x", size, count * size, 1)
    stages = (
        Reduction("m", "moments", value, F),
        Emit(Store("y", value.view, op("sub", value, Named("m.mean", F)))),
    )
    strides = contiguous_strides(shape)
    buffers = {"x": Buffer("x", shape, strides, F, "input"), "y": Buffer("y", shape, strides, F, "output")}
    kernel = RowKernel("norm", (count,), (batch, size), stages, ("batch_norm",))
    return print_kernel(kernel, Plan(buffers, (kernel,), (), Arrangement.flat(0)), H200, choices)


@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((40, 24, 427000), "memory"),
        ((16, 32, 262144), "memory"),
        ((64, 128, 62500), "memory"),
        ((256, 256, 3136), "launches"),  # pieces of a few loads a thread
        ((4, 8, 262144), "launches"),  # the second cache holds all of it
        ((150000, 600, 1), "memory"),  # columns, too few for a block each
        ((16384, 4096, 1), "launches"),
        ((1, 960, 508032), "behind"),  # rows that the second cache holds, each in one piece
    ],
)
def test_order_by_what_lies_together(shape: tuple[int, int, int], order: str) -> None:
    assert channels(*shape).choices["order"] == order


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_vectors_are_stored_whole_where_addresses_have_64_bits(tmp_path: Path) -> None:
    """The compiler takes a structure apart there, four stores for one."""
    source = tmp_path / "norm.cu"
    source.write_text(runtime_header() + channels(64, 64, 512 * 512, order="launches").functions)
    command = ["nvcc", "-ptx", "-std=c++17", "-O3", "-arch=sm_90a", str(source), "-o", str(tmp_path / "norm.ptx")]
    subprocess.run(command, check=True, capture_output=True)
    stores = re.findall(r"\bst\.global\S*", (tmp_path / "norm.ptx").read_text().split(".entry foundry_norm(")[1])
    assert set(stores) == {"st.global.v4.b32"}
