"""Device-event timing inside a runner that holds a GPU: every call starts with a cold L2 cache.

The flush writes a buffer larger than the cache; it also keeps the device busy while the host queues the timed call,
so that what is measured is the device's work and not the host's pace (unless the host is slower than the flush).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
FLUSH_FACTOR = 2  # times the L2 size

_flush_buffers: dict[int, torch.Tensor] = {}
_event: Callable[..., Any] = torch.cuda.Event  # taken before any candidate is loaded


def flush_cache() -> None:
    """Evicts the current device's L2 by writing FLUSH_FACTOR times its size; asynchronous."""
    device = torch.cuda.current_device()
    held = _flush_buffers.get(device)
    if held is None:
        size = FLUSH_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        held = _flush_buffers[device] = torch.empty(max(size, 1 << 20) // 4, dtype=torch.int32, device="cuda")
    held.zero_()


def time_calls(call: Callable[[], Result], calls: int) -> tuple[Result, float]:
    """The result of the last of `calls` calls and their total device time in ms, each call with a cold cache.

    Events see the current stream; what a call hides on another stream shows in the grader's wall clock.
    """
    if calls < 1:
        raise ValueError("at least one call is timed")
    events = [(_event(enable_timing=True), _event(enable_timing=True)) for _ in range(calls)]
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream()
    for number, (begin, end) in enumerate(events):
        flush_cache()
        begin.record(stream)
        result = call()
        end.record(stream)
        if number + 1 < calls:
            del result  # its memory is free for the next call, as in any loop
    torch.cuda.synchronize()
    return result, sum(begin.elapsed_time(end) for begin, end in events)


def time_inputs(call: Callable[..., object], inputs: Sequence[Sequence[object]], samples: int) -> list[float]:
    """Device time in ms of `samples` single calls, rotating among `inputs`, each with a cold cache."""
    milliseconds = []
    for number in range(samples):
        arguments = inputs[number % len(inputs)]
        milliseconds.append(time_calls(functools.partial(call, *arguments), 1)[1])
    return milliseconds
