"""Convolutions printed, compiled and compared with float64 truth: strides, padding, dilation, groups, transposed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from foundry.knowledge.compiler.cpu.contractions.conv import print_conv
from foundry.knowledge.compiler.ir.kernels import Apply, ConvKernel, Expr, Load, Named, Store, View


@dataclass(frozen=True)
class Case:
    batch: int
    channels: tuple[int, int]
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    constant: bool = True
    choices: tuple[tuple[str, Any], ...] = ()

    def each(self, values: tuple[int, ...], default: int) -> tuple[int, ...]:
        return values or (default,) * len(self.size)

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "stride": self.each(self.stride, 1),
            "padding": self.each(self.padding, 0),
            "dilation": self.each(self.dilation, 1),
            "groups": self.groups,
        }
        if self.transposed:
            found["output_padding"] = self.each(self.output_padding, 0)
        return found

    def apply(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        kind = f"conv{'_transpose' if self.transposed else ''}{len(self.size)}d"
        result: torch.Tensor = getattr(torch.nn.functional, kind)(x, weight, **self.arguments())
        return result


CASES = [
    Case(3, (16, 30), (20, 21), (3, 3), padding=(1, 1)),
    Case(2, (16, 30), (20, 21), (3, 3), padding=(1, 1), choices=(("algorithm", "implicit_gemm"),)),
    Case(2, (5, 7), (19, 12), (3, 2), (2, 1), (1, 0), (1, 2)),
    Case(2, (5, 7), (19, 12), (3, 5), (3, 2), (2, 4), (2, 3), choices=(("algorithm", "implicit_gemm"),)),
    Case(1, (3, 40), (33, 35), (7, 7), (2, 2), (3, 3)),
    Case(2, (70, 20), (9, 9), (3, 3), choices=(("order", "channels_outer"), ("block_channels", 16))),
    Case(2, (24, 20), (13, 11), (1, 1)),
    Case(2, (24, 20), (13, 11), (1, 1), (2, 2)),
    Case(2, (12, 24), (15, 14), (3, 3), (2, 2), (1, 1), groups=3),
    Case(2, (40, 40), (30, 31), (3, 3), padding=(1, 1), groups=40),
    Case(2, (8, 16), (30, 31), (5, 5), (2, 2), (2, 2), groups=8, constant=False),
    Case(2, (12, 10), (150,), (5,), (3,), (2,)),
    Case(1, (12, 33), (5000,), (3,), padding=(1,)),
    Case(2, (6, 9), (7, 9, 8), (3, 3, 3), (1, 2, 1), (1, 1, 0)),
    Case(2, (6, 8), (9, 7), (3, 3), (2, 2), (1, 1), groups=2, transposed=True, output_padding=(1, 0)),
    Case(2, (6, 10), (9, 20), (3, 4), (1, 3), (0, 2), (2, 1), transposed=True),
    Case(1, (6, 10), (9, 20), (1, 2), (3, 3), transposed=True),
    Case(2, (8, 9), (4, 6, 5), (3, 3, 3), (2, 2, 2), (1, 1, 1), transposed=True, output_padding=(1, 1, 1)),
    Case(2, (16, 12), (40,), (4,), (2,), (1,), transposed=True, constant=False),
]


def _kernel(case: Case, x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, value: Expr) -> ConvKernel:
    arguments = case.arguments()
    return ConvKernel(
        "c",
        case.batch,
        case.channels[0],
        case.channels[1],
        case.groups,
        case.size,
        tuple(y.shape[2:]),
        case.kernel,
        arguments["stride"],
        arguments["padding"],
        arguments["dilation"],
        case.transposed,
        "x",
        0,
        tuple(x.stride()),
        "w",
        (Store("y", View(0, tuple(y.stride())), value),),
        "float32",
    )


def _tensors(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    inside, outside = case.channels
    if case.transposed:
        weight = torch.randn(inside, outside // case.groups, *case.kernel)
    else:
        weight = torch.randn(outside, inside // case.groups, *case.kernel)
    return torch.randn(case.batch, inside, *case.size), weight


def _error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value.double() - truth).norm() / truth.norm())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution_with_scale_shift_and_relu(cpu_kernel: Any, case: Case) -> None:
    torch.manual_seed(0)
    x, weight = _tensors(case)
    scale, shift = torch.rand(case.channels[1]) + 0.5, torch.randn(case.channels[1])
    by_channel = View(0, (0, 1, *(0,) * len(case.size)))
    scaled = Apply("mul", (Named("acc", "float32"), Load("scale", by_channel, "float32")), "float32")
    value = Apply("relu", (Apply("add", (scaled, Load("shift", by_channel, "float32")), "float32"),), "float32")
    shape = (1, -1) + (1,) * len(case.size)

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        a, b, c, d = tensors
        return torch.relu(case.apply(a, b) * c.view(shape) + d.view(shape))

    eager = reference(x, weight, scale, shift)
    truth = reference(x.double(), weight.double(), scale.double(), shift.double())
    y = torch.empty_like(eager)
    inputs = {"x": x, "w": weight, "scale": scale, "shift": shift}
    kernel = _kernel(case, x, weight, y, value)
    constant = ("w",) if case.constant else ()
    printed = cpu_kernel.run(kernel, print_conv, inputs, {"y": y}, dict(case.choices), constant)
    assert _error(y, truth) <= 2 * _error(eager, truth) + 5e-8
    assert bool(printed.prepare) == case.constant
    for name, choice in case.choices:
        assert printed.choices[name] == choice


def test_input_and_output_through_strides(cpu_kernel: Any) -> None:
    """A channels-last input and a residual read with its own strides."""
    torch.manual_seed(1)
    case = Case(2, (6, 20), (12, 13), (3, 3), padding=(1, 1))
    x, weight = _tensors(case)
    x = x.contiguous(memory_format=torch.channels_last)
    truth = case.apply(x.double(), weight.double())
    residual = torch.randn(truth.shape[::-1])
    y = torch.empty(truth.shape)
    other = Load("residual", View(0, tuple(residual.stride()[::-1])), "float32")
    value = Apply("add", (Named("acc", "float32"), other), "float32")
    cpu_kernel.run(
        _kernel(case, x, weight, y, value), print_conv, {"x": x, "w": weight, "residual": residual}, {"y": y}
    )
    assert _error(y, truth + residual.permute(3, 2, 1, 0).double()) < 1e-6


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(cpu_kernel: Any, dtype: Any) -> None:
    torch.manual_seed(2)
    case = Case(2, (8, 12), (10, 11), (3, 3), padding=(1, 1))
    kind = getattr(torch, dtype)
    x, weight = (tensor.to(kind) for tensor in _tensors(case))
    truth = case.apply(x.double(), weight.double())
    y = torch.empty(truth.shape, dtype=kind)
    kernel = _kernel(case, x, weight, y, Named("acc", dtype))
    object.__setattr__(kernel, "dtype", dtype)
    cpu_kernel.run(kernel, print_conv, {"x": x, "w": weight}, {"y": y}, None, ("w",))
    assert _error(y, truth) < (1e-14 if dtype == "float64" else 5e-3)


@pytest.mark.slow  # every value of every number; the others ask for a few
def test_every_tunable_value_is_legal(cpu_kernel: Any) -> None:
    torch.manual_seed(3)
    case = Case(2, (20, 40), (17, 19), (3, 3), padding=(1, 1))
    x, weight = _tensors(case)
    truth = case.apply(x.double(), weight.double())
    y = torch.empty(truth.shape)
    kernel = _kernel(case, x, weight, y, Named("acc", "float32"))
    printed = cpu_kernel.run(kernel, print_conv, {"x": x, "w": weight}, {"y": y}, None, ("w",))
    for tunable in printed.tunables:
        for value in {tunable.values[0], tunable.values[-1]} - {tunable.default}:
            wanted = {tunable.name: value}
            again = cpu_kernel.run(kernel, print_conv, {"x": x, "w": weight}, {"y": y}, wanted, ("w",))
            assert again.choices[tunable.name] == value
            assert _error(y, truth) < 1e-6, (tunable.name, value)


CHANNELS = [
    Case(3, (40, 40), (30, 31), (3, 3), padding=(1, 1), groups=40),
    Case(2, (96, 96), (14, 9), (7, 7), padding=(3, 3), groups=96),
    Case(2, (33, 33), (20, 17), (3, 5), (2, 3), (1, 4), (2, 1), groups=33, constant=False),
    Case(1, (64, 64), (5, 6), (3, 3), (3, 4), (5, 5), groups=64),
    Case(2, (100, 100), (7, 1), (3, 1), padding=(2, 0), groups=100),
    Case(2, (48, 48), (400,), (4,), padding=(3,), groups=48),
    Case(2, (17, 17), (3000,), (5,), (2,), (2,), (3,), groups=17),
    Case(2, (96, 96), (9, 40), (3, 3), groups=96, choices=(("tile", "8x2"), ("block_channels", 96))),
    Case(2, (80, 80), (9, 40), (3, 3), groups=80, choices=(("band_rows", 4), ("band_columns", 32))),
    Case(2, (80, 80), (9, 40), (3, 3), groups=80, choices=(("algorithm", "direct"),)),
]


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("case", CHANNELS, ids=str)
def test_depthwise_along_channels(cpu_kernel: Any, case: Case, dtype: Any) -> None:
    """Input and output have their channels side by side; a residual lies otherwise, infinities stay where they are."""
    torch.manual_seed(4)
    kind = getattr(torch, dtype)
    x, weight = (tensor.to(kind) for tensor in _tensors(case))
    x = _channels_last(x)
    x[0, 3].view(-1)[:1] = float("inf")
    truth = case.apply(x.double(), weight.double())
    residual = torch.randn(truth.shape)
    y = _channels_last(torch.empty(truth.shape, dtype=kind))
    wide: Any = "float64" if dtype == "float64" else "float32"
    other = Apply("cast", (Load("residual", View(0, tuple(residual.stride())), "float32"),), wide)
    value = Apply("cast", (Apply("add", (Named("acc", wide), other), wide),), dtype)
    kernel = replace(_kernel(case, x, weight, y, value), dtype=wide)
    constant = ("w",) if case.constant else ()
    inputs = {"x": x, "w": weight, "residual": residual}
    printed = cpu_kernel.run(kernel, print_conv, inputs, {"y": y}, dict(case.choices), constant)
    assert printed.choices["algorithm"] == dict(case.choices).get("algorithm", "channels")
    assert bool(printed.prepare) == case.constant
    for name, choice in case.choices:
        assert printed.choices[name] == choice or dtype == "float64"
    truth += residual
    assert torch.equal(y.isfinite(), truth.isfinite())
    right = truth.isfinite()
    limit = {"float32": 1e-6, "bfloat16": 5e-3, "float64": 1e-14}[dtype]
    assert _error(y[right], truth[right]) < limit


@pytest.mark.slow  # every value of every number; the others ask for a few
def test_every_tunable_value_of_depthwise_is_legal(cpu_kernel: Any) -> None:
    torch.manual_seed(5)
    case = Case(2, (72, 72), (37, 41), (3, 3), padding=(1, 1), groups=72)
    x, weight = _tensors(case)
    x = _channels_last(x)
    truth = case.apply(x.double(), weight.double())
    y = _channels_last(torch.empty(truth.shape))
    kernel = _kernel(case, x, weight, y, Named("acc", "float32"))
    printed = cpu_kernel.run(kernel, print_conv, {"x": x, "w": weight}, {"y": y}, None, ("w",))
    assert {"tile", "band_rows", "band_columns", "block_channels"} <= {tunable.name for tunable in printed.tunables}
    for tunable in printed.tunables:
        for value in set(tunable.values) - {tunable.default}:
            again = cpu_kernel.run(kernel, print_conv, {"x": x, "w": weight}, {"y": y}, {tunable.name: value}, ("w",))
            assert again.choices[tunable.name] == value
            assert _error(y, truth) < 1e-6, (tunable.name, value)
