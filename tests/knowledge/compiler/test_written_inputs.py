"""Inputs that forward writes: in their own memory where every read comes before, else through a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200, run
from tests.knowledge.compiler.lowering import check, graph_of
from tests.knowledge.compiler.whole import MODEL, outputs_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.kernels import Plan
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.printers import module_file
from foundry.knowledge.device import Device


def adam(parameter: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    first.lerp_(gradient, 0.1)
    second.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    parameter.addcdiv_(first, second.sqrt().add_(1e-8), value=-0.1)


def cache_step(row: torch.Tensor, rows: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    rows.index_copy_(1, place, row)
    return (rows * row).sum(-1)


def shifted(x: torch.Tensor) -> torch.Tensor:
    """Each element of the new value is that of the next place: no kernel may write while another still reads."""
    x.copy_(torch.roll(x, 1) * 2)
    return x.sum()


def read_later(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A product with the old value cannot join the map that makes the new one."""
    old = x.clone()
    x.mul_(3)
    return torch.softmax(old @ y, -1) @ x


def swapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x * y


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


STATE = [draw(8, 32), draw(8, 33)[:, :32].contiguous(), draw(8, 32) * 0.1, draw(8, 32).square()]
CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor], int]] = {
    "adam": (adam, STATE, 3),
    "one row of a cache": (cache_step, [draw(2, 1, 16), draw(2, 64, 16), torch.tensor([5])], 1),
    "shifted": (shifted, [draw(64)], 0),
    "read later": (read_later, [draw(8, 8), draw(8, 8) + 1], 0),
    "swapped": (swapped, [draw(16), draw(16) + 1], 1),
}


def overwritten(planned: Plan) -> int:
    return sum(buffer.is_in_place for buffer in planned.buffers.values())


@pytest.mark.parametrize("name", CASES)
def test_new_values_are_right_and_lie_in_the_inputs_where_they_may(name: str) -> None:
    model, inputs, in_place = CASES[name]
    planned = check(model, *inputs)
    assert overwritten(planned) == in_place, {name: item.source for name, item in planned.buffers.items()}


def test_every_write_of_cost_is_counted_once() -> None:
    graph = graph_of(adam, *STATE)
    assert graph.min_bytes == (4 + 3) * STATE[0].nbytes
    cache = graph_of(cache_step, *CASES["one row of a cache"][1])
    assert cache.min_bytes < 2 * CASES["one row of a cache"][1][1].nbytes, "one row is written, not the whole cache"


def text_of(device: Device) -> str:
    def stepped(*state: torch.Tensor) -> tuple[torch.Tensor]:
        adam(*state)
        return (state[0],)

    graph = graph_of(stepped, *STATE)
    printed = print_plan(replace(graph, returned={"0": "0"}), Recipe(device.target), device)
    return module_file(MODEL, [Entry(printed.plan, printed.kernels)], device)


def test_a_file_writes_to_the_given_tensors_however_they_lie() -> None:
    text = text_of(native_device())
    own, apart = [item.clone() for item in STATE], [item.clone() for item in STATE]
    apart[2] = apart[2].mT.contiguous().mT
    wanted = [item.clone() for item in STATE]
    adam(*wanted)
    for given in (own, apart):
        version = given[0]._version
        with torch.no_grad():
            (returned,) = outputs_of(text, given)
        assert returned is given[0] and given[0]._version > version
        for have, want in zip(given, wanted, strict=True):
            torch.testing.assert_close(have, want)


def slots_step(row: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows of a cache written through a view of another shape, as servers with slot mappings do."""
    cache.view(-1, 16)[slots] = row
    return (cache * row[0]).sum(-1)


def test_an_input_is_written_through_a_view_of_another_shape() -> None:
    device = native_device()
    inputs = [draw(3, 16), draw(2, 8, 16), torch.tensor([5, 0, 12])]
    printed = print_plan(graph_of(slots_step, *inputs), Recipe(device.target), device)
    given, wanted = [item.clone() for item in inputs], [item.clone() for item in inputs]
    expected = slots_step(*wanted)
    with torch.no_grad():
        found = outputs_of(module_file(MODEL, [Entry(printed.plan, printed.kernels)], device), given)
    torch.testing.assert_close(found, expected)
    assert torch.equal(given[1], wanted[1])


SCRIPT = """
given, wanted = torch.load("FOLDER/saved.pt")
returned, = ModelNew()(*given)
print(json.dumps([returned is given[0], *(torch.allclose(a, b, 1e-5, 1e-6) for a, b in zip(given, wanted))]))
"""


def test_a_cuda_file_does_the_same(forks: Forks, tmp_path: Path) -> None:
    text = text_of(H200)
    assert "float* b_args_0," in text and "__restrict__ b_args_1," in text, "two names of one memory are no restrict"
    wanted = [item.clone() for item in STATE]
    adam(*wanted)
    torch.save((STATE, wanted), tmp_path / "saved.pt")
    assert run(forks, text, SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache") == [True] * 5
