"""Recurrent layers on the CPU against float64, with several ways to share them out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.knowledge.compiler.cuda.recurrence_cases import recurrence

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.contractions.recurrence import print_recurrence

CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Choice]]] = {
    "lstm": (("lstm", 5, 5, 37, 1, 2), {}, {"threads": 2, "rows": 2, "slice": 3}),
    "gru in bfloat16": (("gru", 4, 3, 21), {"dtype": "bfloat16", "bias": False, "tolerance": 4e-3}, {"rows": 1}),
    "rnn of large states": (("rnn_relu", 6, 1, 9), {"states": 1e30}, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recurrence(cpu_kernel: Any, name: str) -> None:
    torch.manual_seed(7)
    sizes, settings, choices = CASES[name]
    case = recurrence(*sizes, **settings)
    found = {key: truth.clone() for key, truth in case.outputs.items()}
    printed = cpu_kernel.run(case.kernel, print_recurrence, case.inputs, found, choices)
    assert all(printed.choices[key] == value for key, value in choices.items())
    case.check(found, name)
