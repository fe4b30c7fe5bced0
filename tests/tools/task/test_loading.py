"""Error messages for a task file that cannot be loaded, or whose answer changes from call to call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from foundry.knowledge.errors import RandomTask, TaskError
from foundry.tools.task.file import read_task
from foundry.tools.task.loading import LONG_DRAW_BYTES, LoadedTask, check_reference, drawn_on, flatten, load

TASK = """import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.randn(8, 64)]
"""


def loaded(folder: Path, text: str, options: str = "") -> LoadedTask:
    (folder / "job.py").write_text(text)
    (folder / "job.toml").write_text(options)
    return load(read_task(folder / "job.py"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "import mylayers",
            "ModuleNotFoundError: No module named 'mylayers' "
            "(install mylayers, or put mylayers.py beside the task if it is yours)",
        ),
        (
            "from .mylayers import Block",
            "ImportError: attempted relative import with no known parent package "
            "(write it without the leading dot: modules beside the task are found by their names)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::ImportWarning")  # Python warns of a relative import before it fails
def test_an_import_that_fails_says_what_to_do(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(TaskError) as caught:
        loaded(tmp_path, f"import torch\n{line}\n{TASK}")
    assert str(caught.value) == f"job.py, line 2: the file failed to load: {problem}"


@pytest.mark.parametrize(
    "line", ["import torch.nowhere", "from torch import nowhere", "raise ImportError('not today')"]
)
def test_other_imports_that_fail_are_said_as_they_are(tmp_path: Path, line: str) -> None:
    with pytest.raises(TaskError) as caught:
        loaded(tmp_path, f"import torch\n{line}\n{TASK}")
    assert caught.value.remedy == ""


@pytest.mark.parametrize(
    ("value", "options", "remedy"),
    [
        (
            "nn.Dropout()(x)",
            "",
            "it stays random in eval mode, as F.dropout(..., training=True), its default, does: write "
            'training=self.training there with mode = "eval" beside the task, or remove the random operator',
        ),
        (
            "F.dropout(x, training=True)",
            'mode = "eval"',
            "it stays random in eval mode, as F.dropout(..., training=True), its default, does: write "
            "training=self.training there, or remove the random operator",
        ),
        (
            "F.dropout(x, training=self.training)",
            "",
            'remove the random operator, or set mode = "eval" beside the task if it is dropout',
        ),
    ],
)
def test_eval_mode_is_advised_only_where_it_helps(tmp_path: Path, value: str, options: str, remedy: str) -> None:
    task = loaded(tmp_path, TASK.replace("return x\n", f"return {value}\n"), options)
    with pytest.raises(RandomTask, match="changes with the random seed") as caught:
        check_reference(task)
    assert caught.value.remedy == remedy
    helped = loaded(
        tmp_path, TASK.replace("return x\n", "return F.dropout(x, training=self.training)\n"), 'mode="eval"'
    )
    assert check_reference(helped).outputs


@pytest.mark.parametrize(("rows", "place"), [(LONG_DRAW_BYTES // 4 // 4096, "meta"), (64, "cpu")])
def test_many_parameters_are_drawn_where_they_are_needed(tmp_path: Path, rows: int, place: str) -> None:
    weights = f"""
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand({rows}, 4096))
"""
    task = loaded(tmp_path, TASK.replace("(nn.Module):\n", f"(nn.Module):{weights}"))
    assert str(task.place_to_draw(torch.device("meta"))) == place
    assert task.build_model(0, torch.device("meta")).weight.is_meta
    assert not task.build_model(0).weight.is_meta


def test_what_only_the_host_can_construct_is_constructed_there() -> None:
    generator = torch.Generator().manual_seed(3)
    made = drawn_on(torch.device("meta"), lambda: torch.rand(2, generator=generator).tolist())
    assert len(made) == 2
    assert drawn_on(torch.device("meta"), lambda: torch.rand(2)).is_meta


def test_a_container_is_asked_for_what_it_holds_and_cannot_compute_it_then() -> None:
    class Late(list[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            raise AssertionError("it was asked")

    class Named(NamedTuple):
        out: torch.Tensor
        parts: tuple[torch.Tensor, ...]

    ones = [torch.tensor(float(number)) for number in range(4)]
    leaves = flatten([Late(ones[:1]), Named(ones[1], (ones[2], ones[3]))])
    assert [id(leaf) for leaf in leaves] == [id(one) for one in ones]
