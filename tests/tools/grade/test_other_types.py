"""Complex numbers and floats of 8 bits are judged: as inputs, parameters, buffers and outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.tools.grade import asking

from foundry.knowledge.candidate import Build
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.protocol.rules import norm_floor
from foundry.tools.task.file import read_task

MODULE = """
import torch
from torch import nn


class NAME(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, n, dtype=torch.complex64) * n**-0.5)
        self.register_buffer("table", torch.polar(torch.ones(n), torch.linspace(0, 3, n)))
        self.scales = nn.Parameter(torch.randn(n, n).to(torch.float8_e4m3fn), requires_grad=False)

    def forward(self, x, q):
        y = (x * self.table) @ self.w
        low = (q.float() / q.float().abs().amax(1, keepdim=True) * 448).to(torch.float8_e4m3fn)
        return y, q.float() @ self.scales.float(), low, y.abs()
"""
MAKERS = """

def get_inputs():
    return [torch.randn(64, 32, dtype=torch.complex64), torch.randn(64, 32).to(torch.float8_e5m2)]


def get_init_inputs():
    return [32]
"""


@pytest.fixture(scope="module")
def grader(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("types")
    (folder / "task.py").write_text(MODULE.replace("NAME", "Model") + MAKERS)
    made = Grader(read_task(folder / "task.py"), describe("cpu"), folder, seed=3, zygote=zygote, owns_zygote=False)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("old", "new", "outcome"),
    [
        ("", "", "correct"),
        ("* 448).to", "* 448.0).clamp(-448, 448).to", "correct"),
        ("/ q.float().abs().amax(1, keepdim=True) * 448", "* (448 / q.float().abs().amax(1, keepdim=True))", "correct"),
        ("(x * self.table)", "(x * self.table.conj())", "wrong_result"),
        ("@ self.w\n", "@ self.w.conj()\n", "wrong_result"),
        ("return y,", "return y.conj(),", "wrong_result"),
        ("return y,", "return torch.view_as_real(y),", "wrong_result"),
        ("self.scales.float(), low", "self.scales.float(), low.float()", "wrong_result"),
        ("* 448).to", "* 440).to", "inaccurate"),
        ("* 448).to", "* 448).to(torch.float8_e5m2).float().to", "wrong_result"),
    ],
)
def test_they_are_judged_like_other_numbers(grader: Grader, old: str, new: str, outcome: str) -> None:
    text = MODULE.replace("NAME", "ModelNew").replace(old, new)
    found = asking.verify(grader, text, Build(True, 0.0), "screen", grader.baseline())
    assert found.outcome == outcome, found.evidence


def test_a_step_is_excused_where_a_tie_is_near() -> None:
    step = 0.0884  # of a float8_e4m3fn, relative, on average
    assert step * (1 / 900) ** 0.5 < norm_floor("float8_e4m3fn", 1 << 22) < step * (1 / 30) ** 0.5
