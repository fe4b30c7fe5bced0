"""Writes of a few elements into a tensor of the module: into its own memory, where nothing reads the old value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.knowledge.compiler.lowering import check
from tests.knowledge.compiler.test_module_file import DEVICE, imported
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import Plan
from foundry.knowledge.compiler.lower import lower
from foundry.tools.task.capture import capture

Target = Literal["cpu", "cuda"]
TARGETS: tuple[Target, ...] = ("cpu", "cuda")
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


class Cache(nn.Module):
    """Writes into a table by `write(table, rows, index)`, and reads all of it."""

    table: torch.Tensor

    def __init__(self, write: Write, before: Write = lambda table, rows, index: None) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(2 * 64 * 6, dtype=torch.float32).reshape(2, 64, 6))
        self.write, self.before = write, before

    def forward(self, rows: torch.Tensor, index: torch.Tensor) -> Any:
        old = self.before(self.table, rows, index)
        self.write(self.table, rows, index)
        total = torch.sum(self.table * 2.0, 1) + torch.sum(rows)
        return total if old is None else (total, old)


def put_rows(table: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    table[:, index] = rows.abs()


def put_pairs(table: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    table[torch.tensor([1, 0, 1]), index] = rows[0]


def put_twice(table: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    table.index_copy_(1, index, rows)
    table[:, 3:5] = rows[:, :2] * 3.0


def put_a_number(table: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    table[:, 7] = 0.5


def put_a_corner(table: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    table[:1, 9:12, 2:5] = rows[:1, :, :3]


def put_rows_of_a_part(table: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    table[:1, :, 1:3][:, index] = rows[:1, :, :2]


IN_PLACE: dict[str, Write] = {
    "rows by index": put_rows,
    "index_copy": lambda table, rows, index: table.index_copy_(1, index, rows),
    "pairs": put_pairs,
    "index_add": lambda table, rows, index: table.index_add_(1, index, rows),
    "accumulated pairs": lambda table, rows, index: table.index_put_(
        (torch.tensor([1, 1, 1]), index), rows[0], accumulate=True
    ),
    "scatter": lambda table, rows, index: table.scatter_(1, index.view(1, 3, 1).expand(2, 3, 6), rows),
    "index_fill": lambda table, rows, index: table.index_fill_(1, index, 2.0),
    "a slice": lambda table, rows, index: table[:, 5:8].copy_(rows),
    "every other row": lambda table, rows, index: table[:, 1:7:2].copy_(rows),
    "one row": put_a_number,
    "a corner": put_a_corner,
    "rows of a part": put_rows_of_a_part,
}
INDICES = (torch.tensor([3, 62, 5]), torch.tensor([4, 9, 4]), torch.tensor([-1, 0, 33]))
WRAPPING = ("rows by index", "pairs", "accumulated pairs")  # which count negative indices from the end


def in_place(plan: Plan) -> list[str]:
    return [buffer.source for buffer in plan.buffers.values() if buffer.is_in_place]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_few_elements_are_written_where_they_belong(name: str, target: Target) -> None:
    for index in INDICES if name in WRAPPING else INDICES[:2]:
        inputs = torch.randn(2, 3, 6), index
        assert in_place(check(Cache(IN_PLACE[name]), *inputs, recipe=Recipe(target))) == ["table"]


OUT_OF_PLACE: dict[str, tuple[Write, Write]] = {
    "the old value is read": (put_rows, lambda table, rows, index: table[:, index] * 2.0),
    "the old value is returned": (put_rows, lambda table, rows, index: table.clone()),
    "it is read between": (
        put_rows,
        lambda table, rows, index: table.index_copy_(1, index + 1, rows).sum(),
    ),
    "most of it is written": (lambda table, rows, index: table[:, 1:].copy_(table[:, :-1].clone()), put_a_number),
}


@pytest.mark.parametrize("name", OUT_OF_PLACE)
def test_what_is_still_read_is_not_overwritten(name: str) -> None:
    write, before = OUT_OF_PLACE[name]
    index = torch.tensor([3, 61, 5])
    assert not in_place(check(Cache(write, before), torch.randn(2, 3, 6), index))


def test_writes_that_may_lie_over_each_other_are_right() -> None:
    check(Cache(put_twice), torch.randn(2, 3, 6), torch.tensor([3, 62, 4]))


class Returned(Cache):
    def forward(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        put_rows(self.table, rows, index)
        return self.table


def test_a_new_value_that_forward_returns_has_memory_of_its_own() -> None:
    assert not in_place(check(Returned(put_rows), torch.randn(2, 3, 6), INDICES[0]))


class PartReturned(Cache):
    def forward(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        put_rows(self.table, rows, index)
        return self.table[:, :9]


def test_a_part_of_the_new_value_that_forward_returns_is_copied() -> None:
    planned = check(PartReturned(put_rows), torch.randn(2, 3, 6), INDICES[0])
    assert in_place(planned) == ["table"]
    assert not any(planned.buffers[view.buffer].is_in_place for view in planned.outputs)


class PartRead(Cache):
    def forward(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        put_a_corner(self.table, rows, index)
        return torch.sum(self.table[:, :4])


def test_the_least_that_a_write_must_move_is_what_is_read_of_the_result() -> None:
    """A floor of the whole table called a kernel impossibly fast that wrote a few rows of it."""
    rows = torch.randn(2, 3, 6)
    graph = capture(PartRead(put_rows), (rows, INDICES[0]))
    assert graph.min_bytes < 4 * 64 * 6
    whole = capture(Cache(put_rows), (rows, INDICES[0]))
    assert whole.min_bytes >= 4 * 2 * 64 * 6


# ---------------------------------------------------------------- compiled

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(8, 6)
        self.register_buffer("keys", torch.zeros(2, 64, 6))
        self.register_buffer("counts", torch.zeros(64))
        self.register_buffer("marks", torch.zeros(3, 64, 2, 4, dtype=torch.bfloat16))

    def forward(self, x, position):
        self.keys.index_copy_(1, position, self.lift(x))
        self.counts.index_add_(0, position, x[0, :, 0])
        self.marks[:, 3:5, 1] = x[0, 0].view(2, 4).bfloat16()
        return (self.keys * 2).sum(1), self.counts + 1.0, self.marks.float().sum()
"""


def test_a_compiled_step_of_a_cache_writes_into_the_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path))
    names: dict[str, Any] = {}
    exec(TASK, names)
    inputs = [torch.randn(2, 3, 8), torch.tensor([5, 60, 5])]
    text = lower([capture(names["Model"](), inputs)], Recipe("cpu"), task_source=TASK, device=DEVICE).source
    assert text.count("_note_change(parameters") == 3
    module = imported(text, tmp_path)
    kernel, reference = module.ModelNew(), module.Model()
    reference.load_state_dict(kernel.state_dict())
    with torch.no_grad():
        held = {name: (buffer.data_ptr(), buffer._version) for name, buffer in kernel.named_buffers()}
        for position in (torch.tensor([5, 60, 5]), torch.tensor([0, 1, 2])):
            x = torch.randn(2, 3, 8)
            for found, wanted in zip(kernel(x, position), reference(x, position), strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        for name, buffer in kernel.named_buffers():
            torch.testing.assert_close(buffer, reference.get_buffer(name), rtol=1e-5, atol=1e-6)
            assert buffer.data_ptr() == held[name][0] and buffer._version > held[name][1]
        for module_ in (kernel, reference):  # in other strides, and so not where a kernel could write
            module_.keys = module_.keys.transpose(1, 2).contiguous().transpose(1, 2)
        x, position = torch.randn(2, 3, 8), torch.tensor([63, 0, 7])
        with torch.inference_mode():
            torch.testing.assert_close(kernel(x, position)[1], reference(x, position)[1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kernel(x, position)[0], reference(x, position)[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(kernel.keys, reference.keys, rtol=1e-5, atol=1e-6)
        assert kernel.keys.stride() == reference.keys.stride()
