"""Floats of 8 bits: each conversion bit for bit as PyTorch's, and quantised tensors and products without PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.forking import Forks
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200, run
from tests.knowledge.compiler.lowering import graph_of
from tests.knowledge.compiler.whole import candidate, outputs_of

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.ir.kernels import TorchCall
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.device import Device

TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu]


def conversions(x: torch.Tensor, *every: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """To each type, seen as bytes, and from each."""
    narrow = [x.to(dtype) for dtype in TYPES]
    return (*narrow, *(item.float() * 1 for item in every), every[0].mT.contiguous())


def quantised(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows quantised to e4m3, a product with a weight that has a scale a block, microscaling in powers of two."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    low = (x / scale).to(torch.float8_e4m3fn)
    wide = weight.float() * scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
    blocks = x.view(x.shape[0], -1, 16)
    power = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - 8).to(torch.float8_e8m0fnu)
    small = (blocks / power.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return low, (low.float() @ wide.mT) * scale, power, small.view(x.shape)


def special() -> torch.Tensor:
    """Random bits, and the numbers at and beside every tie of each type."""
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (4096,), generator=generator).to(torch.int32)
    steps = [1, 17 / 16, 9 / 8, 19 / 16, 5 / 4, 11 / 8, 3 / 2, 7 / 4, 15 / 8, 31 / 16]
    ties = torch.tensor([2.0**power * step for power in (*range(-20, 18), -127, -126) for step in steps])
    near = (ties.view(torch.int32)[:, None] + torch.arange(-1, 2, dtype=torch.int32)).reshape(-1)
    return torch.cat([bits.view(torch.float32), near.view(torch.float32), -near.view(torch.float32)])[None]


EVERY = [torch.arange(256, dtype=torch.uint8).view(2, 128).view(dtype) for dtype in TYPES]
CONVERTED = [special(), *EVERY]
STREAM = torch.Generator().manual_seed(5)
QUANTISED = [
    torch.randn(8, 64, generator=STREAM),
    torch.randn(32, 64, generator=STREAM).to(torch.float8_e4m3fn),
    torch.rand(2, 4, generator=STREAM) + 0.1,
]


def together(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (*conversions(*inputs[:4]), *quantised(*inputs[4:]))


INPUTS = [*CONVERTED, *QUANTISED]


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        return False
    if wanted.shape == (8, 32):  # the product, maybe in TF32
        return torch.allclose(found, wanted, rtol=2e-3, atol=2e-2)
    one, other = found.float(), wanted.float()
    return bool(((one == other) & (one.signbit() == other.signbit()) | (one.isnan() & other.isnan())).all())


@pytest.mark.parametrize("device", [native_device(), H200], ids=["cpu", "cuda"])
def test_nothing_is_left_to_pytorch(device: Device) -> None:
    plan = print_plan(graph_of(together, *INPUTS), Recipe(device.target), device).plan
    assert not [step for step in plan.steps if isinstance(step, TorchCall)]


def test_a_cpu_kernel_converts_as_pytorch_does() -> None:
    found = outputs_of(candidate(together, INPUTS, native_device()), INPUTS)
    assert [number for number, pair in enumerate(zip(found, together(*INPUTS), strict=True)) if not same(*pair)] == []


SCRIPT = """
inputs = torch.load("FOLDER/inputs.pt")
torch.save(ModelNew()(*inputs), "FOLDER/found.pt")
print("true")
"""


def test_a_cuda_kernel_does_too(forks: Forks, tmp_path: Path) -> None:
    torch.save(INPUTS, tmp_path / "inputs.pt")
    text = candidate(together, INPUTS, H200)
    assert run(forks, text, SCRIPT.replace("FOLDER", str(tmp_path)), tmp_path, tmp_path / "cache")
    found = torch.load(tmp_path / "found.pt")
    assert [number for number, pair in enumerate(zip(found, together(*INPUTS), strict=True)) if not same(*pair)] == []


def test_other_files_do_not_carry_the_conversions() -> None:
    """The text of kernels without such floats, and so the key of their builds, stays as it was."""
    for device in (native_device(), H200):
        assert "float8" not in candidate(lambda x: torch.exp(x), [torch.randn(8)], device)
