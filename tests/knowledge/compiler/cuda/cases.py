"""Kernels with known truths for the CUDA printer: pointwise, rows and columns, matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Buffer,
    Const,
    Emit,
    EmitRow,
    Expr,
    Gather,
    GemmKernel,
    Iota,
    Kernel,
    Let,
    Load,
    MapKernel,
    Named,
    OutputView,
    Plan,
    Reduction,
    RowKernel,
    Store,
    View,
)
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import Arrangement, DType, contiguous_strides

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
F: DType = "float32"
# Of the norm: TF32 keeps 11 significant bits of an operand, 16-bit results 11 and 8.
PRECISION_TOLERANCE = {"tf32": 6e-4, "half": 6e-4, "half3": 2e-6, "float16": 1e-3, "bfloat16": 5e-3}


@dataclass
class Case:
    """A kernel with its inputs and the truth of its outputs."""

    kernel: Kernel
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    choices: dict[str, Choice] = field(default_factory=dict)
    tolerance: float = 2e-6  # of the norm
    ieee_only: bool = True  # no product on tensor cores

    def plan(self) -> Plan:
        buffers = {}
        for number, (name, tensor) in enumerate(self.inputs.items()):
            buffers[name] = _buffer(name, tensor, "input", str(number))
        for name, tensor in self.outputs.items():
            buffers[name] = _buffer(name, tensor, "output", "")
        views = tuple(OutputView(name, tuple(t.shape), tuple(t.stride())) for name, t in self.outputs.items())
        return Plan(buffers, (self.kernel,), views, Arrangement.flat(len(views)), ieee_only=self.ieee_only)

    def check(self, found: dict[str, torch.Tensor], label: str = "") -> None:
        for key, truth in self.outputs.items():
            got, name = found[key].cpu(), f"{label} {key}"
            if not truth.is_floating_point():
                assert torch.equal(got, truth), f"{name}: {got.flatten()[:8]} is not {truth.flatten()[:8]}"
                continue
            same = torch.equal(got.isfinite(), truth.isfinite()) and torch.equal(got.isnan(), truth.isnan())
            assert same, f"{name}: other non-finite values than the truth"
            mask = truth.isfinite()
            error = (got.double() - truth.double())[mask].norm() / max(truth.double()[mask].norm().item(), 1e-30)
            assert error < self.tolerance, f"{name}: relative error {error:.2e}"


def _buffer(name: str, tensor: torch.Tensor, role: Any, source: str) -> Buffer:
    dtype: Any = str(tensor.dtype).removeprefix("torch.")
    return Buffer(name, tuple(tensor.shape), tuple(tensor.stride()), dtype, role, source)


def op(name: str, *args: Expr, dtype: DType = F) -> Apply:
    return Apply(name, args, dtype)


def const(value: float) -> Const:
    return Const(value, F)


def view(*strides: int, offset: int = 0) -> View:
    return View(offset, strides)


def load(name: str, *strides: int, offset: int = 0, dtype: DType = F) -> Load:
    return Load(name, View(offset, strides), dtype)


# ---------------------------------------------------------------- pointwise


def gelu_chain(rows: int, columns: int, dtype: DType = F, **choices: Choice) -> Case:
    torch_dtype = getattr(torch, dtype)
    x, bias = torch.randn(rows, columns).to(torch_dtype), torch.randn(columns)
    scale = torch.randn(rows, 1)
    value = op(
        "mul", op("gelu", op("add", op("cast", load("x", columns, 1, dtype=dtype)), load("b", 0, 1))), load("s", 1, 0)
    )
    kernel = MapKernel(
        "chain", (rows, columns), (Store("y", view(columns, 1), Apply("cast", (value,), dtype)),), ("a", "b")
    )
    truth = torch.nn.functional.gelu(x.double() + bias.double()) * scale.double()
    tolerance = 5e-3 if dtype == "bfloat16" else 1e-3 if dtype == "float16" else 1e-6
    return Case(kernel, {"x": x, "b": bias, "s": scale}, {"y": truth.to(torch_dtype)}, dict(choices), tolerance)


def transposed_and_sliced() -> Case:
    x = torch.randn(9, 7, 20)
    kernel = MapKernel(
        "moved",
        (7, 9, 10),
        (
            Store("y", view(90, 10, 1), op("tanh", load("x", 20, 140, 2, offset=1))),
            Store("z", view(90, 10, 1), op("square", load("x", 20, 140, 2, offset=1))),
        ),
    )
    seen = x[:, :, 1::2].permute(1, 0, 2).contiguous()
    return Case(kernel, {"x": x}, {"y": seen.double().tanh().float(), "z": seen * seen})


def turned(batch: int, rows: int, columns: int, dtype: DType = F, **choices: Choice) -> Case:
    """Two operands of which one is transposed, one repeats for every row."""
    x = torch.randn(batch, columns, rows).to(getattr(torch, dtype))
    z, bias = torch.randn(batch, rows, columns), torch.randn(columns)
    seen = (
        op("cast", load("x", rows * columns, 1, rows, dtype=dtype))
        if dtype != F
        else load("x", rows * columns, 1, rows)
    )
    value = op("add", op("mul", op("tanh", seen), load("z", rows * columns, columns, 1)), load("b", 0, 0, 1))
    kernel = MapKernel("turned", (batch, rows, columns), (Store("y", view(rows * columns, columns, 1), value),))
    truth = x.double().transpose(1, 2).tanh() * z.double() + bias.double()
    return Case(kernel, {"x": x, "z": z, "b": bias}, {"y": truth.float().contiguous()}, dict(choices))


def many_turned(count: int) -> Case:
    """More transposed operands than tiles of a block's shared memory."""
    rows, columns = 20, 33
    inputs = {f"x{i}": torch.randn(columns, rows, dtype=torch.float64) for i in range(count)}
    value: Expr = load("x0", 1, rows, dtype="float64")
    for name in list(inputs)[1:]:
        value = op("add", value, load(name, 1, rows, dtype="float64"), dtype="float64")
    kernel = MapKernel("many", (rows, columns), (Store("y", view(columns, 1), value),))
    return Case(kernel, {**inputs}, {"y": sum(inputs.values(), torch.zeros(1)).t().contiguous()})


def shuffled_pixels(factor: int) -> Case:
    """(2, 3 f^2, 5, 8) -> (2, 3, 5 f, 8 f): the innermost dimension of the results has `factor` elements."""
    x = torch.randn(2, 3 * factor * factor, 5, 8)
    area = 40
    kernel = MapKernel(
        "pixels",
        (6, 5, factor, 8, factor),
        (
            Store(
                "y",
                view(area * factor**2, 8 * factor**2, 8 * factor, factor, 1),
                op("silu", load("x", area * factor**2, 8, area * factor, 1, area)),
            ),
        ),
    )
    wide = torch.nn.functional.pixel_shuffle(x.double(), factor)
    return Case(kernel, {"x": x}, {"y": torch.nn.functional.silu(wide).float()})


def masked_and_gathered() -> Case:
    table, index = torch.randn(11, 6), torch.tensor([[3, -1, 10, 0], [7, 7, 2, 5]])
    row = Gather("table", view(0, 0, 1), load("index", 4, 1, 0, dtype="int64"), 6, 11, F)
    below = op("le", Iota(view(0, 0, 1)), Iota(view(0, 1, 0)), dtype="bool")
    kernel = MapKernel("gather", (2, 4, 6), (Store("y", view(24, 6, 1), op("where", below, row, const(-math.inf))),))
    keep = torch.arange(6)[None, None, :] <= torch.arange(4)[None, :, None]
    truth = torch.where(keep, table[index], -math.inf)
    return Case(kernel, {"table": table, "index": index}, {"y": truth})


def special_values() -> Case:
    x = torch.tensor([0.0, -0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 30.0, -30.0, 0.3, 2.0, 100.0, 20.5, 1e-20])
    x = torch.cat([x, torch.tensor([-88.0, -100.0, 5e37, -5e37])])
    names = [
        "relu",
        "sigmoid",
        "silu",
        "softplus",
        "softsign",
        "mish",
        "hardswish",
        "sign",
        "logsigmoid",
        "gelu_tanh",
        "selu",
        "round",
    ]
    values = {name: op(name, load("x", 1)) for name in names}
    values |= {"elu": op("elu", load("x", 1), const(1.5)), "third": op("div", load("x", 1), const(3.0))}
    stores = tuple(Store(f"y_{name}", view(1), value) for name, value in values.items())
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "sign": torch.sign,
        "round": torch.round,
        "sigmoid": torch.sigmoid,
        "elu": lambda t: torch.nn.functional.elu(t, 1.5),
        "third": lambda t: t / 3,
    }
    named = {name: functions.get(name, getattr(torch.nn.functional, name, torch.sign)) for name in values}
    truth = {f"y_{name}": function(x.double()).float() for name, function in named.items()}
    return Case(MapKernel("special", (18,), stores), {"x": x}, truth)


# ---------------------------------------------------------------- rows and columns


def softmax(rows: int, length: int, *, column: bool = False, **choices: Choice) -> Case:
    x = 5 * torch.randn(rows, length)
    x[0, 0], x[-1, -1] = -math.inf, 30.0
    seen = x.t().contiguous().t() if column else x
    strides = seen.stride()
    value = load("x", *strides)
    exponential = op("exp", op("sub", value, Named("top", F)))
    stages = (
        Reduction("top", "max", value, F),
        Reduction("total", "sum", exponential, F),
        Emit(Store("y", View(0, tuple(strides)), op("div", exponential, Named("total", F)))),
    )
    kernel = RowKernel("softmax", (rows,), (length,), stages, ("softmax",))
    truth = torch.softmax(x.double(), 1).float()
    truth = truth.t().contiguous().t() if column else truth
    return Case(kernel, {"x": seen}, {"y": truth}, dict(choices))


def layer_norm(rows: int, length: int, shift: float = 3.0, **choices: Choice) -> Case:
    x, h, weight = torch.randn(rows, length) + shift, torch.randn(rows, length), torch.randn(length)
    value = op("add", load("x", length, 1), load("h", length, 1))
    variance = op("div", Named("m.m2", F), const(float(length)))
    normal = op("mul", op("sub", value, Named("m.mean", F)), Named("scale", F))
    stages = (
        Reduction("m", "moments", value, F),
        Let("scale", op("rsqrt", op("add", variance, const(1e-5)))),
        Emit(Store("y", view(length, 1), op("mul", normal, load("w", 0, 1)))),
        EmitRow(Store("mean", view(1, 0), Named("m.mean", F))),
    )
    kernel = RowKernel("norm", (rows,), (length,), stages, ("add", "layer_norm"))
    total = x.double() + h.double()
    mean = total.mean(1, keepdim=True)
    truth = (total - mean) / (total.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt() * weight.double()
    inputs = {"x": x, "h": h, "w": weight}
    # The sum x + h is itself rounded to float32, which a large mean makes visible after it is subtracted.
    tolerance = 1e-6 + 1e-7 * shift
    return Case(kernel, inputs, {"y": truth.float(), "mean": mean[:, 0].float()}, dict(choices), tolerance)


def group_norm(batch: int, groups: int, channels: int, size: int) -> Case:
    """Rows of (channels of a group, positions); the affine weight is one number a channel."""
    x, weight = torch.randn(batch, groups * channels, size), torch.randn(groups * channels)
    per_group = channels * size
    value = load("x", groups * per_group, per_group, size, 1)
    variance = op("div", Named("m.m2", F), const(float(per_group)))
    normal = op("mul", op("sub", value, Named("m.mean", F)), op("rsqrt", op("add", variance, const(1e-5))))
    stages = (
        Reduction("m", "moments", value, F),
        Emit(Store("y", value.view, op("silu", op("mul", normal, load("w", 0, channels, 1, 0))))),
    )
    kernel = RowKernel("group", (batch, groups), (channels, size), stages, ("group_norm", "silu"))
    truth = torch.nn.functional.silu(torch.nn.functional.group_norm(x.double(), groups, weight.double()))
    return Case(kernel, {"x": x, "w": weight}, {"y": truth.float()})


def batch_moments(batch: int, channels: int, size: int, **choices: Choice) -> Case:
    """Few rows with two reduced dimensions, as batch norm in training mode has."""
    x = torch.randn(batch, channels, size) + 100.0
    value = load("x", size, channels * size, 1)
    stages = (
        Reduction("m", "moments", value, F),
        EmitRow(Store("mean", view(1, 0, 0), Named("m.mean", F))),
        EmitRow(Store("var", view(1, 0, 0), op("div", Named("m.m2", F), const(float(batch * size))))),
    )
    kernel = RowKernel("moments", (channels,), (batch, size), stages)
    seen = x.double().transpose(0, 1).flatten(1)
    outputs = {"mean": seen.mean(1).float(), "var": seen.var(1, unbiased=False).float()}
    return Case(kernel, {"x": x}, outputs, dict(choices), 5e-6)


def batch_norm(batch: int, channels: int, size: int, **choices: Choice) -> Case:
    """Batch norm in training mode, whose rows lie in pieces between those of others."""
    x, weight = torch.randn(batch, channels, size) * 2 + 5, torch.randn(channels)
    value = load("x", size, channels * size, 1)
    variance = op("div", Named("m.m2", F), const(float(batch * size)))
    normal = op("mul", op("sub", value, Named("m.mean", F)), Named("scale", F))
    stages = (
        Reduction("m", "moments", value, F),
        Let("scale", op("rsqrt", op("add", variance, const(1e-5)))),
        Emit(Store("y", value.view, op("mul", normal, load("w", 1, 0, 0)))),
        EmitRow(Store("mean", view(1, 0, 0), Named("m.mean", F))),
    )
    kernel = RowKernel("norm", (channels,), (batch, size), stages, ("batch_norm",))
    mean = x.double().mean((0, 2))
    spread = (x.double().var((0, 2), unbiased=False) + 1e-5).sqrt()
    truth = (x.double() - mean[:, None]) / spread[:, None] * weight.double()[:, None]
    return Case(kernel, {"x": x, "w": weight}, {"y": truth.float(), "mean": mean.float()}, dict(choices), 2e-6)


def many_reductions(rows: int, length: int, *, column: bool = False, **choices: Choice) -> Case:
    x = torch.randint(-4, 5, (rows, length)).float()
    x[1, length // 2] = math.nan
    seen = x.t().contiguous().t() if column else x
    value = load("x", *seen.stride())
    row = view(1, 0)
    kinds: list[tuple[str, DType]] = [("max", F), ("min", F), ("sum", F), ("argmax", "int64"), ("argmin", "int64")]
    kinds += [("any", "bool"), ("all", "bool"), ("prod", F), ("logsumexp", F)]
    inputs: dict[str, Expr] = dict.fromkeys(["any", "all"], op("gt", value, const(3.5), dtype="bool"))
    inputs["prod"] = op("add", op("mul", value, const(0.01)), const(1.0))
    stages: list[Any] = [Reduction(f"r_{k}", k, inputs.get(k, value), d) for k, d in kinds]  # type: ignore[arg-type]
    stages += [EmitRow(Store(f"y_{k}", row, Named(f"r_{k}", d))) for k, d in kinds]
    truth: dict[str, torch.Tensor] = {
        "y_max": x.amax(1),
        "y_min": x.amin(1),
        "y_sum": x.sum(1),
        "y_argmax": x.argmax(1),
        "y_argmin": x.argmin(1),
        "y_any": (x > 3.5).any(1),
        "y_all": (x > 3.5).all(1),
        "y_prod": (x.double() * 0.01 + 1).prod(1).float(),
        "y_logsumexp": x.double().logsumexp(1).float(),
    }
    return Case(RowKernel("many", (rows,), (length,), tuple(stages)), {"x": seen}, truth, dict(choices), 3e-5)


def loss(length: int, **choices: Choice) -> Case:
    """One row over everything: no outer dimension."""
    x, y = torch.randn(length), torch.randn(length)
    difference = op("square", op("sub", load("x", 1), load("y", 1)))
    stages = (
        Reduction("total", "sum", difference, F),
        EmitRow(Store("out", view(0), op("div", Named("total", F), const(float(length))))),
    )
    truth = (x.double() - y.double()).square().mean().float().reshape(())
    return Case(RowKernel("loss", (), (length,), stages), {"x": x, "y": y}, {"out": truth}, dict(choices))


# ---------------------------------------------------------------- matrix products


def gemm(
    m: int, n: int, k: int, batch: tuple[int, ...] = (), *, flip: str = "", dtype: DType = F, **choices: Choice
) -> Case:
    """relu(a b + bias); `flip` names the matrices stored transposed. A `precision` among the choices allows tensor
    cores."""

    def matrix(rows: int, columns: int, name: str) -> tuple[torch.Tensor, tuple[int, ...]]:
        stored = torch.randn(*batch, columns, rows) if name in flip else torch.randn(*batch, rows, columns)
        stored = stored.to(getattr(torch, dtype))
        strides = contiguous_strides(tuple(stored.shape))
        return stored, (*strides[:-2], strides[-1], strides[-2]) if name in flip else strides

    (a, a_strides), (b, b_strides) = matrix(m, k, "a"), matrix(k, n, "b")
    bias = torch.randn(n)
    out = contiguous_strides((*batch, m, n))
    zeros = (0,) * len(batch)
    acc = op("relu", op("add", Named("acc", F), load("bias", *zeros, 0, 1)))
    stores = (Store("y", View(0, out), acc if dtype == F else Apply("cast", (acc,), dtype)),)
    operands = Load("a", View(0, a_strides), dtype), Load("b", View(0, b_strides), dtype)
    kernel = GemmKernel("product", batch, m, n, k, *operands, stores, dtype, ops=("mm", "relu"))
    left, right = (t.mT if name in flip else t for t, name in ((a, "a"), (b, "b")))
    truth = torch.relu(left.double() @ right.double() + bias.double()).to(getattr(torch, dtype))
    # Rounding errors of a running sum of k products grow like its square root.
    tolerance = PRECISION_TOLERANCE.get(str(choices.get("precision", "")), 1e-6 * (1 + math.sqrt(k) / 16))
    return Case(
        kernel, {"a": a, "b": b, "bias": bias}, {"y": truth}, dict(choices), tolerance, "precision" not in choices
    )


def triangle(m: int, n: int, kept: str, diagonal: int, *, depth: int = 50, **choices: Choice) -> Case:
    """triu or tril of a product in batches, whose other tiles need no sums."""
    case = gemm(m, n, depth, (2,), flip="", dtype=F, **choices)
    distance = Iota(View(0, (0, -1, 1)))
    test = Apply("ge" if kept == "triu" else "le", (distance, Const(diagonal, "int64")), "bool")
    assert isinstance(case.kernel, GemmKernel)
    (store,) = case.kernel.stores
    value = Apply("where", (test, store.value, Const(0.0, F)), F)
    case.kernel = replace(case.kernel, stores=(replace(store, value=value),))
    case.outputs["y"] = getattr(torch, kept)(case.outputs["y"], diagonal)
    return case


def wide_range(stays: int = 0) -> Case:
    """Rows from 1e-30 to 1e30, columns of all sizes, an infinity, a NaN, a row of zeros: scales must hold them."""
    case = gemm(40, 24, 90, precision="half", stays=stays)
    a, b = case.inputs["a"], case.inputs["b"]
    a *= 10.0 ** torch.linspace(-30, 30, 40)[:, None]
    b *= 10.0 ** torch.linspace(-6, 6, 24)
    a[3, 5], a[7, 2], a[9] = torch.inf, torch.nan, 0.0
    truth = torch.relu(a.double() @ b.double() + case.inputs["bias"].double()).float()
    # Each row and column has a magnitude of its own: what is compared is their shape.
    case.outputs["y"] = truth
    return case


def gemm_prologue() -> Case:
    a, b = torch.randn(70, 50), torch.randn(50, 36)
    kernel = GemmKernel(
        "product",
        (),
        70,
        36,
        50,
        op("sigmoid", load("a", 50, 1)),
        load("b", 36, 1),
        (Store("y", view(1, 70), Named("acc", F)),),
        F,
    )
    truth = (a.double().sigmoid() @ b.double()).float().t().contiguous()
    return Case(kernel, {"a": a, "b": b}, {"y": truth})


def gemm_reordered(
    m: tuple[int, ...],
    n: tuple[int, ...],
    k: int,
    order: tuple[int, ...],
    batch: tuple[int, ...] = (),
    *,
    dtype: DType = F,
    **choices: Choice,
) -> Case:
    """(a b + bias) / each, whose stores see rows as `m` and columns as `n`, permuted by `order` behind the batch;
    `each` is a number for each of the outermost of m and n."""
    rows, columns, shape = math.prod(m), math.prod(n), (*batch, *m, *n)
    kind = getattr(torch, dtype)
    a, b = torch.randn(*batch, rows, k).to(kind), torch.randn(columns, k).to(kind)
    bias, each = torch.randn(columns), torch.rand(m[0], n[0]) + 0.5
    zeros, rank = (0,) * len(batch), len(batch)
    moved = (*range(rank), *(rank + axis for axis in order))
    strides = contiguous_strides(tuple(shape[axis] for axis in moved))
    stored = View(0, tuple(strides[moved.index(axis)] for axis in range(len(shape))))
    of_bias = (*zeros, *(0,) * len(m), *contiguous_strides(n))
    of_each = (*zeros, n[0], *(0,) * (len(m) - 1), 1, *(0,) * (len(n) - 1))
    value = op("div", op("add", Named("acc", F), load("bias", *of_bias)), load("each", *of_each))
    stores = (Store("y", stored, value if dtype == F else Apply("cast", (value,), dtype)),)
    kernel = GemmKernel(
        *("product", batch, rows, columns, k),
        Load("a", View(0, contiguous_strides((*batch, rows, k))), dtype),
        Load("b", View(0, (*zeros, 1, k)), dtype),
        *(stores, dtype),
        ops=("mm", "div"),
        m_sizes=m if len(m) > 1 else (),
        n_sizes=n if len(n) > 1 else (),
    )
    product = (a.double() @ b.double().mT + bias.double()).reshape(shape)
    truth = product / each.double().reshape(m[0], *(1,) * (len(m) - 1), n[0], *(1,) * (len(n) - 1))
    tolerance = PRECISION_TOLERANCE.get(str(choices.get("precision", "")), 1e-6 * (1 + math.sqrt(k) / 16))
    outputs = {"y": truth.permute(moved).contiguous().to(kind)}
    inputs = {"a": a, "b": b, "bias": bias, "each": each}
    return Case(kernel, inputs, outputs, dict(choices), tolerance, "precision" not in choices)
