"""The operators of `test_operators.py` as one candidate of each target, built and run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.test_operators import BAGS, DISTANCES, MANY, ORDERED, RESAMPLING, SCATTERED, TABLES
from tests.knowledge.compiler.test_small_products import CROSSED, SMALL_PRODUCTS, STACKED
from tests.knowledge.compiler.whole import candidate, outputs_of, together, wrong_when_emulated

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:index_reduce")]
CASES = [*RESAMPLING.values(), *SCATTERED.values(), *MANY.values(), *BAGS.values(), *ORDERED.values()]
CASES += [*DISTANCES.values(), *TABLES.values(), *CROSSED.values(), *SMALL_PRODUCTS.values(), *STACKED.values()]


ALL, INPUTS = together(CASES)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))


def test_in_cpp() -> None:
    text = candidate(ALL, INPUTS, native_device())
    for got, wanted in zip(outputs_of(text, INPUTS), ALL(*INPUTS), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
def test_in_cuda(forks: Forks, tmp_path: Path) -> None:
    assert not wrong_when_emulated(forks, candidate(ALL, INPUTS, H200), INPUTS, ALL(*INPUTS), tmp_path, 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
def test_on_the_gpu() -> None:
    found = outputs_of(candidate(ALL, INPUTS, H200), [tensor.cuda() for tensor in INPUTS])
    for got, wanted in zip(found, ALL(*INPUTS), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
