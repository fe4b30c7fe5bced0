"""Tasks in other forms are judged like any others: each case of a generator, arguments by name, other class names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.grade import asking
from tests.tools.grade.test_arrangements import kernel_of

from foundry.knowledge.candidate import Build
from foundry.knowledge.task import Task
from foundry.tools.grade.host.grader import Grader
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task

MODULE = """
import torch
from torch import nn


class NAME(nn.Module):
    def __init__(self, width, *, slope=0.1):
        super().__init__()
        self.up, self.slope = nn.Linear(width, width), slope

    def forward(self, x, scale=None, *, shift):
        y = torch.nn.functional.leaky_relu(self.up(x), self.slope) + shift
        return y if scale is None else y * scale
"""
MAKERS = """

def get_inputs():
    for rows in (8, 24):
        yield [[torch.randn(rows, 16)], {"shift": torch.randn(16)}]


def get_init_inputs():
    return [[16], {"slope": 0.2}]
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    path = tmp_path_factory.mktemp("forms") / "task.py"
    path.write_text(MODULE.replace("NAME", "Shifted") + MAKERS)
    return read_task(path)


@pytest.fixture(scope="module")
def grader(task: Task, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("scratch")
    made = Grader(task, describe("cpu"), folder, seed=3, zygote=zygote, owns_zygote=False)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (("", ""), ""),
        (("+ shift", "- shift"), "as given: first wrong element"),
        (("self.slope) + shift", "self.slope) + shift * (len(x) == 8)"), "input group=1"),
        (("slope=0.1", "slope=0.1, depth=1"), ""),
    ],
)
def test_every_case_is_asked(grader: Grader, change: tuple[str, str], evidence: str) -> None:
    text = MODULE.replace("NAME", "ModelNew").replace(*change)
    found = asking.verify(grader, text, Build(True, 0.0), "full", grader.baseline())
    assert (found.outcome == "correct") == (not evidence), found.evidence
    assert evidence in found.evidence


async def test_the_library_writes_one_file_for_all_cases(task: Task, zygote: Zygote, tmp_path: Path) -> None:
    text = await kernel_of(task, zygote, tmp_path)
    assert "Model = Shifted" in text
