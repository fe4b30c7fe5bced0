"""Sorting items by segment and reducing segments on the CPU against PyTorch: skewed, empty and strided ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from foundry.knowledge.candidate import Choice
from foundry.knowledge.compiler.cpu.rows.segment import print_segments
from foundry.knowledge.compiler.cpu.rows.sort import print_sort
from foundry.knowledge.compiler.ir.kernels import (
    Apply,
    Expr,
    Gather,
    Load,
    Named,
    SegmentKernel,
    SortKernel,
    Store,
    View,
)
from foundry.knowledge.opgraph import DType

Harness = Any
TORCH = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def drawn(kind: str, items: int, segments: int) -> torch.Tensor:
    """Segments of items: some empty, and of "skewed" ones two with most items."""
    index = torch.randint(0, max(segments - 2, 1), (items,), generator=torch.Generator().manual_seed(items))
    if kind == "skewed":
        index[: items // 2] = segments // 2
        index[::5] = segments - 1
    return index


def in_order(index: torch.Tensor, segments: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(where each segment begins, items in order)"""
    known, order = index.sort(stable=True)
    return torch.searchsorted(known, torch.arange(segments + 1)).int(), order.int()


@pytest.mark.parametrize(("items", "segments"), [(1, 1), (7, 50), (1000, 1), (20_011, 313), (40_000, 40_000)])
@pytest.mark.parametrize("threads", [1, 2])
def test_sort(cpu_kernel: Harness, items: int, segments: int, threads: int) -> None:
    index = drawn("even", items, segments)
    kernel = SortKernel("sort", items, segments, Load("k", View(0, (1,)), "int64"), "starts", "order")
    outputs = {"starts": torch.empty(segments + 1, dtype=torch.int32), "order": torch.empty(items, dtype=torch.int32)}
    cpu_kernel.run(kernel, print_sort, {"k": index}, outputs, {"threads": threads})
    starts, order = in_order(index, segments)
    assert torch.equal(outputs["starts"], starts) and torch.equal(outputs["order"], order)


def test_sort_leaves_keys_outside_out(cpu_kernel: Harness) -> None:
    index = torch.tensor([3, -1, 0, 4, 3, 1 << 40, 0], dtype=torch.int64)
    kernel = SortKernel("sort", 7, 4, Load("k", View(0, (1,)), "int64"), "starts", "order")
    outputs = {"starts": torch.empty(5, dtype=torch.int32), "order": torch.empty(7, dtype=torch.int32)}
    cpu_kernel.run(kernel, print_sort, {"k": index}, outputs)
    assert outputs["starts"].tolist() == [0, 2, 2, 2, 4]
    assert outputs["order"][:4].tolist() == [2, 6, 0, 4]


def reduced(
    cpu_kernel: Harness,
    op: str,
    value: torch.Tensor,
    index: torch.Tensor,
    segments: int,
    *,
    is_direct: bool,
    **choices: Choice,
) -> tuple[torch.Tensor, str]:
    """What the kernel makes of items that lie along the first of `value`'s dimensions, whatever their strides: in
    order, or as they come."""
    dtype: DType = str(value.dtype).removeprefix("torch.")  # type: ignore[assignment]
    inner = tuple(value.shape[1:])
    starts, order = in_order(index, segments)
    found = torch.empty(segments, *inner, dtype=value.dtype)
    load: Expr = Load("x", View(0, value.stride()), dtype)
    wide: DType = "float32" if dtype in ("float16", "bfloat16") else dtype
    acc: Expr = Named("acc", wide)
    if wide != dtype:
        load, acc = Apply("cast", (load,), wide), Apply("cast", (acc,), dtype)
    store = Store("y", View(0, found.stride()), acc)
    shape = (segments, *inner)
    kernel = SegmentKernel("segments", len(value), shape, op, load, "starts", "order", (store,), wide)  # type: ignore[arg-type]
    if is_direct:
        kernel = replace(kernel, starts="", order="", key=Load("k", View(0, (1,)), "int64"))
    inputs = {"x": value, **({"k": index} if is_direct else {"starts": starts, "order": order})}
    printed = cpu_kernel.run(kernel, print_segments, inputs, {"y": found}, choices)
    return found, printed.functions


def truth(op: str, value: torch.Tensor, index: torch.Tensor, segments: int) -> torch.Tensor:
    wide = value.double() if value.is_floating_point() else value
    empty = {"sum": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}[op]
    into = torch.full((segments, *value.shape[1:]), empty if wide.is_floating_point() else int(op == "prod"))
    at = index.view(-1, *(1 for _ in value.shape[1:])).expand_as(value)
    return into.to(wide.dtype).scatter_reduce(0, at, wide, TORCH[op])


@pytest.mark.parametrize("op", sorted(TORCH))
@pytest.mark.parametrize("kind", ["even", "skewed"])
@pytest.mark.parametrize("inner", [(), (33,), (3, 130)])
@pytest.mark.parametrize("is_direct", [False, True])
def test_reductions(cpu_kernel: Harness, op: str, kind: str, inner: tuple[int, ...], is_direct: bool) -> None:
    value = torch.rand(9001, *inner, generator=torch.Generator().manual_seed(3)) * 0.02 + 0.99
    index = drawn(kind, 9001, 70)
    choices: dict[str, Choice] = {"threads": 2, **({"parts": 2} if is_direct else {"tile": 32} if inner else {})}
    found, text = reduced(cpu_kernel, op, value, index, 70, is_direct=is_direct, **choices)
    torch.testing.assert_close(found.double(), truth(op, value, index, 70), rtol=3e-7, atol=0)
    assert is_direct or "longest" in text or len(inner) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32])
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("is_direct", [False, True])
def test_types(cpu_kernel: Harness, dtype: torch.dtype, op: str, is_direct: bool) -> None:
    value = (torch.randn(3000, 17, generator=torch.Generator().manual_seed(4)) * 9).abs().to(dtype)
    index = drawn("skewed", 3000, 11)
    found, _ = reduced(cpu_kernel, op, value, index, 11, is_direct=is_direct)
    wanted = truth(op, value, index, 11)
    if dtype in (torch.int64, torch.int32) and op == "max":
        wanted = torch.where(torch.bincount(index, minlength=11).view(-1, 1) > 0, wanted, torch.iinfo(dtype).min)
    rounding = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float64: 1e-12}.get(dtype, 0)
    torch.testing.assert_close(found, wanted.to(dtype), rtol=rounding, atol=0)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("is_direct", [False, True])
def test_items_across_memory(cpu_kernel: Harness, turned: bool, is_direct: bool) -> None:
    value = torch.randn(5, 600, 40, generator=torch.Generator().manual_seed(5)).transpose(0, 1)
    value = value.transpose(1, 2) if turned else value[:, :, ::2]
    index = drawn("even", 600, 23)
    found, _ = reduced(cpu_kernel, "sum", value, index, 23, is_direct=is_direct)
    torch.testing.assert_close(found.double(), truth("sum", value, index, 23), rtol=1e-6, atol=1e-6)


def test_rows_of_a_table_that_items_name_are_asked_for_early(cpu_kernel: Harness) -> None:
    """Also by items that name rows from the end, and in segments in the order of memory."""
    table, index = torch.randn(90, 48), torch.randint(-90, 90, (500,))
    starts = torch.tensor([0, 3, 3, 250, 500]).int()
    row = Gather("t", View(0, (0, 1)), Load("i", View(0, (1, 0)), "int64"), 48, 90, "float32")
    store = Store("y", View(0, (48, 1)), Named("acc", "float32"))
    kernel = SegmentKernel("segments", 500, (4, 48), "sum", row, "starts", "", (store,), "float32")
    found = torch.empty(4, 48)
    inputs = {"t": table, "i": index, "starts": starts}
    printed = cpu_kernel.run(kernel, print_segments, inputs, {"y": found}, {"ahead": 4})
    assert "__builtin_prefetch" in printed.functions
    wanted = [table.double()[index[begin:end]].sum(0) for begin, end in pairwise(starts.tolist())]
    torch.testing.assert_close(found.double(), torch.stack(wanted), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("is_direct", [False, True])
def test_a_nan_wins(cpu_kernel: Harness, op: str, is_direct: bool) -> None:
    value = torch.randn(50, 4)
    value[7], value[31, 2] = torch.nan, torch.nan
    index = drawn("even", 50, 12)
    found, _ = reduced(cpu_kernel, op, value, index, 12, is_direct=is_direct)
    torch.testing.assert_close(found.double(), truth(op, value, index, 12), equal_nan=True)


@pytest.mark.parametrize("is_direct", [False, True])
def test_the_last_item_and_the_number_of_items(cpu_kernel: Harness, is_direct: bool) -> None:
    value, index = torch.randn(500, 6), drawn("even", 500, 60)
    starts, order = in_order(index, 60)
    found, counted = torch.empty(60, 6), torch.empty(60, 6, dtype=torch.int64)
    count, steps = Named("count", "int64"), View(0, (6, 1))
    is_known = Apply("gt", (count, Apply("sub", (count, count), "int64")), "bool")
    kept = Apply("where", (is_known, Named("acc", "float32"), Load("own", steps, "float32")), "float32")
    stores = (Store("y", steps, kept), Store("n", steps, count))
    load = Load("x", steps, "float32")
    kernel = SegmentKernel("segments", 500, (60, 6), "last", load, "starts", "order", stores, "float32")
    own = torch.randn(60, 6)
    inputs = {"x": value, "own": own, "starts": starts, "order": order}
    if is_direct:
        kernel = replace(kernel, starts="", order="", key=Load("k", View(0, (1,)), "int64"))
        inputs = {"x": value, "own": own, "k": index}
    cpu_kernel.run(kernel, print_segments, inputs, {"y": found, "n": counted}, {"parts": 2} if is_direct else {})
    wanted = own.clone()
    for item, segment in enumerate(index.tolist()):
        wanted[segment] = value[item]
    assert torch.equal(found, wanted)
    assert torch.equal(counted[:, 3], torch.bincount(index, minlength=60))


@pytest.mark.parametrize("is_direct", [False, True])
def test_every_call_gives_the_same_bits(cpu_kernel: Harness, is_direct: bool) -> None:
    value, index = torch.randn(30_000), drawn("skewed", 30_000, 40)
    first, _ = reduced(cpu_kernel, "sum", value, index, 40, is_direct=is_direct, threads=2)
    before = first.clone()
    for _ in range(20):
        cpu_kernel.entry()
        assert torch.equal(first, before)


def test_keys_outside_are_in_no_segment(cpu_kernel: Harness) -> None:
    index = torch.tensor([3, -1, 0, 4, 3, 1 << 40, 0])
    found, _ = reduced(cpu_kernel, "sum", torch.arange(7.0), index, 4, is_direct=True)
    assert found.tolist() == [8.0, 0.0, 0.0, 4.0]
