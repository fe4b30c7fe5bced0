"""Recurrent kernels in CUDA against float64: on the emulator everywhere, as whole candidates on a GPU where one is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.knowledge.compiler.cuda.cases import Case
from tests.knowledge.compiler.cuda.emulated import check_emulated
from tests.knowledge.compiler.cuda.recurrence_cases import CASES
from tests.knowledge.compiler.cuda.test_kernels import candidate, run_candidate

from foundry.knowledge.device import Device

# Few multiprocessors: the emulator runs a thread of the system for each block of a launch whose blocks run at once.
SMALL = Device("cuda", "small", "sm_90", 7, 60 << 20, 16, 141 << 30)


def seeded(name: str) -> Case:
    torch.manual_seed(7)
    return CASES[name]()


def test_emulated(tmp_path: Path) -> None:
    check_emulated({name: seeded(name) for name in CASES}, tmp_path, SMALL)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("name", CASES)
def test_on_the_gpu(name: str) -> None:
    case = seeded(name)
    case.check(run_candidate(candidate(case), case))
