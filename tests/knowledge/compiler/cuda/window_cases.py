"""Kernels with known truths for the CUDA printer: scans, pools; and the list of all but convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from tests.knowledge.compiler.cuda.cases import (
    Case,
    F,
    batch_moments,
    batch_norm,
    const,
    gelu_chain,
    gemm,
    gemm_prologue,
    gemm_reordered,
    group_norm,
    layer_norm,
    load,
    loss,
    many_reductions,
    many_turned,
    masked_and_gathered,
    op,
    shuffled_pixels,
    softmax,
    special_values,
    transposed_and_sliced,
    triangle,
    turned,
    wide_range,
)

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import (
    Const,
    Expr,
    Iota,
    Named,
    PoolKernel,
    ScanKernel,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType, contiguous_strides

# ---------------------------------------------------------------- scans and pools


def scan(
    rows: int,
    length: int,
    *,
    column: bool = False,
    kind: str = "sum",
    reverse: bool = False,
    dtype: DType = F,
    **choices: Choice,
) -> Case:
    """Masked running sum, or a plain running maximum; `reverse` also makes it exclusive."""
    x, keep = torch.randn(rows, length).to(getattr(torch, dtype)), torch.rand(rows, length) < 0.5
    seen = x.t().contiguous().t() if column else x
    kept = keep.t().contiguous().t() if column else keep
    strides = seen.stride()
    value: Expr = load("x", *strides, dtype=dtype)
    masked = op("mul", value, op("cast", load("keep", *strides, dtype="bool"), dtype=dtype), dtype=dtype)
    value = masked if kind == "sum" else value
    twice = op("mul", Named("acc", dtype), Const(2.0, dtype), dtype=dtype)
    stores = (Store("y", View(0, tuple(strides)), twice),)
    kernel = ScanKernel("scan", (rows, length), kind, value, stores, dtype, reverse=reverse, exclusive=reverse)  # type: ignore[arg-type]
    source = (x * keep).double() if kind == "sum" else x.double()
    source = source.flip(1) if reverse else source
    truth = source.cumsum(1) if kind == "sum" else source.cummax(1).values if kind == "max" else source.logcumsumexp(1)
    truth = (truth - source).flip(1) if reverse else truth
    truth = (2 * truth).to(x.dtype)
    truth = truth.t().contiguous().t() if column else truth
    inputs = {"x": seen, "keep": kept} if kind == "sum" else {"x": seen}
    return Case(kernel, inputs, {"y": truth}, dict(choices))


def extrema(rows: int, length: int, **choices: Choice) -> Case:
    """Running maximum and where it stands, with equal ones, both zeros and a NaN."""
    x = torch.randint(-9, 9, (rows, length)).float() * torch.linspace(0.1, 3, length)
    x[0, :4], x[-1, length // 2] = torch.tensor([-1.5, -0.0, 0.0, -0.0]), math.nan
    seen, acc = View(0, (length, 1)), Named("acc", "int64")
    key = op("order_key", load("x", length, 1), dtype="int64")
    both = op("bit_or", key, Iota(View(0, (0, 1)), "int64"), dtype="int64")
    where = op("bit_and", acc, Const((1 << 32) - 1, "int64"), dtype="int64")
    stores = (Store("y", seen, op("of_order_key", acc)), Store("where", seen, where))
    kernel = ScanKernel("extrema", (rows, length), "max", both, stores, "int64")
    truth = x.cummax(1)
    return Case(kernel, {"x": x}, {"y": truth.values, "where": truth.indices}, dict(choices))


def pool(
    kind: Any, size: tuple[int, ...], window: tuple[int, ...], *, indexed: bool = True, path: str = "", **options: Any
) -> Case:
    """Pooling of relu(x) over 1 to 3 dimensions; no window: adaptive to `out`. `indexed`: with where a maximum is."""
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
        extra |= {"where": index} if indexed else {}
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
    return Case(kernel, {"x": x}, {"y": truth.float(), **extra}, {"path": path} if path else {})


def columns(kind: Any, size: tuple[int, ...], window: tuple[int, ...], **options: Any) -> Case:
    return pool(kind, size, window, indexed=False, path="columns", **options)


CASES: dict[str, Callable[[], Case]] = {
    "chain_vector": lambda: gelu_chain(33, 64),
    "chain_odd": lambda: gelu_chain(7, 13, in_flight=2, threads=64),
    "chain_double": lambda: gelu_chain(5, 6, "float64"),
    "transposed": transposed_and_sliced,
    "turned": lambda: turned(2, 40, 70),
    "turned_exact": lambda: turned(1, 64, 32, tile=64),
    "turned_not": lambda: turned(3, 20, 17, tile=0),
    "turned_short": lambda: turned(2, 8, 40),
    "turned_too_many": lambda: many_turned(7),
    "shuffled_by_two": lambda: shuffled_pixels(2),
    "shuffled_by_three": lambda: shuffled_pixels(3),
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
    "softmax_cluster": lambda: softmax(3, 9001, cluster=2, team=256, staging="shared"),
    "softmax_cluster_online": lambda: softmax(3, 17000, cluster=4, team=256, softmax="online", staging="shared"),
    "softmax_cluster_registers": lambda: softmax(2, 9000, cluster=2, team=256, staging="registers"),
    "norm_cluster": lambda: layer_norm(2, 9004, 300.0, cluster=2, team=256),
    "softmax_behind": lambda: softmax(9, 33001, order="behind", team=256, splits=4),
    "norm_behind": lambda: layer_norm(3, 1 << 15, 3.0, order="behind", splits=16, team=256),
    "norm_warp": lambda: layer_norm(9, 128),
    "norm_block": lambda: layer_norm(2, 1536),
    "norm_stream": lambda: layer_norm(3, 2050, 300.0, staging="stream", team=64, in_flight=8),
    "norm_split": lambda: layer_norm(2, 8192, 300.0, splits=8, team=64),
    "group_norm": lambda: group_norm(2, 3, 4, 20),
    "batch_moments": lambda: batch_moments(5, 3, 33),
    "batch_moments_split": lambda: batch_moments(4, 3, 1024, splits=4, team=64),
    "norm_in_memory": lambda: batch_norm(13, 3, 9004, order="memory", team=256, part=4),
    "norm_in_memory_odd": lambda: batch_norm(37, 3, 2501, order="memory", team=64, part=4, in_flight=8),
    "norm_in_memory_columns": lambda: batch_norm(4999, 67, 1, order="memory", team=8, columns=32, part=16),
    "norm_in_memory_rows": lambda: layer_norm(5, 1 << 16, order="memory", part=8),
    "softmax_in_memory": lambda: softmax(9, 33001, order="memory", softmax="two_pass"),
    "many": lambda: many_reductions(6, 70),
    "many_stream": lambda: many_reductions(3, 600, staging="stream"),
    "many_column": lambda: many_reductions(40, 70, column=True, team=8),
    "many_split": lambda: many_reductions(3, 4096, splits=2, team=64),
    "loss": lambda: loss(3000),
    "gemm": lambda: gemm(130, 77, 33),
    "gemm_flipped": lambda: gemm(64, 64, 48, flip="ab", tile_m=64, tile_n=64, thread_m=4, thread_n=4),
    "gemm_batched": lambda: gemm(33, 48, 20, (2, 3), flip="b"),
    "gemm_split": lambda: gemm(20, 36, 700, splits=4),
    "gemm_upper": lambda: triangle(130, 150, "triu", 3, tile_m=64, tile_n=64, thread_m=4, thread_n=4),
    "gemm_one_stage": lambda: gemm(40, 132, 64, stages=1, tile_m=32, tile_n=64, thread_m=4, thread_n=4),
    "gemm_prologue": gemm_prologue,
    "packed_whole_tiles": lambda: gemm(128, 256, 64, precision="tf32", path="packed"),
    "packed_edges": lambda: gemm(130, 77, 33, precision="tf32", path="packed"),
    "packed_half": lambda: gemm(130, 300, 200, precision="half"),
    "packed_half_linear": lambda: gemm(100, 136, 1000, flip="b", precision="half", tile_m=64, group_n=64, stages=3),
    "packed_half_deep": lambda: gemm(40, 24, 2100, flip="b", precision="half"),
    "packed_half_long": lambda: gemm(20, 40, 16500, flip="b", precision="half", splits=8),
    "packed_half_flipped": lambda: gemm(96, 72, 300, flip="ab", precision="half"),
    "packed_half3": lambda: gemm(130, 77, 300, precision="half3"),
    "packed_half3_linear": lambda: gemm(40, 100, 600, (2,), flip="b", precision="half3", tile_m=64, group_n=64),
    "packed_splits": lambda: gemm(70, 50, 1500, precision="half", splits=4),
    "packed_batched": lambda: gemm(33, 48, 70, (2, 3), flip="b", precision="half"),
    "packed_wide_range": wide_range,
    "packed_resident": lambda: gemm(130, 300, 70, precision="half", tile_n=128, group_n=128, stages=2, resident=2),
    "wgmma_whole_tiles": lambda: gemm(128, 256, 64, precision="tf32", path="wgmma"),
    "wgmma_edges": lambda: gemm(130, 77, 33, precision="tf32", path="wgmma"),
    "wgmma_flipped": lambda: gemm(
        96, 72, 104, flip="ab", precision="tf32", path="wgmma", tile_m=64, tile_n=64, group_m=64, group_n=64, stages=3
    ),
    "wgmma_like_linear": lambda: gemm(
        200,
        136,
        160,
        flip="b",
        precision="tf32",
        path="wgmma",
        tile_m=128,
        tile_n=128,
        group_m=128,
        group_n=64,
        stages=3,
    ),
    "wgmma_batched": lambda: gemm(33, 48, 20, (2, 3), flip="b", precision="tf32", path="wgmma"),
    "wgmma_split": lambda: gemm(20, 36, 700, splits=4, precision="tf32", path="wgmma"),
    "mma_whole_tiles": lambda: gemm(128, 128, 64, precision="tf32", path="mma"),
    "mma_edges": lambda: gemm(130, 77, 33, precision="tf32", path="mma"),
    "mma_flipped": lambda: gemm(
        96, 72, 80, flip="ab", precision="tf32", path="mma", tile_m=64, tile_n=64, warp_m=32, warp_n=32
    ),
    "mma_like_linear": lambda: gemm(64, 96, 64, flip="b", precision="tf32x3", tile_m=64, tile_n=32),
    "mma_batched": lambda: gemm(33, 48, 20, (2, 3), flip="b", precision="tf32x3"),
    "mma_split": lambda: gemm(20, 36, 700, splits=4, precision="tf32", path="mma"),
    "mma_lower": lambda: triangle(150, 130, "tril", -5, precision="tf32", path="mma", tile_m=64, tile_n=32),
    "mma_upper_split": lambda: triangle(140, 70, "triu", -60, depth=700, precision="tf32", path="mma", splits=4),
    "packed_lower": lambda: triangle(300, 140, "tril", -20, precision="half"),
    "mma_one_stage": lambda: gemm(
        40, 132, 64, stages=1, precision="tf32x3", tile_m=32, tile_n=64, warp_m=16, warp_n=32
    ),
    "reordered_heads": lambda: gemm_reordered((3, 41), (5, 16), 33, (0, 2, 1, 3)),
    "reordered_odd": lambda: gemm_reordered((5, 13), (3, 11), 50, (2, 0, 1, 3), (2,)),
    "reordered_turned": lambda: gemm_reordered((3, 41), (4, 10), 70, (0, 2, 3, 1)),
    "reordered_split": lambda: gemm_reordered((4, 5), (3, 12), 700, (0, 2, 1, 3), splits=4),
    "reordered_split_odd": lambda: gemm_reordered((4, 5), (3, 11), 700, (2, 0, 1, 3), splits=4),
    "reordered_mma": lambda: gemm_reordered((7, 11), (3, 4, 12), 64, (2, 0, 3, 1, 4), precision="tf32", path="mma"),
    "reordered_mma_odd": lambda: gemm_reordered((7, 11), (5, 9), 64, (0, 2, 1, 3), precision="tf32x3"),
    "reordered_wgmma": lambda: gemm_reordered((9, 16), (9, 32), 64, (0, 2, 1, 3), precision="tf32", path="wgmma"),
    "reordered_packed": lambda: gemm_reordered((9, 16), (9, 32), 96, (0, 2, 1, 3), (2,), precision="half"),
    "reordered_packed_rows": lambda: gemm_reordered((3, 41), (80,), 96, (1, 0, 2), precision="tf32", path="packed"),
    "reordered_packed_split": lambda: gemm_reordered((5, 14), (3, 20), 1500, (2, 0, 1, 3), precision="half", splits=4),
    "scan": lambda: scan(5, 600),
    "scan_reverse": lambda: scan(4, 77, reverse=True),
    "scan_column": lambda: scan(45, 30, column=True),
    "scan_long": lambda: scan(5, 18001),
    "scan_tiles_odd": lambda: scan(7, 1337, path="tiles", team=64, rounds=2),
    "scan_tiles_lanes": lambda: scan(37, 52, path="tiles", team=8, rounds=1),
    "scan_tiles_short": lambda: scan(261, 3),
    "scan_tiles_reverse": lambda: scan(3, 1236, reverse=True, path="tiles"),
    "scan_tiles_max": lambda: scan(3, 700, kind="max", path="tiles"),
    "scan_back": lambda: scan(3, 1300, path="look_back"),
    "scan_back_far": lambda: scan(2, 128 * 1030 + 77, path="look_back", threads=128, rounds=1),
    "scan_back_extrema": lambda: extrema(2, 1301, path="look_back", threads=128, rounds=1),
    "scan_tiles_extrema": lambda: extrema(5, 1302),
    "scan_back_double": lambda: scan(2, 1301, dtype="float64", path="look_back", threads=128, rounds=1),
    "scan_back_reverse": lambda: scan(2, 5204, reverse=True, path="look_back", threads=128, rounds=1),
    "scan_back_logsumexp": lambda: scan(1, 5001, kind="logsumexp", path="look_back", threads=128, rounds=2),
    "max_pool": lambda: pool("max", (9, 12), (3, 2), stride=(2, 2), padding=(1, 0), dilation=(1, 2)),
    "avg_pool": lambda: pool("avg", (9, 12), (3, 3), stride=(2, 3), padding=(1, 1), path="points"),
    "avg_pool_padded": lambda: pool("avg", (17,), (4,), stride=(3,), padding=(2,), path="points"),
    "pool_columns_line": lambda: columns("max", (97,), (8,), padding=(4,), dilation=(3,)),
    "pool_columns_long": lambda: columns("avg", (12000,), (8,), padding=(4,)),
    "pool_columns_short": lambda: columns(
        "avg", (12, 8), (3, 2), stride=(2, 3), padding=(1, 1), count_include_pad=False
    ),
    "pool_columns_plane": lambda: columns("max", (19, 52), (4, 4), padding=(1, 1)),
    "pool_columns_apart": lambda: columns("avg", (30, 143), (11, 11), stride=(11, 11)),
    "pool_columns_many": lambda: columns("avg", (17, 21, 20), (5, 3, 4), stride=(2, 1, 3), padding=(2, 0, 1)),
    "pool_columns_dilated": lambda: columns(
        "max", (11, 14, 36), (3, 3, 3), stride=(2, 2, 2), padding=(1, 1, 1), dilation=(3, 3, 3)
    ),
    "adaptive_pool": lambda: pool("avg", (9, 13), (), out=(4, 5)),
}
_STAYS: dict[str, Any] = {"precision": "half", "stays": 1, "stages": 3}
# On a device of two multiprocessors, so that each block computes several tiles.
STAYING: dict[str, Callable[[], Case]] = {
    "stays_edges": lambda: gemm(333, 348, 100, **_STAYS),
    "stays_batched": lambda: gemm(33, 148, 70, (3, 2), flip="b", tile_m=64, tile_n=128, group_n=64, **_STAYS),
    "stays_reordered": lambda: gemm_reordered((3, 110), (2, 128), 100, (0, 2, 1, 3), **_STAYS),
    "stays_reordered_rows": lambda: gemm_reordered((3, 110), (348,), 100, (1, 0, 2), **_STAYS),
    "stays_sixteen": lambda: gemm(
        333, 346, 150, dtype="bfloat16", precision="bfloat16", path="packed", stays=2, tile_n=64, group_n=64, stages=3
    ),
    "stays_sixteen_slabs": lambda: gemm(
        333, 344, 150, dtype="bfloat16", precision="bfloat16", path="packed", stays=1, stages=3
    ),
    "stays_sixteen_narrow": lambda: gemm(
        70, 200, 90, (3,), dtype="float16", precision="float16", path="packed", stays=1, tile_n=64, group_n=64, stages=3
    ),
    "stays_sixteen_heads": lambda: gemm_reordered(
        (3, 110), (2, 128), 100, (0, 2, 1, 3), dtype="bfloat16", precision="bfloat16", path="packed", stays=1
    ),
    "stays_half": lambda: gemm(150, 348, 100, (2,), precision="half", stays=2, stages=2),
    "stays_shared": lambda: gemm(
        200,
        300,
        130,
        dtype="float16",
        precision="float16",
        path="packed",
        stays=2,
        tile_n=128,
        group_n=128,
        resident=2,
        stages=3,
    ),
    "stays_wide_range": lambda: wide_range(stays=1),
    "stays_upper": lambda: triangle(200, 260, "triu", 9, tile_m=64, tile_n=128, group_n=128, resident=2, **_STAYS),
}
SIXTEEN_BIT: dict[str, Callable[[], Case]] = {
    "turned_bfloat16": lambda: turned(2, 40, 70, "bfloat16"),
    "chain_bfloat16": lambda: gelu_chain(33, 64, "bfloat16"),
    "chain_float16": lambda: gelu_chain(33, 30, "float16"),
    "packed_float16": lambda: gemm(70, 72, 96, dtype="float16", precision="float16", path="packed"),
    "copied_bfloat16": lambda: gemm(
        130, 72, 152, flip="b", dtype="bfloat16", precision="bfloat16", path="packed", tile_m=128, tile_n=64, group_n=64
    ),
    "copied_across": lambda: gemm(
        72, 136, 152, flip="a", dtype="bfloat16", precision="bfloat16", path="packed", tile_n=256, group_n=128, stages=3
    ),
    "copied_rows": lambda: gemm(70, 72, 96, (2,), dtype="float16", precision="float16", path="packed"),
    "copied_batched": lambda: gemm(33, 48, 72, (3,), flip="b", dtype="float16", precision="float16", path="packed"),
    "packed_bfloat16": lambda: gemm(70, 72, 150, flip="b", dtype="bfloat16", precision="bfloat16", path="packed"),
    "reordered_bfloat16": lambda: gemm_reordered(
        (9, 32), (9, 32), 96, (0, 2, 1, 3), dtype="bfloat16", precision="bfloat16", path="packed"
    ),
    "reordered_float16": lambda: gemm_reordered(
        (5, 13), (3, 12), 72, (2, 0, 1, 3), dtype="float16", precision="float16", path="mma"
    ),
    "wgmma_float16": lambda: gemm(70, 72, 96, dtype="float16", precision="float16", path="wgmma"),
    "wgmma_bfloat16": lambda: gemm(
        70, 72, 48, flip="b", dtype="bfloat16", precision="bfloat16", path="wgmma", stages=3
    ),
    "mma_float16": lambda: gemm(70, 72, 96, dtype="float16", precision="float16", path="mma"),
    "mma_bfloat16": lambda: gemm(70, 72, 48, flip="b", dtype="bfloat16", precision="bfloat16", path="mma"),
    "mma_bfloat16_flipped": lambda: gemm(64, 40, 50, flip="ab", dtype="bfloat16", precision="bfloat16", path="mma"),
}
