"""Operators that PyTorch ran in one forward of a model that no tracer could follow, with work and time. Imports
torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.opgraph import CHOOSING, OperatorRun, OpGraph
from foundry.tools.task import bundle, loading
from foundry.tools.task.flops import known_flops
from foundry.tools.task.modes import kept_buffers
from foundry.tools.task.operators import COPIES, FREE

MOST = 16  # operators kept
WRITES_AT_INDICES = ("index_", "_index_put", "scatter", "put_")


@dataclass(frozen=True)
class Ran:
    """The operators of one call of the reference.

    `rows`: the operators with the largest time. `work`: FLOPs plus bytes of all its computing operators,
    against which a candidate's use of PyTorch is weighed.
    """

    rows: list[OperatorRun]
    work: int


def operators_ran(run: Callable[[], Any]) -> Ran:
    """The operators of one call, the slowest first; work and bytes are those of all their calls."""
    rows, total = _counted(run)
    times = _times(run)
    found = [
        OperatorRun(name, calls, flops, traffic_bytes, times.get(name, 0.0))
        for name, (calls, flops, traffic_bytes) in rows.items()
    ]
    return Ran(sorted(found, key=lambda row: (-row.ms, -row.traffic_bytes))[:MOST], total)


def _counted(run: Callable[[], Any]) -> tuple[dict[str, list[int]], int]:
    """(calls, FLOPs and bytes of one call's operators by name, their work)."""
    rows: dict[str, list[int]] = {}
    total = 0

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Runs an operator and adds its calls, FLOPs and bytes to its row, and its work to the total."""
            nonlocal total
            result = func(*args, **(kwargs or {}))
            name = func._schema.name
            inputs, outputs = list(_tensors([*args, *(kwargs or {}).values()])), list(_tensors([result]))
            shapes = [tensor.shape for tensor in inputs], [tensor.shape for tensor in outputs]
            flops = known_flops(name.split("::")[-1], args, kwargs or {}, *shapes)
            row = rows.setdefault(name, [0, 0, 0])
            row[0] += 1
            row[1] += flops
            row[2] += _nbytes([*inputs, *outputs])
            total += _work(name.split("::")[-1], flops, inputs, outputs)
            return result

    with torch.no_grad(), Counter():  # type: ignore[no-untyped-call]
        run()
    return rows, total


def with_flops_ran(graph: OpGraph, model: nn.Module, inputs: Sequence[Any]) -> OpGraph:
    """The graph with no more FLOPs than the model runs on these inputs.

    A graph whose Python reads values computes all candidates and all rounds; the model computes what was chosen.
    """
    with kept_buffers(model):
        rows, _ = _counted(lambda: loading.call(model, bundle.map_tensors(list(inputs), torch.clone)))
    share = sum(flops for _, flops, _ in rows.values()) / max(1, graph.flops)
    return graph if share > 1 else replace(graph, ops=[replace(op, flops=int(op.flops * share)) for op in graph.ops])


def _work(kind: str, flops: int, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """FLOPs plus the bytes that a call surely moves.

    For a table that indices choose from, and a tensor written at indices, only the chosen elements count. Otherwise
    2 % of a large table would let PyTorch do all the rest.
    """
    if kind in FREE | COPIES:
        return 0
    if inputs and kind in CHOOSING:
        return flops + _nbytes([*inputs[1:], *outputs, *outputs])
    if inputs and kind.startswith(WRITES_AT_INDICES) and kind.endswith("_"):
        return 2 * _nbytes(inputs[1:])
    return flops + _nbytes([*inputs, *outputs])


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of all elements of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _times(run: Callable[[], Any]) -> dict[str, float]:
    """Each operator's own time in ms, on the GPU if it is in use."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    on_gpu = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.no_grad(), torch.profiler.profile(activities=activities) as seen:
        run()
    found: dict[str, float] = {}
    for event in seen.key_averages():
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        found[event.key] = found.get(event.key, 0.0) + microseconds / 1e3
    return found


def _tensors(items: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of arguments, lists and tuples in them included."""
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)
