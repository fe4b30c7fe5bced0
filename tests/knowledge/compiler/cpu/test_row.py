"""Row kernels on the CPU: reductions, softmax and normalisations, in rows and columns, in every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.rows.row import print_row
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Const,
    Emit,
    EmitRow,
    Expr,
    Gather,
    Let,
    Load,
    Named,
    ReduceOp,
    Reduction,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.compiler.schedule.passes import find_softmax_pairs, schedule_passes
from foundry.knowledge.opgraph import DType, contiguous_strides

Harness = Any
Choices = dict[str, Choice]
Reference = Callable[[torch.Tensor], torch.Tensor]


def load(buffer: str, *strides: int, dtype: DType = "float32") -> Load:
    return Load(buffer, View(0, strides), dtype)


def apply(op: str, *args: Expr) -> Apply:
    return Apply(op, args, "float32")


def named(name: str) -> Named:
    return Named(name, "float32")


def softmax(rows: int, columns: int, *, log: bool = False) -> RowKernel:
    shifted = apply("sub", load("x", columns, 1), named("m"))
    value = apply("sub", shifted, apply("log", named("s"))) if log else apply("div", apply("exp", shifted), named("s"))
    stages = (
        Reduction("m", "max", load("x", columns, 1), "float32"),
        Reduction("s", "sum", apply("exp", shifted), "float32"),
        Emit(Store("y", View(0, (columns, 1)), value)),
    )
    return RowKernel("softmax", (rows,), (columns,), stages, ("softmax",))


def normalise(
    value: Expr, outer: tuple[int, ...], reduced: tuple[int, ...], store: View, scale: Expr | None
) -> RowKernel:
    count = 1.0
    for size in reduced:
        count *= size
    variance = apply("add", apply("div", named("st.m2"), Const(count, "float32")), Const(1e-5, "float32"))
    out = apply("mul", apply("sub", value, named("st.mean")), named("rstd"))
    stages = (
        Reduction("st", "moments", value, "float32"),
        Let("rstd", apply("rsqrt", variance)),
        Emit(Store("y", store, apply("mul", out, scale) if scale else out)),
    )
    return RowKernel("norm", outer, reduced, stages, ("norm",))


def reduction(op: ReduceOp, outer: tuple[int, ...], reduced: tuple[int, ...], value: Expr, dtype: DType) -> RowKernel:
    store = Store("y", View(0, contiguous_strides(outer) + (0,) * len(reduced)), Named("r", dtype))
    return RowKernel("reduce", outer, reduced, (Reduction("r", op, value, dtype), EmitRow(store)), (op,))


SOFTMAX_CHOICES: list[Choices] = [
    {},
    {"algorithm": "online"},
    {"algorithm": "recompute", "vector": 32, "unroll": 1},
    {"stream": 1, "chunk": 1024, "schedule": "dynamic"},
    {"layout": "column"},
]


@pytest.mark.parametrize("choices", SOFTMAX_CHOICES)
@pytest.mark.parametrize(("shape", "log"), [((300, 7), False), ((20, 5000), True)])
def test_softmax_with_infinities(cpu_kernel: Harness, choices: Choices, shape: tuple[int, int], log: bool) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 5
    x[0, 1] = float("nan")
    x[1, 2] = float("inf")
    x[2, :3] = -float("inf")
    x[3] = -float("inf")
    y = torch.empty(shape)
    cpu_kernel.run(softmax(*shape, log=log), print_row, {"x": x}, {"y": y}, choices)
    reference = torch.log_softmax if log else torch.softmax
    expected = reference(x.double(), 1).float()
    known = torch.isfinite(expected)
    assert torch.equal(y.isnan(), expected.isnan()) and torch.equal(torch.isfinite(y), known)
    assert torch.allclose(y[known], expected[known], rtol=2e-6, atol=2e-6 if log else 1e-7)


REDUCTIONS: dict[str, tuple[Reference, DType]] = {
    "sum": (lambda x: x.sum(1), "float32"),
    "prod": (lambda x: x.prod(1), "float32"),
    "max": (lambda x: x.amax(1), "float32"),
    "min": (lambda x: x.amin(1), "float32"),
    "argmax": (lambda x: x.argmax(1), "int64"),
    "argmin": (lambda x: x.argmin(1), "int64"),
    "logsumexp": (lambda x: x.logsumexp(1), "float32"),
}
SPECIALS = [float("nan"), float("inf"), -float("inf"), 0.0, 1.0, 2.0, 1.0]


@pytest.mark.parametrize(("length", "layout"), [(7, "column"), (210, "row")])
@pytest.mark.parametrize("op", sorted(REDUCTIONS))
def test_reductions_of_special_values(cpu_kernel: Harness, op: ReduceOp, length: int, layout: str) -> None:
    reference, dtype = REDUCTIONS[op]
    generator = torch.Generator().manual_seed(3)
    x = torch.tensor(SPECIALS)[torch.randint(0, 7, (400, 7), generator=generator)]
    x[:200] = x[:200].nan_to_num(1.0, 2.0, 0.5)
    x[0] = -float("inf")
    x = x.repeat(1, length // 7)
    y = torch.empty(400, dtype=getattr(torch, dtype))
    kernel = reduction(op, (400,), (length,), load("x", length, 1), dtype)
    cpu_kernel.run(kernel, print_row, {"x": x}, {"y": y}, {"layout": layout})
    assert torch.allclose(y.double(), reference(x).double(), rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("parallel", ["rows", "within"])
@pytest.mark.parametrize("op", ["logsumexp", "argmax"])
def test_one_long_row(cpu_kernel: Harness, op: ReduceOp, parallel: str) -> None:
    reference, dtype = REDUCTIONS[op]
    x = torch.randn(1, 300_001, generator=torch.Generator().manual_seed(4))
    y = torch.empty((), dtype=getattr(torch, dtype))
    kernel = reduction(op, (), (300_001,), load("x", 1), dtype)
    cpu_kernel.run(kernel, print_row, {"x": x[0]}, {"y": y}, {"parallel": parallel})
    assert torch.allclose(y.double(), reference(x.double())[0].double(), rtol=1e-6)


@pytest.mark.parametrize("choices", [{}, {"tile": 16, "chunk": 32}])
@pytest.mark.parametrize("op", ["sum", "max", "argmin", "logsumexp"])
def test_reduction_over_a_strided_dimension(cpu_kernel: Harness, op: ReduceOp, choices: Choices) -> None:
    reference, dtype = REDUCTIONS[op]
    x = torch.randn(3, 60, 100, generator=torch.Generator().manual_seed(5))
    y = torch.empty(3, 100, dtype=getattr(torch, dtype))
    kernel = reduction(op, (3, 100), (60,), load("x", 6000, 1, 100), dtype)
    cpu_kernel.run(kernel, print_row, {"x": x}, {"y": y}, choices)
    assert torch.allclose(y.double(), reference(x.double()).double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_sums_are_as_accurate_as_pairwise_summation(cpu_kernel: Harness, transposed: bool) -> None:
    x = torch.randn(200, 60_000, generator=torch.Generator().manual_seed(6)) + 0.01
    data = x.t().contiguous() if transposed else x
    strides = (1, 200) if transposed else (60_000, 1)
    y = torch.empty(200)
    kernel = reduction("sum", (200,), (60_000,), load("x", *strides), "float32")
    cpu_kernel.run(kernel, print_row, {"x": data}, {"y": y})
    truth = x.double().sum(1)
    eager = data.sum(0) if transposed else data.sum(1)
    assert (y.double() - truth).norm() <= 2 * (eager.double() - truth).norm()


def test_moments_survive_a_large_mean(cpu_kernel: Harness) -> None:
    x = torch.randn(50, 3000, generator=torch.Generator().manual_seed(7)) + 10_000
    y = torch.empty(50, 3000)
    kernel = normalise(load("x", 3000, 1), (50,), (3000,), View(0, (3000, 1)), None)
    cpu_kernel.run(kernel, print_row, {"x": x}, {"y": y})
    truth = functional.layer_norm(x.double(), (3000,))
    eager = functional.layer_norm(x, (3000,)).double()
    assert (y.double() - truth).norm() <= 2 * (eager - truth).norm()


@pytest.mark.parametrize("choices", [{}, {"algorithm": "recompute"}, {"chunk": 1024, "stream": 1}])
def test_residual_layer_norm_reads_each_input_once_when_staged(cpu_kernel: Harness, choices: Choices) -> None:
    x, z, w, y = torch.randn(40, 4000), torch.randn(40, 4000), torch.randn(4000), torch.empty(40, 4000)
    value = apply("add", load("x", 4000, 1), load("z", 4000, 1))
    kernel = normalise(value, (40,), (4000,), View(0, (4000, 1)), load("w", 0, 1))
    printed = cpu_kernel.run(kernel, print_row, {"x": x, "z": z, "w": w}, {"y": y}, choices)
    expected = functional.layer_norm((x + z).double(), (4000,), w.double()).float()
    assert torch.allclose(y, expected, atol=2e-6)
    loads = printed.functions.count("b_z[")
    assert loads == (1 if printed.choices["algorithm"] == "staged" else 3)


@pytest.mark.parametrize("choices", [{}, {"unroll": 1, "chunk": 1024}, {"parallel": "within"}])
@pytest.mark.parametrize("size", [(7, 7), (40, 50)])
def test_batch_norm_reduces_over_batch_and_space(cpu_kernel: Harness, choices: Choices, size: tuple[int, int]) -> None:
    area = size[0] * size[1]
    x = torch.randn(12, 5, *size) * 2 + 3
    y = torch.empty_like(x)
    view = View(0, (area, 5 * area, size[1], 1))
    kernel = normalise(Load("x", view, "float32"), (5,), (12, *size), view, load("w", 1, 0, 0, 0))
    w = torch.randn(5)
    cpu_kernel.run(kernel, print_row, {"x": x, "w": w}, {"y": y}, choices)
    expected = functional.batch_norm(x.double(), None, None, w.double(), training=True).float()
    assert torch.allclose(y, expected, atol=2e-6)


def test_batch_norm_over_rows_runs_in_columns(cpu_kernel: Harness) -> None:
    x, y = torch.randn(500, 96) + 7, torch.empty(500, 96)
    view = View(0, (1, 96))
    printed = cpu_kernel.run(
        normalise(Load("x", view, "float32"), (96,), (500,), view, None), print_row, {"x": x}, {"y": y}
    )
    assert printed.template == "column"
    assert torch.allclose(y, functional.batch_norm(x.double(), None, None, training=True).float(), atol=2e-6)


def test_slices_that_an_index_chooses_are_read_whole(cpu_kernel: Harness) -> None:
    table, index, y = torch.randn(50, 24), torch.randint(0, 50, (40, 9)), torch.empty(40, 24)
    chosen = Load("index", View(0, (9, 0, 1)), "int64")
    found = Gather("table", View(0, (0, 1, 0)), chosen, 24, 50, "float32")
    stages = (
        Reduction("total", "sum", found, "float32"),
        EmitRow(Store("y", View(0, (24, 1, 0)), Named("total", "float32"))),
    )
    kernel = RowKernel("bags", (40, 24), (9,), stages)
    printed = cpu_kernel.run(kernel, print_row, {"table": table, "index": index}, {"y": y})
    assert printed.template == "column" and "tile < 24;" in printed.functions
    assert torch.allclose(y, table[index].sum(1), atol=1e-5)


def test_any_and_all(cpu_kernel: Harness) -> None:
    x = torch.randn(64, 300)
    for op, reference in (("any", torch.any), ("all", torch.all)):
        limit = Const(2.5 if op == "any" else -2.5, "float32")
        value = Apply("gt", (load("x", 300, 1), limit), "bool")
        y = torch.empty(64, dtype=torch.bool)
        cpu_kernel.run(reduction(op, (64,), (300,), value, "bool"), print_row, {"x": x}, {"y": y})  # type: ignore[arg-type]
        assert torch.equal(y, reference(x > limit.value, 1))


@pytest.mark.parametrize("dtype", ["float64", "int64", "bfloat16"])
def test_sums_of_other_types(cpu_kernel: Harness, dtype: DType) -> None:
    kind = getattr(torch, dtype)
    x = (torch.randn(30, 500) * 9).to(kind)
    result: DType = "float32" if dtype == "bfloat16" else dtype
    y = torch.empty(30, dtype=getattr(torch, result))
    cpu_kernel.run(
        reduction("sum", (30,), (500,), load("x", 500, 1, dtype=dtype), result), print_row, {"x": x}, {"y": y}
    )
    assert torch.allclose(y.double(), x.double().sum(1), rtol=1e-6)


def test_softmax_takes_two_passes_online_and_three_otherwise() -> None:
    kernel = softmax(4, 100)
    assert len(schedule_passes(kernel.stages, online=False).passes) == 3
    assert len(schedule_passes(kernel.stages, online=True).passes) == 2
    assert list(find_softmax_pairs(kernel.stages)) == ["m"]
