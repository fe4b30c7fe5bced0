"""CUDA templates against float64 truth: run on the emulator everywhere, as whole candidates on a GPU where one is."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from foundry.knowledge.candidate import Choice
from foundry.knowledge.device import Device
from foundry.knowledge.library.cuda_dialect import runtime_header
from foundry.knowledge.library.cuda_launch import decode
from foundry.knowledge.library.cuda_module import FLAGS
from foundry.knowledge.library.cuda_print import print_kernel
from foundry.knowledge.library.ir import (
    Apply,
    AttentionKernel,
    Buffer,
    Const,
    ConvKernel,
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
    PoolKernel,
    Reduction,
    RowKernel,
    ScanKernel,
    Store,
    View,
)
from foundry.knowledge.library.module_file import Entry, module_file
from foundry.knowledge.opgraph import DType, contiguous_strides
from foundry.tools.targets.base import first_error
from foundry.tools.targets.cuda import parse_ptxas
from foundry.tools.targets.emulator import build_emulation

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
F: DType = "float32"


@dataclass
class Case:
    """A kernel with its inputs and the truth of its outputs."""

    kernel: Kernel
    inputs: dict[str, torch.Tensor]
    outputs: dict[str, torch.Tensor]
    choices: dict[str, Choice] = field(default_factory=dict)
    tolerance: float = 2e-6  # of the norm

    def plan(self) -> Plan:
        buffers = {}
        for number, (name, tensor) in enumerate(self.inputs.items()):
            buffers[name] = _buffer(name, tensor, "input", str(number))
        for name, tensor in self.outputs.items():
            buffers[name] = _buffer(name, tensor, "output", "")
        views = tuple(OutputView(name, tuple(t.shape), tuple(t.stride())) for name, t in self.outputs.items())
        return Plan(buffers, (self.kernel,), views, "tuple")

    def check(self, found: dict[str, torch.Tensor]) -> None:
        for name, truth in self.outputs.items():
            got = found[name].cpu()
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


def masked_and_gathered() -> Case:
    table, index = torch.randn(11, 6), torch.tensor([[3, -1, 10, 0], [7, 7, 2, 5]])
    row = Gather("table", view(0, 0, 1), load("index", 4, 1, 0, dtype="int64"), 6, 11, F)
    below = op("le", Iota(view(0, 0, 1)), Iota(view(0, 1, 0)), dtype="bool")
    kernel = MapKernel("gather", (2, 4, 6), (Store("y", view(24, 6, 1), op("where", below, row, const(-math.inf))),))
    keep = torch.arange(6)[None, None, :] <= torch.arange(4)[None, :, None]
    truth = torch.where(keep, table[index], -math.inf)
    return Case(kernel, {"table": table, "index": index}, {"y": truth})


def special_values() -> Case:
    x = torch.tensor([0.0, -0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 30.0, -30.0, 0.3, 2.0, 100.0])
    names = [
        "relu",
        "sigmoid",
        "silu",
        "softplus",
        "mish",
        "hardswish",
        "sign",
        "logsigmoid",
        "gelu_tanh",
        "selu",
        "round",
    ]
    stores = tuple(Store(f"y_{name}", view(1), op(name, load("x", 1))) for name in names)
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "sign": torch.sign,
        "round": torch.round,
        "sigmoid": torch.sigmoid,
    }
    truth = {f"y_{n}": functions.get(n, getattr(torch.nn.functional, n, torch.sign))(x.double()).float() for n in names}
    return Case(MapKernel("special", (12,), stores), {"x": x}, truth)


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


def gemm(m: int, n: int, k: int, batch: tuple[int, ...] = (), *, flip: str = "", **choices: Choice) -> Case:
    """relu(a b + bias) * residual; `flip` names the matrices stored transposed."""

    def matrix(rows: int, columns: int, name: str) -> tuple[torch.Tensor, tuple[int, ...]]:
        stored = torch.randn(*batch, columns, rows) if name in flip else torch.randn(*batch, rows, columns)
        strides = contiguous_strides(tuple(stored.shape))
        return stored, (*strides[:-2], strides[-1], strides[-2]) if name in flip else strides

    (a, a_strides), (b, b_strides) = matrix(m, k, "a"), matrix(k, n, "b")
    bias = torch.randn(n)
    out = contiguous_strides((*batch, m, n))
    zeros = (0,) * len(batch)
    acc = op("add", Named("acc", F), load("bias", *zeros, 0, 1))
    stores = (Store("y", View(0, out), op("relu", acc)),)
    kernel = GemmKernel(
        "product",
        batch,
        m,
        n,
        k,
        Load("a", View(0, a_strides), F),
        Load("b", View(0, b_strides), F),
        stores,
        F,
        ops=("mm", "relu"),
    )
    left, right = (t.mT if name in flip else t for t, name in ((a, "a"), (b, "b")))
    truth = torch.relu(left.double() @ right.double() + bias.double()).float()
    # Rounding errors of a running sum of k products grow like its square root.
    tolerance = 1e-6 * (1 + math.sqrt(k) / 16)
    return Case(kernel, {"a": a, "b": b, "bias": bias}, {"y": truth}, dict(choices), tolerance)


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


# ---------------------------------------------------------------- scans, pools, convolutions, attention


def scan(
    rows: int, length: int, *, column: bool = False, kind: str = "sum", reverse: bool = False, **choices: Choice
) -> Case:
    """Masked running sum, or a plain running maximum; `reverse` also makes it exclusive."""
    x, keep = torch.randn(rows, length), torch.rand(rows, length) < 0.5
    seen = x.t().contiguous().t() if column else x
    kept = keep.t().contiguous().t() if column else keep
    strides = seen.stride()
    value: Expr = load("x", *strides)
    masked = op("mul", value, op("cast", load("keep", *strides, dtype="bool")))
    value = masked if kind == "sum" else value
    stores = (Store("y", View(0, tuple(strides)), op("mul", Named("acc", F), const(2.0))),)
    kernel = ScanKernel("scan", (rows, length), kind, value, stores, F, reverse=reverse, exclusive=reverse)  # type: ignore[arg-type]
    source = (x * keep).double() if kind == "sum" else x.double()
    source = source.flip(1) if reverse else source
    truth = source.cumsum(1) if kind == "sum" else source.cummax(1).values if kind == "max" else source.logcumsumexp(1)
    truth = (truth - source).flip(1) if reverse else truth
    truth = (2 * truth).float()
    truth = truth.t().contiguous().t() if column else truth
    inputs = {"x": seen, "keep": kept} if kind == "sum" else {"x": seen}
    return Case(kernel, inputs, {"y": truth}, dict(choices))


def pool(kind: Any, size: tuple[int, ...], window: tuple[int, ...], **options: Any) -> Case:
    """Pooling of relu(x) over 1 or 2 dimensions; no window: adaptive to `out`."""
    outer = (2, 3)
    x = torch.randn(*outer, *size)
    shifted = x.clone()
    rank = len(size)
    stride, padding = options.get("stride", (1,) * rank), options.get("padding", (0,) * rank)
    functional, value = torch.nn.functional, torch.relu(shifted.double()) - 0.25
    extra: dict[str, torch.Tensor] = {}
    if not window:
        truth = getattr(functional, f"adaptive_avg_pool{rank}d")(value, options["out"])
    elif kind == "avg":
        include = options.get("count_include_pad", True)
        truth = getattr(functional, f"avg_pool{rank}d")(value, window, stride, padding, count_include_pad=include)
    else:
        dilation = options.get("dilation", (1,) * rank)
        truth, index = getattr(functional, f"max_pool{rank}d")(
            value, window, stride, padding, dilation, return_indices=True
        )
        extra["where"] = index
    out = tuple(truth.shape)
    strides, in_strides = contiguous_strides(out), contiguous_strides(tuple(x.shape))
    stores = [Store("y", View(0, strides), Named("acc", F))]
    stores += [Store("where", View(0, strides), Named("index", "int64"))] if extra else []
    expr = op("sub", op("relu", load("x", *in_strides)), const(0.25))
    dilation = options.get("dilation", (1,) * rank) if window else ()
    kernel = PoolKernel(
        "pool",
        kind,
        outer,
        size,
        out[2:],
        window,
        stride if window else (),
        padding if window else (),
        dilation,
        expr,
        tuple(stores),
        F,
        options.get("count_include_pad", True),
    )
    return Case(kernel, {"x": x}, {"y": truth.float(), **extra})


def conv(
    batch: int,
    channels: int,
    out: int,
    size: tuple[int, ...],
    window: tuple[int, ...],
    *,
    groups: int = 1,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    last: bool = False,
) -> Case:
    """relu(conv + bias), the bias in the epilogue."""
    rank = len(size)
    x = torch.randn(batch, channels, *size)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    shape = (channels, out // groups, *window) if transposed else (out, channels // groups, *window)
    weight, bias = torch.randn(shape), torch.randn(out)
    name = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"
    truth = getattr(torch.nn.functional, name)(
        x.double(), weight.double(), bias.double(), stride=stride, padding=padding, dilation=dilation, groups=groups
    ).relu()
    strides = contiguous_strides(tuple(truth.shape))
    bias_load = load("bias", 0, 1, *(0,) * rank)
    stores = (Store("y", View(0, strides), op("relu", op("add", Named("acc", F), bias_load))),)
    kernel = ConvKernel(
        "conv",
        batch,
        channels,
        out,
        groups,
        size,
        tuple(truth.shape[2:]),
        window,
        (stride,) * rank,
        (padding,) * rank,
        (dilation,) * rank,
        transposed,
        "x",
        0,
        tuple(x.stride()),
        "w",
        stores,
        F,
    )
    return Case(kernel, {"x": x, "w": weight, "bias": bias}, {"y": truth.float().contiguous()})


def attention(
    rows: int, columns: int, head: int, value_head: int, *, causal: bool = False, masked: bool = False
) -> Case:
    batch = (2, 3)
    q, k, v = (
        torch.randn(*batch, rows, head),
        torch.randn(*batch, columns, head),
        torch.randn(*batch, columns, value_head),
    )
    mask = torch.randn(rows, columns)
    mask[1] = -math.inf
    strides = [contiguous_strides(tuple(t.shape)) for t in (q, k, v)]
    out = contiguous_strides((*batch, rows, value_head))
    kernel = AttentionKernel(
        "attention",
        batch,
        rows,
        columns,
        head,
        value_head,
        load("q", *strides[0]),
        load("k", *strides[1]),
        load("v", *strides[2]),
        0.3,
        causal,
        load("mask", 0, 0, columns, 1) if masked else None,
        (Store("y", View(0, out), Named("acc", F)),),
        F,
    )
    scores = q.double() @ k.double().mT * 0.3
    if masked:
        scores = scores + mask.double()
    if causal:
        scores = scores.masked_fill(torch.ones(rows, columns, dtype=torch.bool).triu(1), -math.inf)
    truth = (scores.softmax(-1) @ v.double()).float()
    inputs = {"q": q, "k": k, "v": v} | ({"mask": mask} if masked else {})
    return Case(kernel, inputs, {"y": truth})


CASES: dict[str, Callable[[], Case]] = {
    "chain_vector": lambda: gelu_chain(33, 64),
    "chain_odd": lambda: gelu_chain(7, 13, in_flight=2, threads=64),
    "chain_double": lambda: gelu_chain(5, 6, "float64"),
    "transposed": transposed_and_sliced,
    "gather": masked_and_gathered,
    "special": special_values,
    "softmax_short": lambda: softmax(7, 5),
    "softmax_warp": lambda: softmax(37, 96, team=8),
    "softmax_block": lambda: softmax(3, 1001),
    "softmax_shared": lambda: softmax(3, 520, staging="shared", team=64),
    "softmax_stream": lambda: softmax(4, 2100, staging="stream", team=128),
    "softmax_online": lambda: softmax(5, 700, softmax="online", team=32),
    "softmax_split": lambda: softmax(2, 4100, splits=4, team=64),
    "softmax_split_two": lambda: softmax(2, 4100, splits=2, team=64, softmax="two_pass"),
    "softmax_column": lambda: softmax(45, 37, column=True),
    "softmax_column_shared": lambda: softmax(70, 19, column=True, team=4, staging="shared"),
    "softmax_column_split": lambda: softmax(33, 2100, column=True, team=4, splits=4),
    "norm_warp": lambda: layer_norm(9, 128),
    "norm_block": lambda: layer_norm(2, 1536),
    "norm_stream": lambda: layer_norm(3, 2050, 300.0, staging="stream", team=64),
    "norm_split": lambda: layer_norm(2, 8192, 300.0, splits=8, team=64),
    "group_norm": lambda: group_norm(2, 3, 4, 20),
    "batch_moments": lambda: batch_moments(5, 3, 33),
    "batch_moments_split": lambda: batch_moments(4, 3, 1024, splits=4, team=64),
    "many": lambda: many_reductions(6, 70),
    "many_stream": lambda: many_reductions(3, 600, staging="stream"),
    "many_column": lambda: many_reductions(40, 70, column=True, team=8),
    "many_split": lambda: many_reductions(3, 4096, splits=2, team=64),
    "loss": lambda: loss(3000),
    "gemm": lambda: gemm(130, 77, 33),
    "gemm_flipped": lambda: gemm(64, 64, 48, flip="ab", tile_m=64, tile_n=64, thread_m=4, thread_n=4),
    "gemm_batched": lambda: gemm(33, 48, 20, (2, 3), flip="b"),
    "gemm_split": lambda: gemm(20, 36, 700, splits=4),
    "gemm_one_stage": lambda: gemm(40, 132, 64, stages=1, tile_m=32, tile_n=64, thread_m=4, thread_n=4),
    "gemm_prologue": gemm_prologue,
    "scan": lambda: scan(5, 600),
    "scan_odd": lambda: scan(3, 133, items=4, threads=32),
    "scan_reverse": lambda: scan(4, 77, reverse=True),
    "scan_max": lambda: scan(3, 70, kind="max"),
    "scan_logsumexp": lambda: scan(3, 70, kind="logsumexp"),
    "scan_column": lambda: scan(45, 30, column=True),
    "max_pool": lambda: pool("max", (9, 12), (3, 2), stride=(2, 2), padding=(1, 0), dilation=(1, 2)),
    "avg_pool": lambda: pool("avg", (9, 12), (3, 3), stride=(2, 3), padding=(1, 1), count_include_pad=False),
    "avg_pool_padded": lambda: pool("avg", (17,), (4,), stride=(3,), padding=(2,)),
    "adaptive_pool": lambda: pool("avg", (9, 13), (), out=(4, 5)),
    "conv": lambda: conv(2, 5, 12, (9, 8), (3, 3), padding=1),
    "conv_strided": lambda: conv(2, 6, 8, (11, 9), (3, 2), stride=2, dilation=2, padding=2, groups=2, last=True),
    "conv_three": lambda: conv(1, 3, 4, (5, 6, 7), (2, 3, 2)),
    "conv_transposed": lambda: conv(2, 4, 6, (5, 7), (3, 3), stride=2, padding=1, groups=2, transposed=True),
    "attention": lambda: attention(37, 70, 16, 40),
    "attention_causal": lambda: attention(40, 40, 32, 32, causal=True),
    "attention_masked": lambda: attention(5, 33, 8, 8, masked=True),
}
SIXTEEN_BIT: dict[str, Callable[[], Case]] = {
    "chain_bfloat16": lambda: gelu_chain(33, 64, "bfloat16"),
    "chain_float16": lambda: gelu_chain(33, 30, "float16"),
}

CHILD = """
import json, sys, numpy
from pathlib import Path
from foundry.tools.targets.emulator import run_emulation
order = json.loads(sys.argv[2])
arrays = {name: numpy.load(f"{sys.argv[3]}/{name}.npy") for name in order["names"]}
addresses = {name: array.ctypes.data for name, array in arrays.items()}
run_emulation(Path(sys.argv[1]), order["names"], addresses, order["workspace"])
for name in order["outputs"]:
    numpy.save(f"{sys.argv[3]}/{name}.npy", arrays[name])
"""


def storage(tensor: torch.Tensor) -> numpy.ndarray[Any, Any]:
    """A dense tensor's elements in memory order."""
    return torch.as_strided(tensor, (tensor.numel(),), (1,)).numpy().copy()


@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    case = CASES[name]()
    printed = print_kernel(case.kernel, case.plan(), H200, case.choices)
    library, names = build_emulation(f"{runtime_header()}\n{printed.functions}", decode(printed.call), tmp_path)
    for key, tensor in case.inputs.items():
        numpy.save(tmp_path / f"{key}.npy", storage(tensor))
    for key, tensor in case.outputs.items():
        fill = math.nan if tensor.is_floating_point() else 1
        numpy.save(tmp_path / f"{key}.npy", numpy.full_like(storage(tensor), fill))
    order = json.dumps({"names": names, "outputs": list(case.outputs), "workspace": printed.workspace_bytes})
    argv = [sys.executable, "-c", CHILD, str(library), order, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {}
    for key, tensor in case.outputs.items():
        flat = torch.from_numpy(numpy.load(tmp_path / f"{key}.npy"))
        found[key] = torch.as_strided(flat, tensor.shape, tensor.stride())
    case.check(found)
    for key, wanted in case.choices.items():
        assert printed.choices[key] == wanted, f"{key} was not taken"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
@pytest.mark.parametrize("arch", ["sm_90"])
def test_every_template_compiles_without_spills(arch: str, tmp_path: Path) -> None:
    """All cases in one unit: what the emulator accepts, nvcc must too."""
    parts = ["#define FOUNDRY_SIXTEEN_BIT", runtime_header()]
    for name, make in (CASES | SIXTEEN_BIT).items():
        case = make()
        printed = print_kernel(case.kernel, case.plan(), H200, case.choices)
        parts.append(printed.functions.replace("foundry_", f"foundry_{name}_"))
    source = tmp_path / "all.cu"
    source.write_text("\n".join(parts))
    command = ["nvcc", *FLAGS, f"-arch={arch}", str(source), "-o", str(tmp_path / "all.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, first_error(done.stderr)
    kernels = parse_ptxas(done.stdout + done.stderr)
    assert len(kernels) > len(CASES)
    spilled = {name: facts["spill_bytes"] for name, facts in kernels.items() if facts["spill_bytes"] > 256}
    assert not spilled


def candidate(case: Case) -> str:
    plan = case.plan()
    printed = print_kernel(case.kernel, plan, H200, case.choices)
    model = "import torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"
    return module_file(model, [Entry(plan, (printed,))], H200)


def run_candidate(text: str, case: Case) -> dict[str, torch.Tensor]:
    """Runs a candidate file on the GPU, its outputs poisoned by what the allocator held before."""
    namespace: dict[str, Any] = {}
    exec(compile(text, "candidate.py", "exec"), namespace)
    inputs = [tensor.cuda() for tensor in case.inputs.values()]
    for tensor in case.outputs.values():
        torch.full((max(tensor.numel(), 128) * 2,), math.nan, device="cuda")
    results = namespace["ModelNew"]()(*inputs)
    torch.cuda.synchronize()
    return dict(zip(case.outputs, results, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this machine")
@pytest.mark.parametrize("name", [*CASES, *SIXTEEN_BIT])
def test_on_the_gpu(name: str) -> None:
    torch.manual_seed(7)
    case = (CASES | SIXTEEN_BIT)[name]()
    case.check(run_candidate(candidate(case), case))
