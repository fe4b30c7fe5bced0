"""Results in dicts and nested tuples: a kernel returns the same keys in the same order, and the library writes one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.tools.grade import asking

from foundry.knowledge.candidate import Build
from foundry.knowledge.library.lower import lower, seeds
from foundry.knowledge.task import Task
from foundry.tools.grade.grader import Grader
from foundry.tools.grade.workbench import open_workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import dict_keys, flatten
from foundry.tools.verify.verify import verify_in

TASK = """
import collections
import torch
import torch.nn as nn


class NAME(nn.Module):
    def forward(self, x):
        scores = torch.softmax(x, 1)
        RETURN


def get_inputs():
    return [torch.randn(64, 300)]
"""
RETURNED = "return {'scores': scores, 'parts': (x.amax(1), {'sums': x.sum(1)}), 'none': None}"


def text_of(name: str, returned: str) -> str:
    return TASK.replace("NAME", name).replace("RETURN", returned.replace("\n", "\n        "))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("arranged")
    (folder / "task.py").write_text(text_of("Model", RETURNED))
    return read_task(folder / "task.py")


@pytest.fixture(scope="module")
def grader(task: Task, zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grader]:
    folder = tmp_path_factory.mktemp("scratch")
    made = Grader(task, describe("cpu"), folder, seed=3, zygote=zygote, owns_zygote=False)
    yield made
    made.close()


KEYS = (
    "the reference the keys ['scores'], ['parts'], ['parts']['sums'], ['none']: return the same keys in the same order"
)


@pytest.mark.parametrize(
    ("returned", "evidence"),
    [
        (RETURNED, ""),
        (f"{RETURNED.replace('return ', 'r = ')}\nreturn collections.OrderedDict(r)", ""),
        ("return [scores, x.amax(1), x.sum(1)]", f"forward returned no dict, {KEYS}"),
        (RETURNED.replace("sums", "sum"), f"['parts']['sum'], ['none'], {KEYS}"),
        (f"r = {{'none': None}}\n{RETURNED.replace('return ', 'r |= ')}\nreturn r", "the keys ['none'], ['scores'],"),
        (RETURNED.replace("x.sum(1)", "x.sum(1) + 1"), "output 2"),
        (RETURNED.replace("'none'", "3"), "forward returned a dict, not a tensor"),
    ],
)
def test_the_keys_are_those_of_the_reference_in_its_order(grader: Grader, returned: str, evidence: str) -> None:
    found = asking.verify(grader, text_of("ModelNew", returned), Build(True, 0.0), "screen", grader.baseline())
    assert (found.outcome == "correct") == (not evidence), found.evidence
    assert evidence in found.evidence


async def test_the_library_returns_what_the_reference_returns(task: Task, zygote: Zygote, tmp_path: Path) -> None:
    bench = await open_workbench(task, describe("cpu"), tmp_path, seed=0, zygote=zygote)
    try:
        (graph,) = (await bench.intake()).graphs
        text = lower([graph], seeds(graph, bench.device)[0], task_source=task.source, device=bench.device).source
        found = await verify_in(bench, task, text, "fair", "screen")
    finally:
        await bench.aclose()
    assert found.evaluation.verdict is not None and found.evaluation.verdict.outcome == "correct", (
        found.evaluation.verdict
    )


class Lying(dict[str, torch.Tensor]):
    def items(self) -> object:  # type: ignore[override]
        raise RuntimeError("asked")

    keys = values = __iter__ = items  # type: ignore[assignment]


def test_a_dict_of_ones_own_is_read_past_its_methods() -> None:
    x = torch.ones(2)
    assert flatten((Lying(a=x), 1)) == [x, 1]
    assert dict_keys((Lying(a=x), x, {"b": [x, {"c": x}]})) == ["['a']", "['b']", "['b']['c']"]
