"""Concatenations that begin alike, or lie in one another, share one memory: each part is written once."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import check, graph_of
from tests.knowledge.compiler.whole import MODEL, outputs_of, wrong_when_emulated
from torch import nn
from torch.nn import functional as F

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.file.assemble import Entry
from foundry.knowledge.compiler.ir.access import step_buffers, store_space, stores_of
from foundry.knowledge.compiler.ir.cost import traffic_bytes
from foundry.knowledge.compiler.ir.kernels import ConvKernel, TorchCall
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.compiler.printers import module_file
from foundry.knowledge.device import Device

Model = Callable[..., Any]


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def dense(a: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Each layer reads all layers before it, and nothing stands between a concatenation and its convolution."""
    parts = [a]
    for weight in (first, second):
        parts.append(F.conv2d(torch.cat(parts, 1), weight, padding=1).relu())
    return torch.cat(parts, 1).mean((2, 3))


def normalised(a: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """A block of DenseNet: each layer normalises all layers before it."""
    parts = [a]
    for weight in (first, second):
        inputs = F.batch_norm(torch.cat(parts, 1), None, None, training=True)
        parts.append(F.conv2d(inputs.relu(), weight, padding=1))
    return F.avg_pool2d(torch.cat(parts, 1), 2)


def one_by_one(a: torch.Tensor, dim: int, *, before: bool = False) -> torch.Tensor:
    """Concatenations of a concatenation and what is made of it."""
    found = torch.cat([a, a.sin()], dim)
    for _ in range(2):
        new = found.narrow(dim, 0, a.shape[dim]) + found.narrow(dim, a.shape[dim], a.shape[dim])
        found = torch.cat([new, found] if before else [found, new], dim)
    return found * 2


def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A part that is used twice, and a concatenation that is made twice."""
    left, again = torch.cat([a, b, a], 1), torch.cat([a, b, a], 1)
    whole = torch.cat([b, left.exp()[:, :4], a, b, a, again[:, :4]], 1)
    return left.amax(1) + whole.sum(1) * again.amin(1)


def returned(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A part, a concatenation, a view of another one and the longest one leave the model."""
    part = a.exp()
    first = torch.cat([a, part], 1)
    other = first.cos()
    second = torch.cat([a, part, other], 1)
    third = torch.cat([a, part, other, second.sin()], 1)
    return part, first, second[:, :4], third


def other_type(a: torch.Tensor) -> torch.Tensor:
    narrow = torch.cat([a, a.sin()], 1)
    wide = torch.cat([a, a.sin(), narrow.double().exp()], 1)
    return narrow.amax(1) + wide.sum(1)


# (model, inputs, the lengths along the axis of what each memory of concatenations holds)
CHAINS: dict[str, tuple[Model, list[torch.Tensor], list[int]]] = {
    "odd channels": (dense, [x(2, 3, 4, 4), x(5, 3, 3, 3), x(1, 8, 3, 3)], [9]),
    "normalised": (normalised, [x(2, 4, 4, 4), x(4, 4, 3, 3), x(4, 8, 3, 3)], [12]),
    "first axis": (lambda a: one_by_one(a, 0), [x(3, 8)], [12]),
    "last axis": (lambda a: one_by_one(a, -1), [x(3, 8)], [32]),
    "last axis of odd lengths": (lambda a: one_by_one(a, -1), [x(3, 5)], [10, 15, 20]),
    "in front": (lambda a: one_by_one(a, 1, before=True), [x(3, 4)], [16]),
    "16 bits": (lambda a: one_by_one(a, 1), [x(2, 4).half()], [12, 16]),
    "a part used twice": (twice, [x(2, 4), x(2, 8)], [32]),
    "returned": (returned, [x(2, 4)], [8, 32]),
    "of another type": (other_type, [x(2, 4)], [8, 16]),
}


class WithWeights(nn.Module):
    """Values made of parameters alone are computed once, which a buffer written in each call would prevent."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(2, 4))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        fixed = torch.cat([self.weight, self.weight.exp()], 1)
        return fixed.amax(1) * torch.cat([self.weight, self.weight.exp(), a], 1).amin(1)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_has_one_memory_into_which_each_part_is_written_once(name: str) -> None:
    model, inputs, lengths = CHAINS[name]
    planned = check(model, *inputs, tolerance=1e-2 if inputs[0].dtype == torch.float16 else 1e-5)
    held = {name: buffer for name, buffer in planned.buffers.items() if name.startswith("cat") and not buffer.memory}
    written = dict.fromkeys(held, 0)
    for step in planned.steps:
        assert not isinstance(step, TorchCall)
        for store in stores_of(step):
            if store.buffer in held:
                written[store.buffer] += elements_of(step, store.view.strides)
    assert sorted(max(buffer.shape) for buffer in held.values()) == lengths
    assert all(written[name] == buffer.numel for name, buffer in held.items())


def elements_of(step: Any, strides: tuple[int, ...]) -> int:
    return math.prod(size for size, stride in zip(store_space(step), strides, strict=True) if stride)


def test_what_is_returned_shares_no_memory() -> None:
    planned = check(returned, x(2, 4))
    assert len({view.buffer for view in planned.outputs}) == 4


def test_what_is_made_of_parameters_alone_stays_apart() -> None:
    planned = check(WithWeights(), x(2, 8))
    found = {max(buffer.shape): buffer.role for buffer in planned.buffers.values() if buffer.name.startswith("cat")}
    assert found == {8: "prepared", 16: "temporary"}


def test_a_kernel_that_reads_and_writes_one_memory_has_two_names_for_it() -> None:
    model, inputs, _ = CHAINS["odd channels"]
    planned = check(model, *inputs)
    assert {buffer.memory for buffer in planned.buffers.values()} == {"", "cat_2"}
    for step in planned.steps:
        reads, writes = step_buffers(step)
        assert not {*reads} & {*writes}
    second = [step for step in planned.steps if isinstance(step, ConvKernel)][1]
    assert traffic_bytes(second, planned) == 4 * (2 * 8 * 16 + 8 * 9 + 2 * 16), "it reads 8 channels of the 9"


def all_of_them(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results: list[torch.Tensor] = []
    rest = list(tensors)
    for model, inputs, _ in CHAINS.values():
        own, rest = rest[: len(inputs)], rest[len(inputs) :]
        found: Any = model(*own)
        results += found if isinstance(found, tuple) else [found]
    return tuple(results)


def candidate(device: Device, inputs: list[torch.Tensor]) -> str:
    printed = print_plan(graph_of(all_of_them, *inputs), Recipe(device.target), device)
    assert any(buffer.memory for buffer in printed.plan.buffers.values())
    return module_file(MODEL, [Entry(printed.plan, printed.kernels)], device)


@pytest.mark.slow
def test_in_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    inputs = [tensor for _, own, _ in CHAINS.values() for tensor in own]
    for got, wanted in zip(outputs_of(candidate(native_device(), inputs), inputs), all_of_them(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_in_cuda(forks: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    inputs = [tensor for _, own, _ in CHAINS.values() for tensor in own]
    assert not wrong_when_emulated(forks, candidate(H200, inputs), inputs, all_of_them(*inputs), tmp_path, 1e-4)
