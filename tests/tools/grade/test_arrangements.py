"""Results in dicts and nested tuples: a kernel returns the same keys in the same order, and the library writes one."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.tools.grade import asking

from foundry.knowledge.candidate import Build
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.task import Task
from foundry.tools.grade.host.grader import Grader
from foundry.tools.grade.host.workbench import open_workbench
from foundry.tools.grade.runner.models import LaidOut
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import dict_keys, flatten, load
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


async def kernel_of(task: Task, zygote: Zygote, folder: Path) -> str:
    """The library's kernel for a task, which is found right."""
    bench = await open_workbench(task, describe("cpu"), folder, seed=0, zygote=zygote)
    try:
        graphs = (await bench.intake()).graphs
        text = lower(graphs, seeds(graphs[0], bench.device)[0], task_source=task.text, device=bench.device).source
        verdict = (await verify_in(bench, task, text, "fair", "screen")).evaluation.verdict
    finally:
        await bench.aclose()
    assert verdict is not None and verdict.outcome == "correct", verdict
    return text


async def test_the_library_returns_what_the_reference_returns(task: Task, zygote: Zygote, tmp_path: Path) -> None:
    text = await kernel_of(task, zygote, tmp_path)
    assert "return {'scores': " in text and "'none': None}" in text


TAKES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, levels, extra, scale: float = 2.0):
        return torch.softmax(levels[0] * extra["weight"], 1), levels[1] + extra["bias"], levels[0].sum(1) * scale


def get_inputs():
    return [[torch.randn(64, 40), torch.randn(64, 40)], {"weight": torch.randn(40), "bias": torch.randn(40)}]
"""


async def test_the_library_takes_what_the_reference_takes(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "takes.py").write_text(TAKES)
    task = read_task(tmp_path / "takes.py")
    (tmp_path / "takes_kernel.py").write_text(await kernel_of(task, zygote, tmp_path))
    spec = importlib.util.spec_from_file_location("takes_kernel", tmp_path / "takes_kernel.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    model, (levels, extra) = module.ModelNew(), (load(task).inputs(0))
    expected = module.Model()(levels, extra)
    for outputs in (model(levels, extra), model(extra=extra, levels=levels)):
        assert all(torch.allclose(*pair, rtol=1e-5, atol=1e-6) for pair in zip(outputs, expected, strict=True))
    turned = {"bias": extra["bias"], "weight": extra["weight"]}
    with pytest.raises(ValueError, match=r"the keys of args\[1\]: compiled for \['weight', 'bias'\]"):
        model(levels, turned)
    with pytest.raises(ValueError, match="number of inputs: compiled for 4, got 5"):
        model(levels, extra, 3.0)
    with pytest.raises(ValueError, match="number of inputs: compiled for 4, got 5"):
        model(levels, extra, scale=3.0)


NESTED = """
import torch
import torch.nn as nn


class NAME(nn.Module):
    def forward(self, given):
        rows, (more, factor) = given["rows"], given["more"]
        RETURN


def get_inputs():
    return [{"rows": [torch.rand(64, 100)], "more": (torch.randn(64, 100).tril(), 0.5)}]
"""
HONEST = "return (rows[0] * factor + more).sum(1)"


@pytest.mark.parametrize(
    ("returned", "gate"),
    [
        (HONEST, ""),
        (HONEST.replace("rows[0]", "rows[0].abs()"), "x-1"),  # which are never negative as they are drawn
        (HONEST.replace("factor", "0.5"), "other numbers"),
        (HONEST.replace("+ more", "+ more.clamp(-30.0, 30.0)"), "mixed exponents"),
        (HONEST.replace("+ more", "+ more.tril()"), ""),  # every draw has a triangle of zeros
    ],
)
def test_what_lies_in_dicts_and_lists_is_asked_about(returned: str, gate: str, zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "nested.py").write_text(NESTED.replace("NAME", "Model").replace("RETURN", HONEST))
    text = NESTED.replace("NAME", "ModelNew").replace("RETURN", returned)
    task = read_task(tmp_path / "nested.py")
    grader = Grader(task, describe("cpu"), tmp_path, seed=3, zygote=zygote, owns_zygote=False)
    try:
        found = asking.verify(grader, text, Build(True, 0.0), "full", grader.baseline())
    finally:
        grader.close()
    assert (found.outcome == "correct") == (not gate), found.evidence
    assert found.evidence.startswith(gate), found.evidence


class Lying(dict[str, torch.Tensor]):
    def items(self) -> object:  # type: ignore[override]
        raise RuntimeError("asked")

    keys = values = __iter__ = items  # type: ignore[assignment]


class Several(list[torch.Tensor]):
    """PyTorch's `tree_map` takes it for a leaf."""


def test_results_in_a_list_of_ones_own_are_laid_out_within_the_timed_call() -> None:
    def turned(x: torch.Tensor) -> Several:
        return Several([x.T])

    made = LaidOut(turned, [(3, 1)])(torch.randn(3, 4))
    assert made[0].stride() == (3, 1)
    assert LaidOut(turned, [(1, 4)])(x := torch.randn(3, 4))[0].data_ptr() == x.data_ptr()


def test_a_dict_of_ones_own_is_read_past_its_methods() -> None:
    x = torch.ones(2)
    assert flatten((Lying(a=x), 1)) == [x, 1]
    assert dict_keys((Lying(a=x), x, {"b": [x, {"c": x}]})) == ["['a']", "['b']", "['b']['c']"]
