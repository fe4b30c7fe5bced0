"""Complex operators become operators on real parts: no work is left to PyTorch but transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.knowledge.compiler.conftest import native_device
from tests.knowledge.compiler.cuda.test_module import H200
from tests.knowledge.compiler.lowering import graph_of
from tests.knowledge.compiler.whole import candidate, outputs_of
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.compiler.algebra.complex import VIEWS, without_complex
from foundry.knowledge.compiler.ir.kernels import Plan, TorchCall
from foundry.knowledge.compiler.lower import print_plan
from foundry.knowledge.device import Device
from foundry.tools.task.loading import flatten


def rotary(q: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(q.view(*q.shape[:-1], -1, 2))
    turned = pairs * torch.polar(torch.ones_like(angles), angles).view(angles.shape[0], 1, -1)
    return torch.view_as_real(turned).flatten(2)


def arithmetic(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    z = torch.complex(x, y)
    w = z * z.conj() + 2 * z
    chosen = torch.where(x > 0, z, w)
    return (
        *(w.abs(), w.angle(), (w / (z + 3)).real, torch.exp(z * 0.1).imag, z @ w.mT, 1 / z, 3 - chosen),
        *(chosen.sum(0), torch.cat([chosen, z], 1), z.unbind(0)[1], chosen * x, x - chosen, z / x, z**2, -z[:, 1:]),
        *(torch.exp(1j * y) * (2 - 1j), z / 2j, x + 3j),
        torch.view_as_real(z.mT),
    )


def of_inputs(z: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    turned = torch.fft.fft(z, dim=-1)
    return z * 2 @ z.conj(), z.real + x, turned.abs(), turned, z.mT


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


GIVEN = torch.complex(draw(4, 4), draw(4, 4, 1)[..., 0]).mT
INPUTS = [draw(6, 2, 8), draw(6, 4), draw(4, 4), draw(4, 4) + 0.5, GIVEN, draw(4, 4)]


def together(*inputs: torch.Tensor) -> tuple[Any, ...]:
    return rotary(*inputs[:2]), *arithmetic(*inputs[2:4]), *of_inputs(*inputs[4:])


def called(planned: Plan) -> set[str]:
    return {step.target.split(".")[1] for step in planned.steps if isinstance(step, TorchCall)}


@pytest.mark.parametrize("device", [native_device(), H200], ids=["cpu", "cuda"])
def test_only_a_transform_is_left(device: Device) -> None:
    planned = print_plan(graph_of(together, *INPUTS), Recipe(device.target), device).plan
    assert called(planned) - VIEWS == {"fft_fft"} and planned.labels == ("torch:fft_fft",)
    planned = print_plan(graph_of(rotary, *INPUTS[:2]), Recipe(device.target), device).plan
    assert not called(planned), "real inputs and outputs need no views of complex memory"


def test_a_graph_of_real_numbers_is_the_same_one() -> None:
    graph = graph_of(lambda x: x.exp(), INPUTS[0])
    assert without_complex(graph, 64) is graph


def test_in_cpp() -> None:
    found = outputs_of(candidate(together, INPUTS, native_device()), INPUTS)
    for got, wanted in zip(found, together(*INPUTS), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


class Spectrum(nn.Module):
    window: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(40))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        options: Any = {"window": self.window, "center": False, "return_complex": True}
        whole = torch.stft(x, 64, 16, win_length=40, normalized=True, onesided=False, **options)
        return torch.stft(x, 40, 16, **options).abs(), whole


def test_a_short_time_transform_is_products_with_prepared_tables() -> None:
    model, x = Spectrum(), draw(2, 300)
    for device in (native_device(), H200):
        planned = print_plan(graph_of(model, x), Recipe(device.target), device).plan
        assert called(planned) <= VIEWS and planned.labels == ("prepared_weights",)
    assert without_complex(graph_of(model, x), 39).op_counts()["stft"] == 2, "longer ones are PyTorch's"
    namespace: dict[str, Any] = {}
    exec(compile(candidate(model, [x], native_device()), "candidate.py", "exec"), namespace)
    kernel = namespace["ModelNew"]()
    kernel.register_buffer("window", model.window)
    for got, want in zip(kernel(x), model(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Table(nn.Module):
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.polar(torch.ones(8), torch.linspace(0, 3, 8)))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        z.mul_(self.table)
        return z.abs()


def test_state_and_written_inputs_are_seen_through_views() -> None:
    model, z = Table(), torch.complex(draw(4, 8), draw(4, 8) + 1)
    given, wanted = z.clone(), z.clone()
    text = candidate(model, [z], native_device())
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    kernel = namespace["ModelNew"]()
    kernel.register_buffer("table", model.table)
    with torch.no_grad():
        for got, want in zip(flatten(kernel(given)), flatten(model(wanted)), strict=True):
            torch.testing.assert_close(got, want)
    torch.testing.assert_close(given, wanted)
