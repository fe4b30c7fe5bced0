"""The first of long rows in order in CUDA, on the emulator and by the compiler, against PyTorch's stable sort."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.knowledge.compiler.cuda.cases import H200, Case
from tests.knowledge.compiler.cuda.compiled import spills_of
from tests.knowledge.compiler.cuda.emulated import check_emulated
from tests.knowledge.compiler.selecting import KINDS, drawn, in_order, select_kernel

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import SelectKernel
from foundry.knowledge.compiler.printers import print_kernel
from foundry.knowledge.errors import CannotLower


def case(x: torch.Tensor, first: int, count: int, *, largest: bool = True, **choices: Choice) -> Case:
    values, places = in_order(x, first, count, largest=largest)
    kernel = select_kernel(x, first, count, largest=largest)
    return Case(kernel, {"x": x}, {"y": values, "at": places}, dict(choices), tolerance=1e-12)


def unsorted_case(x: torch.Tensor, count: int) -> Case:
    """What is larger than the last one as it lies in the row, then the first of those that equal it."""
    values, _ = in_order(x, 0, count, largest=True)
    last = values[:, -1:]
    place = torch.arange(x.shape[1]) + x.shape[1] * (1 - (x > last).int()) + x.shape[1] * (x < last)
    places = place.argsort(-1)[:, :count].contiguous()
    kernel = select_kernel(x, 0, count, largest=True, ties="as in unsorted topk")
    return Case(kernel, {"x": x}, {"y": x.gather(1, places), "at": places}, tolerance=1e-12)


def replace_ties(known: Case) -> Case:
    """Where no two are equal it makes no difference."""
    assert isinstance(known.kernel, SelectKernel)
    return replace(known, kernel=replace(known.kernel, ties="as in topk"))


def few_case(x: torch.Tensor, count: int, places: list[int]) -> Case:
    """Where all that is taken is the same number: `places` are what PyTorch 2.11 finds on an H100."""
    at = torch.tensor([places])
    kernel = select_kernel(x, 0, count, largest=True, ties="as in topk")
    return Case(kernel, {"x": x}, {"y": x.gather(1, at), "at": at}, tolerance=1e-12)


CASES = {
    **{f"{kind}_largest": case(drawn(kind, 2, 1500), 0, 100) for kind in KINDS},
    **{f"{kind}_smallest": case(drawn(kind, 2, 1300), 0, 33, largest=False) for kind in KINDS},
    "all": case(drawn("special", 1, 1100), 0, 1100, threads=128),
    "a_power_of_two": case(drawn("ties", 1, 1024), 0, 256, threads=512),
    "unsorted": unsorted_case(drawn("normal", 2, 1100), 40),
    "unsorted_ties": unsorted_case(drawn("ties", 2, 1100), 300),
    "three_equal": few_case(torch.ones(1, 1100), 3, [2, 1, 0]),
    "five_equal": few_case(torch.ones(1, 1100), 5, [1, 0, 2, 4, 3]),
    "eight_equal": few_case(torch.ones(1, 40), 8, [7, 6, 4, 5, 1, 0, 2, 3]),
    "few_apart": replace_ties(case(drawn("rising", 2, 1100), 0, 20)),
    "double": case(drawn("special", 1, 1100, "float64"), 0, 40),
    "half": case(drawn("special", 1, 1100, "float16"), 0, 40, largest=False),
    "bfloat": case(drawn("normal", 1, 1100, "bfloat16"), 0, 40),
    "long": case(drawn("special", 1, 1100, "int64") << 40, 0, 40, largest=False),
    "int": case(drawn("normal", 1, 1100, "int32"), 0, 40),
    "signed_char": case(drawn("ties", 1, 1100, "int8"), 0, 40),
    "unsigned_char": case(drawn("ties", 1, 1100, "uint8"), 0, 40, largest=False),
    "ends": case(torch.tensor([[0, 2**63 - 1, -1, -(2**63), 1, 2**63 - 1, -(2**63)]]), 0, 7),
    "unstaged": case(drawn("normal", 1, 65_536), 0, 1024, threads=1024),
    "unstaged_ties": case(drawn("ties", 1, 20_000), 0, 9_00, largest=False),
    "the_first": case(drawn("special", 2, 1100), 0, 1),
    "the_middle": case(drawn("ties", 2, 1100), 550, 551, largest=False),
    "the_last": case(drawn("special", 2, 70_000), 69_999, 70_000, largest=False),
    "some_in_the_middle": case(drawn("normal", 2, 1100), 40, 60),
    "columns": case(drawn("ties", 1200, 3).mT, 0, 17),
}


def test_on_the_emulator(tmp_path: Path) -> None:
    check_emulated(CASES, tmp_path)


def test_more_in_order_than_a_block_holds() -> None:
    for dtype, most in (("float32", 4096), ("float64", 2048)):
        x = drawn("normal", 1, 5000, dtype)  # type: ignore[arg-type]
        known = case(x, 0, most)
        assert print_kernel(known.kernel, known.plan(), H200, {}).functions
        with pytest.raises(CannotLower, match="in order"):
            print_kernel(select_kernel(x, 0, most + 1, largest=True), known.plan(), H200, {})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    spills = spills_of(CASES, tmp_path, arch)
    assert not {name: spill for name, spill in spills.items() if spill}
