"""Shifts and sums of narrow integers, padding that crops, tensors without elements: interpreted, in C++ and in CUDA."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import check, graph_of
from tests.knowledge.compiler.whole import candidate, outputs_of, together, wrong_when_emulated

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.plan import plan

Case = tuple[Callable[..., Any], list[torch.Tensor]]
BYTES = torch.arange(256).to(torch.uint8)
SMALL, LONG = torch.arange(-128, 128).to(torch.int8), torch.tensor([-(2**62), -7, -1, 0, 1, 5, 2**62])
BY = torch.tensor([0, 1, 3, 62, 63, 64, -1])

BITS: dict[str, Case] = {
    "bytes": (lambda a: ((a >> 4) | (a << 4), (~a) ^ (a >> 2), (a & 15) << 7), [BYTES]),
    "bytes by all bits": (lambda a: (a >> 8, a << 8, a >> 1), [BYTES]),
    "signed": (lambda a: (a >> 1, a >> 7, a >> 8, a << 1, a << 7), [SMALL]),
    "long": (lambda a: (a >> 3, a << 1, a >> 63, a << 63), [LONG]),
    "by a tensor": (lambda a, b: (a >> b, a << b), [LONG, BY]),
    "bytes by bytes": (lambda a, b: (a >> b, a << b), [BYTES, BYTES % 12]),
    "named": (lambda a: torch.bitwise_right_shift(torch.bitwise_left_shift(a, 3), 2), [SMALL.int()]),
}
CROPS: dict[str, Case] = {
    "at the front": (lambda a: F.pad(a, (-3, 0)) + 1, [torch.randn(2, 3, 7)]),
    "at the end": (lambda a: F.pad(a, (0, -3)), [torch.randn(2, 3, 7)]),
    "on both sides": (lambda a: F.pad(a, (-1, -2, -1, 0)) * 2, [torch.randn(2, 3, 7)]),
    "and pads": (lambda a: F.pad(a, (-2, 3, 1, -1), value=5.0), [torch.randn(2, 3, 7)]),
    "of a transposed one": (lambda a: F.pad(a.transpose(1, 2), (-2, 0)), [torch.randn(2, 7, 3)]),
    "all of it": (lambda a: F.pad(a, (-7, 2), value=1.5) + a[:, :, :2], [torch.randn(2, 3, 7)]),
}
SUMS: dict[str, Case] = {
    "of bytes": (lambda a: a.sum(-1, dtype=torch.uint8), [(torch.arange(7 * 500) % 251).to(torch.uint8).view(7, 500)]),
    "of short ones": (lambda a: (a.sum(0, dtype=torch.int16), a.max(1).values), [SMALL.short().repeat(9, 3) * 77]),
}
EMPTY: dict[str, Case] = {
    "joined": (lambda a, b: torch.cat((b, a * 2), 1), [torch.randn(2, 3), torch.randn(2, 0)]),
    "returned": (lambda a, b: (a * 2, b + 1, torch.cat((b, b))), [torch.randn(2, 3), torch.randn(0, 3)]),
    "a slice": (lambda a: (a.relu(), a[:, 3:].exp()), [torch.randn(2, 3)]),
    "summed": (lambda a, b: a * b.sum(1, keepdim=True), [torch.randn(2, 3), torch.randn(2, 0)]),
    "multiplied": (lambda a, b, c: a + b @ c, [torch.randn(2, 3), torch.randn(2, 0), torch.randn(0, 3)]),
}
CASES = [*BITS.values(), *CROPS.values(), *SUMS.values(), *EMPTY.values()]


@pytest.mark.parametrize("name", [*BITS, *CROPS, *SUMS])
def test_by_the_interpreter(name: str) -> None:
    model, inputs = {**BITS, **CROPS, **SUMS}[name]
    check(model, *inputs)
    assert not [step for step in plan(graph_of(model, *inputs), Recipe("cpu")).steps if isinstance(step, TorchCall)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache")
def test_in_cpp() -> None:
    model, inputs = together(CASES)
    for got, wanted in zip(outputs_of(candidate(model, inputs, native_device()), inputs), model(*inputs), strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_in_cuda(forks: Forks, tmp_path: Path) -> None:
    model, inputs = together([*BITS.values(), *CROPS.values(), *SUMS.values()])
    assert not wrong_when_emulated(forks, candidate(model, inputs, H200), inputs, model(*inputs), tmp_path, 1e-5)


@pytest.mark.usefixtures("cache")
def test_an_input_without_elements_must_have_none() -> None:
    model, inputs = EMPTY["joined"]
    with pytest.raises(ValueError, match="compiled for a cpu tensor of"):
        outputs_of(candidate(model, inputs, native_device()), [inputs[0], torch.randn(2, 1)])
