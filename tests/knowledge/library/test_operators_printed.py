"""The operators of `test_operators.py` as one candidate of each target, built and run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.library.conftest import native_device
from tests.knowledge.library.cuda.test_module import H200
from tests.knowledge.library.lowering import graph_of
from tests.knowledge.library.test_operators import BAGS, DISTANCES, MANY, ORDERED, RESAMPLING, SCATTERED, TABLES
from tests.knowledge.library.test_small_products import CROSSED, SMALL_PRODUCTS, STACKED
from tests.knowledge.library.whole import MODEL, outputs_of, wrong_when_emulated

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.device import Device
from foundry.knowledge.library.file.assemble import Entry
from foundry.knowledge.library.lower import print_plan
from foundry.knowledge.library.printers import module_file

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:index_reduce")]
CASES = [*RESAMPLING.values(), *SCATTERED.values(), *MANY.values(), *BAGS.values(), *ORDERED.values()]
CASES += [*DISTANCES.values(), *TABLES.values(), *CROSSED.values(), *SMALL_PRODUCTS.values(), *STACKED.values()]


def all_of_them(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results: list[torch.Tensor] = []
    rest = list(tensors)
    for model, inputs in CASES:
        own, rest = rest[: len(inputs)], rest[len(inputs) :]
        found: Any = model(*own)
        results += found if isinstance(found, tuple) else [found]
    return tuple(results)


def candidate(device: Device, inputs: list[torch.Tensor]) -> str:
    printed = print_plan(graph_of(all_of_them, *inputs), Recipe(device.target), device)
    return module_file(MODEL, [Entry(printed.plan, printed.kernels)], device)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))


def test_in_cpp() -> None:
    inputs = [tensor for _, own in CASES for tensor in own]
    for got, wanted in zip(outputs_of(candidate(native_device(), inputs), inputs), all_of_them(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_in_cuda(forks: Forks, tmp_path: Path) -> None:
    inputs = [tensor for _, own in CASES for tensor in own]
    assert not wrong_when_emulated(forks, candidate(H200, inputs), inputs, all_of_them(*inputs), tmp_path, 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_on_the_gpu() -> None:
    inputs = [tensor for _, own in CASES for tensor in own]
    found = outputs_of(candidate(H200, inputs), [tensor.cuda() for tensor in inputs])
    for got, wanted in zip(found, all_of_them(*inputs), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
