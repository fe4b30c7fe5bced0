"""Interpreter of SortKernel and SegmentKernel: sorts items by segment, and reduces each segment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from foundry.knowledge.compiler.ir import views
from foundry.knowledge.compiler.ir.kernels import Expr, GroupedKernel, SegmentKernel, SelectKernel, SortKernel, View

if TYPE_CHECKING:
    from tests.knowledge.compiler.interpret import Machine


def sort_items(machine: Machine, kernel: SortKernel) -> None:
    starts, order = _in_order(machine, kernel.key, kernel.items, kernel.segments)
    machine.flat[kernel.order], machine.flat[kernel.starts] = order.int(), starts.int()


def _in_order(machine: Machine, key: Expr, items: int, segments: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = machine.evaluate(key, (items,), {}).long()
    known, order = torch.where((found >= 0) & (found < segments), found, segments).sort(stable=True)
    return torch.searchsorted(known, torch.arange(segments + 1)), order


def multiply_groups(machine: Machine, kernel: GroupedKernel) -> None:
    """Group by group."""
    dtype = getattr(torch, kernel.dtype)
    a = machine.evaluate(kernel.a, (kernel.items, kernel.k), {}).to(dtype)
    b = machine.evaluate(kernel.b, (kernel.groups, kernel.k, kernel.n), {}).to(dtype)
    starts, order = machine.flat[kernel.starts].tolist(), machine.flat[kernel.order].long()
    acc = torch.full(kernel.shape, math.nan if dtype.is_floating_point else 0, dtype=dtype)
    for group in range(kernel.groups):
        own = order[starts[group] : starts[group + 1]]
        acc[own] = a[own] @ b[group]
    for store in kernel.stores:
        machine.store(store, kernel.shape, {"acc": acc})


def reduce_segments(machine: Machine, kernel: SegmentKernel) -> None:
    """Segment by segment."""
    dtype, inner = getattr(torch, kernel.dtype), kernel.shape[1:]
    value = machine.evaluate(kernel.value, (kernel.items, *inner), {}).to(dtype)
    if kernel.in_place:
        put_items(machine, kernel, value)
        return
    if kernel.key is not None:
        first, order = _in_order(machine, kernel.key, kernel.items, kernel.shape[0])
    else:
        first = machine.flat[kernel.starts]
        order = machine.flat[kernel.order].long() if kernel.order else torch.arange(kernel.items)
    starts = first.tolist()
    joins: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sum": lambda x: x.sum(0, dtype=dtype),
        "prod": lambda x: x.prod(0, dtype=dtype),
        "max": lambda x: x.amax(0),
        "min": lambda x: x.amin(0),
        "last": lambda x: x[-1],
    }
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    ends = (-math.inf, math.inf) if dtype.is_floating_point else (info.min, info.max)
    empty = {"sum": 0, "prod": 1, "max": ends[0], "min": ends[1], "last": 0}[kernel.op]
    acc = torch.full(kernel.shape, empty, dtype=dtype)
    count = torch.zeros((kernel.shape[0], *(1 for _ in inner)), dtype=torch.int64)
    for segment in range(kernel.shape[0]):
        own = order[starts[segment] : starts[segment + 1]]
        count[segment] = own.numel()
        if own.numel():
            acc[segment] = joins[kernel.op](value[own])
    for store in kernel.stores:
        machine.store(store, kernel.shape, {"acc": acc, "count": count})


def put_items(machine: Machine, kernel: SegmentKernel, value: torch.Tensor) -> None:
    """Item by item; what none of them names stays as it is."""
    assert kernel.key is not None
    for item, place in enumerate(machine.evaluate(kernel.key, (kernel.items,), {}).tolist()):
        if not 0 <= place < kernel.shape[0]:
            continue

        def own(view: View, at: int = place) -> View:
            return View(view.offset + at * view.strides[0], view.strides[1:])

        for store in kernel.stores:
            machine.store(views.map_store(store, own), kernel.shape[1:], {"acc": value[item]})


def select_items(machine: Machine, kernel: SelectKernel) -> None:
    """The whole row in order, and of it what is wanted."""
    value = machine.evaluate(kernel.value, (*kernel.outer, kernel.length), {})
    if kernel.ties == "first":
        known, order = value.sort(dim=-1, descending=kernel.largest, stable=True)
    else:
        known, order = value.topk(kernel.count, -1, kernel.largest, kernel.ties == "as in topk")
    named = {"acc": known[..., kernel.first : kernel.count], "index": order[..., kernel.first : kernel.count]}
    for store in kernel.stores:
        machine.store(store, (*kernel.outer, kernel.count - kernel.first), named)
