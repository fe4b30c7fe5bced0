"""A wrong output that repeats the one before convicts only if that is no chance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from foundry.tools.grade.judge.correctness import Examination, _count_values, _Failed


class Link:
    """A runner that changes nothing after it has answered."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        self.outputs = outputs

    def wait_idle(self, seconds: float) -> None: ...

    def look(self, specs: object, back: int) -> list[torch.Tensor]:
        return self.outputs


def explain(output: torch.Tensor) -> None:
    examination = Examination(cast(Any, Link([output])), "screen", "ieee", last=[output.clone()])
    trial = SimpleNamespace(specs=[], distribution=SimpleNamespace(name="x3"))
    question = SimpleNamespace(gate="x3", suffix="", trial=trial)
    examination._explain([output], [0], cast(Any, question))


@pytest.mark.parametrize("output", [torch.tensor(3), torch.tensor([True, False]), torch.zeros(2, 50), torch.zeros(0)])
def test_few_values_repeat_by_chance(output: torch.Tensor) -> None:
    explain(output)


def test_many_values_do_not() -> None:
    with pytest.raises(_Failed) as failed:
        explain(torch.arange(20.0))
    assert failed.value.outcome == "cheating" and failed.value.gate == "x3: computed anew"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.int64])
def test_values_of_every_type_are_counted(dtype: torch.dtype) -> None:
    assert _count_values(torch.tensor([0.0, 1.0, 1.0, 0.0]).to(dtype)) == 2
