"""Attention in CUDA against float64 truth: every precision, mask and layout, on the emulator; on a GPU where one is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.knowledge.compiler.cuda.attention_cases import ATTENTION, Heads, attention
from tests.knowledge.compiler.cuda.cases import H200, Case
from tests.knowledge.compiler.cuda.emulated import SIXTEEN, check_emulated, parts
from tests.knowledge.compiler.cuda.test_kernels import candidate, run_candidate

from foundry.knowledge.compiler.cuda.contractions import attention_mma
from foundry.knowledge.compiler.cuda.dialect import runtime_header
from foundry.knowledge.compiler.cuda.module import FLAGS
from foundry.knowledge.compiler.file.texts import read_library_text
from foundry.knowledge.compiler.printers import print_kernel
from foundry.tools.targets.base import first_error
from foundry.tools.targets.cuda.build import parse_ptxas

PARTS = 2


@pytest.mark.parametrize("part", parts(PARTS))
def test_emulated(part: int, tmp_path: Path) -> None:
    few = replace(H200, cores=3)  # so that blocks take several tiles one after the other
    check_emulated({name: made(name) for name in sorted(ATTENTION)[part::PARTS]}, tmp_path, few)


def made(name: str) -> Case:
    """A case with the same numbers whichever others there are."""
    torch.manual_seed(7)
    return ATTENTION[name]()


# What is wrong, as a replacement in the text of the kernel that takes turns.
_GIVE_KEYS = "            if (!MASK_BYTES) give_back(empty_keys + stage);\n            if (step"
_WAIT_VALUES = (
    "            bulk::await(full_values + value_stage, value_parity);\n            start_values();\n            if"
)
_HOLD = "            wgmma::hold(acc[0]);\n            give_back"
MISTAKES = {
    "scores read early": ("wgmma::wait<1>();", "wgmma::wait<2>();"),
    "sums read early": (f"            wgmma::wait<0>();\n{_HOLD}", _HOLD),
    "weights written early": ("            wgmma::wait<0>();\n            wgmma::hold(acc[0]);", "take_weights();"),
    "keys not awaited": (
        "            bulk::await(full_keys + stage, parity);\n            if (IN",
        "            if (IN",
    ),
    "values not awaited": (_WAIT_VALUES, "            start_values();\n            if"),
    "values given back early": (_WAIT_VALUES, f"give_back(empty_values + value_stage);\n{_WAIT_VALUES}"),
    "keys never given back": (_GIVE_KEYS, "            if (step"),
    "queries never given back": ("if (step + 1 == own_end) give_back(empty_queries);", ""),
    "others take no turn": ("if (IN_TURN && step > first_step) bulk::meet", "if (false) bulk::meet"),
    "nobody begins": ("if (IN_TURN && group == GROUPS - 1) bulk::pass(1, 256);", ""),
    "another parity": ("bulk::await(empty_keys + stage, parity ^ 1)", "bulk::await(empty_keys + stage, parity)"),
    "written over": ("                bulk::await(empty_values + value_stage, value_parity ^ 1);\n", ""),
    "too few bytes": ("stage, KEY_BYTES + MASK_BYTES)", "stage, KEY_BYTES - 128)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_waiting_are_found(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = MISTAKES[mistake]

    def text_with_mistake(path: str) -> str:
        text = read_library_text(path)
        assert right in text or not path.endswith("attention_turns.cu")
        return text.replace(right, wrong)

    monkeypatch.setattr(attention_mma, "read_library_text", text_with_mistake)
    torch.manual_seed(7)
    heads, kind = Heads(270, 300, 64, 64, heads=1), "bfloat16"
    case = attention(heads, dtype="bfloat16", precision=kind, path="turns", warps=8, keys=64, pass_by=1)
    with pytest.raises(AssertionError, match=r"relative error|emulator: "):
        check_emulated({"wrong": case}, tmp_path, replace(H200, cores=2))


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
    case = made(name)
    case.check(run_candidate(candidate(case), case))
