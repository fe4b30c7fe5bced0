"""What PyTorch ran in one forward of a model that no tracer could follow: operators with their work and their time.
Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foundry.knowledge.opgraph import OperatorRun
from foundry.tools.task.flops import operator_flops

MOST = 16


def operators_ran(run: Callable[[], Any]) -> list[OperatorRun]:
    """The operators of one call, those that took the most time first; work and bytes are those of all their calls."""
    work: dict[str, list[int]] = {}

    class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func._schema.name
            inputs, outputs = list(_tensors([*args, *(kwargs or {}).values()])), list(_tensors([result]))
            shapes = [tensor.shape for tensor in inputs], [tensor.shape for tensor in outputs]
            row = work.setdefault(name, [0, 0, 0])
            row[0] += 1
            row[1] += operator_flops(name.split("::")[-1], args, kwargs or {}, *shapes)
            row[2] += sum(tensor.numel() * tensor.element_size() for tensor in [*inputs, *outputs])
            return result

    with torch.no_grad(), Counter():  # type: ignore[no-untyped-call]
        run()
    times = _times(run)
    rows = [
        OperatorRun(name, calls, flops, traffic_bytes, times.get(name, 0.0))
        for name, (calls, flops, traffic_bytes) in work.items()
    ]
    return sorted(rows, key=lambda row: (-row.ms, -row.traffic_bytes))[:MOST]


def _times(run: Callable[[], Any]) -> dict[str, float]:
    """Each operator's own time in ms, on the device where it has one."""
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
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from _tensors(item)
