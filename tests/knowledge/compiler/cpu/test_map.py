"""Pointwise kernels on the CPU compute what PyTorch computes, in every form a tuner may pick."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.map import print_map
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    Const,
    Expr,
    Gather,
    Iota,
    Load,
    MapKernel,
    Plan,
    Store,
    View,
)
from foundry.knowledge.opgraph import Arrangement, DType, contiguous_strides

Harness = Any


def load(buffer: str, *strides: int, offset: int = 0, dtype: DType = "float32") -> Load:
    return Load(buffer, View(offset, strides), dtype)


def apply(op: str, *args: Expr, dtype: DType = "float32") -> Apply:
    return Apply(op, args, dtype)


def number(value: float) -> Const:
    return Const(value, "float32")


def pointwise(shape: tuple[int, ...], value: Expr, name: str = "chain") -> MapKernel:
    return MapKernel(name, shape, (Store("y", View(0, contiguous_strides(shape)), value),), ("a", "b"))


CHOICES: list[dict[str, Choice]] = [
    {},
    {"vector": 32},
    {"unroll": 1},
    {"unroll": 8, "stream": 1},
    {"stream": 1, "chunk": 2048, "schedule": "dynamic"},
    {"threads": 1},
]


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("shape", [(3, 5), (7, 4097)])
def test_chain_with_a_broadcast_row(cpu_kernel: Harness, choices: dict[str, Choice], shape: tuple[int, int]) -> None:
    columns = shape[1]
    x, b = torch.randn(shape), torch.randn(columns)
    biased = apply("add", apply("mul", load("x", columns, 1), number(1.7)), load("b", 0, 1))
    value = apply("mul", apply("gelu", biased), apply("sigmoid", load("x", columns, 1)))
    y = torch.empty(shape)
    cpu_kernel.run(pointwise(shape, value), print_map, {"x": x, "b": b}, {"y": y}, choices)
    assert torch.allclose(y, functional.gelu(x * 1.7 + b) * torch.sigmoid(x), atol=1e-6)


@pytest.mark.parametrize("tile", [0, 16, 64])
@pytest.mark.parametrize("shape", [(64, 128), (100, 75)])
def test_transposed_operand(cpu_kernel: Harness, tile: int, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, z, y = torch.randn(columns, rows), torch.randn(shape), torch.empty(shape)
    value = apply("add", load("x", 1, rows), load("z", columns, 1))
    cpu_kernel.run(pointwise(shape, value), print_map, {"x": x, "z": z}, {"y": y}, {"tile": tile})
    assert torch.equal(y, x.t() + z)


def test_channel_parameters_are_computed_before_the_inner_loop(cpu_kernel: Harness) -> None:
    x, w, y = torch.randn(4, 3, 10, 10), torch.randn(3), torch.empty(4, 3, 10, 10)
    value = apply("mul", load("x", 300, 100, 10, 1), apply("exp", load("w", 0, 1, 0, 0)))
    printed = cpu_kernel.run(pointwise((4, 3, 10, 10), value), print_map, {"x": x, "w": w}, {"y": y})
    assert torch.allclose(y, x * w.exp().view(3, 1, 1), rtol=1e-6)
    before, _, inside = printed.functions.partition("const auto point")
    assert "math::exp" in before and "math::exp" not in inside


def test_strided_input_and_offset_store(cpu_kernel: Harness) -> None:
    wide, out = torch.randn(20, 64), torch.full((20, 40), 5.0)
    kernel = MapKernel("slice", (20, 16), (Store("y", View(8, (40, 1)), load("x", 64, 2, offset=3)),))
    cpu_kernel.run(kernel, print_map, {"x": wide}, {"y": out})
    assert torch.equal(out[:, 8:24], wide[:, 3:35:2])
    assert out[:, :8].isnan().all() and out[:, 24:].isnan().all()


def test_several_stores_of_several_types(cpu_kernel: Harness) -> None:
    x = torch.randn(1000)
    outputs = {
        "y": torch.empty(1000, dtype=torch.bfloat16),
        "z": torch.empty(1000, dtype=torch.bool),
        "w": torch.empty(1000, dtype=torch.int64),
    }
    source = load("x", 1)
    stores = (
        Store("y", View(0, (1,)), apply("cast", apply("mul", source, number(3.0)), dtype="bfloat16")),
        Store("z", View(0, (1,)), apply("gt", source, number(0.0), dtype="bool")),
        Store("w", View(0, (1,)), apply("cast", apply("mul", source, number(100.0)), dtype="int64")),
    )
    cpu_kernel.run(MapKernel("many", (1000,), stores), print_map, {"x": x}, outputs)
    assert torch.equal(outputs["y"], (x * 3).to(torch.bfloat16))
    assert torch.equal(outputs["z"], x > 0)
    assert torch.equal(outputs["w"], (x * 100).to(torch.int64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int32])
def test_element_types(cpu_kernel: Harness, dtype: torch.dtype) -> None:
    name: Any = str(dtype).removeprefix("torch.")
    x = (torch.randn(777) * 4).to(dtype)
    y = torch.empty(777, dtype=dtype)
    source = load("x", 1, dtype=name)
    cpu_kernel.run(
        pointwise((777,), apply("maximum", apply("mul", source, source, dtype=name), source, dtype=name)),
        print_map,
        {"x": x},
        {"y": y},
    )
    wide = x.float() if dtype in (torch.float16, torch.bfloat16) else x
    assert torch.equal(y, torch.maximum(wide * wide, wide).to(dtype))


def test_gather_wraps_negative_indices_and_never_leaves_the_buffer(cpu_kernel: Harness) -> None:
    table = torch.randn(10, 32)
    index = torch.tensor([0, 9, -1, -10, 3, 99, -99])
    y = torch.empty(7, 32)
    value = Gather("w", View(0, (0, 1)), load("i", 1, 0, dtype="int64"), 32, 10, "float32")
    cpu_kernel.run(pointwise((7, 32), value), print_map, {"w": table, "i": index}, {"y": y})
    assert torch.equal(y[:5], table[index[:5]])
    assert torch.isfinite(y).all()


def test_index_and_mask(cpu_kernel: Harness) -> None:
    x, y = torch.randn(33, 50), torch.empty(33, 50)
    lower = apply("le", Iota(View(0, (0, 1))), Iota(View(2, (1, 0))), dtype="bool")
    value = apply("where", lower, load("x", 50, 1), number(-1.0))
    cpu_kernel.run(pointwise((33, 50), value), print_map, {"x": x}, {"y": y})
    kept = torch.arange(50)[None, :] <= torch.arange(33)[:, None] + 2
    assert torch.equal(y, torch.where(kept, x, -1.0))


def test_one_point(cpu_kernel: Harness) -> None:
    x, y = torch.randn(()), torch.empty(())
    cpu_kernel.run(pointwise((), apply("neg", Load("x", View(0, ()), "float32"))), print_map, {"x": x}, {"y": y})
    assert torch.equal(y, -x)


def test_illegal_choices_take_the_default_and_declared_values_are_legal(cpu_kernel: Harness) -> None:
    x, y = torch.randn(512), torch.empty(512)
    kernel = pointwise((512,), apply("relu", load("x", 1)))
    printed = cpu_kernel.run(kernel, print_map, {"x": x}, {"y": y}, {"unroll": 77, "stream": "yes"})
    defaults = {tunable.name: tunable.default for tunable in printed.tunables}
    assert printed.choices == defaults
    assert all(tunable.default in tunable.values and len(tunable.values) > 1 for tunable in printed.tunables)


# name -> (shape of the results, strides and offset of the operand x, what is computed from it)
ORDERS: dict[str, tuple[tuple[int, ...], View, str]] = {
    "pixel shuffle": ((3, 5, 2, 37, 2), View(0, (740, 37, 370, 1, 185)), "plain"),
    "pixel shuffle by three, narrow": ((4, 7, 3, 5, 3), View(0, (315, 5, 105, 1, 35)), "plain"),
    "pixel unshuffle": ((6, 3, 9, 40), View(0, (1080, 1, 120, 3)), "plain"),
    "nearest upsampling": ((6, 20, 2, 33, 2), View(0, (660, 33, 0, 1, 0)), "repeated"),
    "nearest upsampling of a narrow image": ((6, 20, 2, 5, 2), View(0, (100, 5, 0, 1, 0)), "repeated"),
    "rows that repeat": ((50, 3, 130), View(0, (130, 0, 1)), "repeated"),
    "repeated and shuffled": ((40, 3, 90, 2), View(0, (180, 0, 1, 90)), "repeated"),
    "channels last, three": ((2, 3001, 3), View(0, (9003, 1, 3001)), "plain"),
    "channels first, three": ((2, 3, 3001), View(0, (9003, 1, 3)), "plain"),
    "pairs that change places": ((2000, 2), View(1, (2, -1)), "plain"),
    "backwards and transposed": ((700, 4), View(2799, (-1, -700)), "plain"),
    "a row of three for all": ((999, 3), View(0, (0, 1)), "plain"),
    "fewer points than a vector": ((2, 3), View(0, (1, 2)), "plain"),
}
FORMS: list[dict[str, Choice]] = [{}, {"stream": 1, "block": 512, "unroll": 1}, {"form": "rows"}]


def at(buffer: torch.Tensor, view: View, shape: tuple[int, ...]) -> torch.Tensor:
    where = torch.full(shape, view.offset)
    for dim, (size, stride) in enumerate(zip(shape, view.strides, strict=True)):
        where += (torch.arange(size) * stride).view(size, *[1] * (len(shape) - dim - 1))
    return buffer[where]


@pytest.mark.parametrize("order", ORDERS)
def test_operands_in_another_order_than_the_results(cpu_kernel: Harness, order: str) -> None:
    """The element types and forms go round, so that one compile for each order covers them."""
    shape, seen, kind = ORDERS[order]
    position = list(ORDERS).index(order)
    dtype: Any = ("float32", "float32", "bfloat16", "float16")[position % 4]
    x, z, y = torch.randn(18006).to(getattr(torch, dtype)), torch.randn(shape), torch.empty(shape)
    source = Load("x", seen, dtype)
    value = apply("tanh", source if dtype == "float32" else apply("cast", source))
    if kind == "plain":  # an operand in the results' order, one that depends on the last dimension only, the position
        last = Load("x", View(0, (*[0] * (len(shape) - 1), 1)), dtype)
        value = apply("add", value, apply("mul", Load("z", View(0, contiguous_strides(shape)), "float32"), number(2.0)))
        value = apply("add", value, last if dtype == "float32" else apply("cast", last))
        value = apply("add", value, apply("cast", Iota(seen)))
    choices = FORMS[position % 3] if kind == "plain" else FORMS[position % 2]
    cpu_kernel.run(pointwise(shape, value), print_map, {"x": x, "z": z}, {"y": y}, choices)
    truth = at(x.float(), seen, shape).tanh()
    if kind == "plain":
        truth = truth + z * 2 + x.float()[: shape[-1]] + at(torch.arange(18006.0), seen, shape)
    torch.testing.assert_close(y, truth, rtol=1e-6, atol=1e-5)


def test_what_repeats_is_computed_once(cpu_kernel: Harness) -> None:
    x, y = torch.randn(64, 50), torch.empty(64, 2, 50, 2)
    value = apply("tanh", load("x", 50, 0, 1, 0))
    printed = cpu_kernel.run(pointwise(tuple(y.shape), value), print_map, {"x": x}, {"y": y})
    assert torch.allclose(y, x.tanh()[:, None, :, None].expand(y.shape), atol=1e-6)
    assert printed.choices["form"] == "blocks"
    inside = printed.functions.split("int64_t i = 0;")
    assert printed.functions.count("math::tanh") == 1 and "math::tanh" not in inside[-1]


def test_without_a_run_of_memory_another_dimension_is_innermost(cpu_kernel: Harness) -> None:
    """Pairs stored with a gap cannot be written as one; the long dimension is vectorised instead."""
    x, y = torch.randn(2, 500), torch.empty(500, 3)
    kernel = MapKernel("gap", (500, 2), (Store("y", View(1, (3, 1)), apply("exp", load("x", 1, 500))),))
    printed = cpu_kernel.run(kernel, print_map, {"x": x}, {"y": y})
    assert torch.allclose(y[:, 1:], x.t().exp(), rtol=1e-6) and y[:, 0].isnan().all()
    assert "points as 2 x 500" in printed.functions


@pytest.mark.parametrize("reads", [False, True])
def test_the_rest_of_a_row_is_a_vector_unless_results_are_read(cpu_kernel: Harness, reads: bool) -> None:
    """The last block computes some points twice: a kernel in place must not."""
    x, y = torch.randn(1000, 37), torch.empty(1000, 64)
    stores = (Store("y", View(0, (64, 1)), apply("exp", load("y" if reads else "x", 64 if reads else 37, 1))),)
    kernel = MapKernel("rest", (1000, 37), stores)
    printed = print_map(kernel, _plan(x, y, kernel), cpu_kernel.device, {})
    assert ("i = 37 - 16;" in printed.functions) == (not reads)
    assert ("for (int64_t l = i; l < 37; ++l)" in printed.functions) == reads


def _plan(x: torch.Tensor, y: torch.Tensor, kernel: MapKernel) -> Plan:
    buffers = {
        "x": Buffer("x", tuple(x.shape), tuple(x.stride()), "float32", "input"),
        "y": Buffer("y", tuple(y.shape), tuple(y.stride()), "float32", "output"),
    }
    return Plan(buffers, (kernel,), (), Arrangement())


@pytest.mark.parametrize("stream", [0, 1])
@pytest.mark.parametrize("columns", [64, 65, 79, 80, 81, 96, 97, 127])
def test_the_last_block_of_a_row_is_no_longer_than_what_is_left(cpu_kernel: Harness, columns: int, stream: int) -> None:
    x, b, y = torch.randn(30, columns), torch.randn(30), torch.empty(30, columns)
    value = apply("mul", apply("exp", load("x", columns, 1)), load("b", 1, 0))
    printed = cpu_kernel.run(
        pointwise((30, columns), value),
        print_map,
        {"x": x, "b": b},
        {"y": y},
        {"vector": 64, "unroll": 4, "stream": stream},
    )
    assert torch.allclose(y, x.exp() * b[:, None], rtol=1e-5)
    if printed.choices["vector"] == 64 and columns > 64:
        rest = next(length for length in (16, 32, 64) if length >= columns - 64)
        assert f"i = {columns} - {rest};" in printed.functions
