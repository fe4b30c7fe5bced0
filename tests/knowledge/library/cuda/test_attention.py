"""Attention in CUDA against float64 truth: every precision, mask and layout, on the emulator; on a GPU where one is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.knowledge.library.cuda.attention_cases import ATTENTION, Heads, attention
from tests.knowledge.library.cuda.cases import H200, Case
from tests.knowledge.library.cuda.emulated import SIXTEEN, check_emulated
from tests.knowledge.library.cuda.test_kernels import candidate, run_candidate

from foundry.knowledge.library.cuda.dialect import runtime_header
from foundry.knowledge.library.cuda.module import FLAGS
from foundry.knowledge.library.printers import print_kernel
from foundry.tools.targets.base import first_error
from foundry.tools.targets.cuda import parse_ptxas

PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
def test_emulated(part: int, tmp_path: Path) -> None:
    torch.manual_seed(7)
    check_emulated({name: ATTENTION[name]() for name in sorted(ATTENTION)[part::PARTS]}, tmp_path)


def defaults() -> Iterator[tuple[str, Case]]:
    """Default tiles of the usual heads: many queries, and one to an example."""
    for head in (64, 128):
        for rows in (2048, 1):
            for causal in (False, True):
                heads = Heads(rows, 2048, head, head)
                place = f"{head}_{rows}_{causal}"
                yield f"bfloat16_{place}", attention(heads, causal=causal, dtype="bfloat16", precision="bfloat16")
                yield f"x3_{place}", attention(heads, causal=causal, precision="tf32x3")


def printed(case: Case, name: str, arch: str) -> tuple[tuple[str, ...], str]:
    found = print_kernel(case.kernel, case.plan(), replace(H200, arch=arch.removesuffix("a")), case.choices)
    return found.shared, found.functions.replace("foundry_", f"foundry_{name}_")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a", "sm_100a"])
def test_usual_heads_compile_without_spills(arch: str, tmp_path: Path) -> None:
    parts = [SIXTEEN, runtime_header()]
    with torch.device("meta"):
        for name, case in defaults():
            shared, functions = printed(case, name, arch)
            parts += [text for text in shared if text not in parts] + [functions]
    source = tmp_path / "all.cu"
    source.write_text("\n".join(parts))
    command = ["nvcc", *FLAGS, f"-arch={arch}", str(source), "-o", str(tmp_path / "all.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, first_error(done.stderr)
    kernels = parse_ptxas(done.stdout + done.stderr)
    assert not {name: facts["spill_bytes"] for name, facts in kernels.items() if facts["spill_bytes"] > 256}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("name", ATTENTION)
def test_on_the_gpu(name: str) -> None:
    torch.manual_seed(7)
    case = ATTENTION[name]()
    case.check(run_candidate(candidate(case), case))
