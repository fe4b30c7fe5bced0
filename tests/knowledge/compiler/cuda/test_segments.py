"""Sorting items by segment and reducing segments in CUDA, on the emulator: skewed, empty and strided ones."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.knowledge.compiler.cpu.test_segments import drawn, in_order, truth
from tests.knowledge.compiler.cuda.cases import Case
from tests.knowledge.compiler.cuda.emulated import check_emulated

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Expr,
    Load,
    Named,
    SegmentKernel,
    SortKernel,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType


def sort_case(items: int, segments: int, **choices: Choice) -> Case:
    index = drawn("even", items, segments)
    kernel = SortKernel("sort", items, segments, Load("k", View(0, (1,)), "int64"), "starts", "order")
    starts, order = in_order(index, segments)
    return Case(kernel, {"k": index}, {"starts": starts, "order": order}, dict(choices))


def segment_case(
    op: str,
    items: int,
    segments: int,
    inner: tuple[int, ...],
    kind: str = "even",
    dtype: DType = "float32",
    **choices: Choice,
) -> Case:
    """Reduces items, and counts them."""
    wide: DType = "float32" if dtype in ("float16", "bfloat16") else dtype
    value = torch.rand(items, *inner, generator=torch.Generator().manual_seed(8)) * 0.02 + 0.99
    value = (value * (1 if value.is_floating_point() else 50)).to(getattr(torch, dtype))
    index = drawn(kind, items, segments)
    starts, order = in_order(index, segments)
    wanted = truth(op, value, index, segments).to(value.dtype)
    counts = torch.bincount(index, minlength=segments).view(-1, *(1 for _ in inner)).expand_as(wanted).contiguous()
    load: Expr = Load("x", View(0, value.stride()), dtype)
    acc: Expr = Named("acc", wide)
    if wide != dtype:
        load, acc = Apply("cast", (load,), wide), Apply("cast", (acc,), dtype)
    view = View(0, wanted.stride())
    stores = (Store("y", view, acc), Store("n", view, Named("count", "int64")))
    shape = (segments, *inner)
    kernel = SegmentKernel("segments", items, shape, op, load, "starts", "order", stores, wide)  # type: ignore[arg-type]
    inputs = {"x": value, "starts": starts, "order": order}
    return Case(kernel, inputs, {"y": wanted, "n": counts}, dict(choices), 1e-3 if wide != dtype else 1e-6)


def test_sort(tmp_path: Path) -> None:
    cases = {
        "few": sort_case(7, 50),
        "one": sort_case(1, 1),
        "one_segment": sort_case(1000, 1),
        "two_digits": sort_case(3000, 313, stretch=128),
        "three_digits": sort_case(2000, 70_000, stretch=256),
        "last_segment": sort_case(600, 256, stretch=128),
    }
    check_emulated(cases, tmp_path)


def test_sort_leaves_keys_outside_out(tmp_path: Path) -> None:
    kernel = SortKernel("sort", 7, 4, Load("k", View(0, (1,)), "int64"), "starts", "order")
    index = torch.tensor([3, -1, 0, 4, 3, 1 << 40, 0], dtype=torch.int64)
    outputs = {"starts": torch.tensor([0, 2, 2, 2, 4]).int(), "order": torch.tensor([2, 6, 0, 4, 1, 3, 5]).int()}
    check_emulated({"outside": Case(kernel, {"k": index}, outputs)}, tmp_path)


def test_reductions(tmp_path: Path) -> None:
    cases = {
        "sum": segment_case("sum", 500, 30, (8,)),
        "max_of_numbers": segment_case("max", 500, 30, ()),
        "rows_of_threads": segment_case("sum", 700, 3, (33,), "skewed", rows=4, lanes=8),
        "parts": segment_case("prod", 700, 3, (3, 5), "skewed", parts=4, rows=2),
        "vectors_in_parts": segment_case("sum", 700, 5, (16,), "skewed", parts=2, vector=2),
        "wide": segment_case("min", 300, 40, (12,), dtype="float64"),
        "half": segment_case("sum", 300, 6, (16,), dtype="float16"),
        "integers": segment_case("sum", 300, 6, (7,), dtype="int64"),
        "more_lanes_than_columns": segment_case("max", 90, 4, (3,), lanes=128, rows=2),
    }
    check_emulated(cases, tmp_path)


def test_the_last_item(tmp_path: Path) -> None:
    value, index, own = torch.randn(200, 8), drawn("even", 200, 50), torch.randn(50, 8)
    starts, order = in_order(index, 50)
    wanted = own.clone()
    for item, segment in enumerate(index.tolist()):
        wanted[segment] = value[item]
    steps, count = View(0, (8, 1)), Named("count", "int64")
    is_known = Apply("gt", (count, Apply("sub", (count, count), "int64")), "bool")
    kept = Apply("where", (is_known, Named("acc", "float32"), Load("own", steps, "float32")), "float32")
    load, stores = Load("x", steps, "float32"), (Store("y", steps, kept),)
    kernel = SegmentKernel("segments", 200, (50, 8), "last", load, "starts", "order", stores, "float32")
    inputs = {"x": value, "own": own, "starts": starts, "order": order}
    check_emulated({"last": Case(kernel, inputs, {"y": wanted}, tolerance=1e-12)}, tmp_path)
