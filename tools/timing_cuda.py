"""Device-event timing inside a runner that holds a GPU: every call starts with a cold L2 cache.

All of the device is held for a millisecond before the flush: its clocks are up again after a pause, and the host has
queued the timed call by then, so that what is measured is the device's work and not the host's pace (unless a call
needs longer than that to be queued), and no other stream gets ahead. The flush writes a buffer larger than the cache.
Events see one stream. So the whole device is waited for afterwards, and what still ran then is charged to the calls.
"""

from __future__ import annotations

import ctypes
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from foundry.tools.gpu_kernels import gpu_kernels

Result = TypeVar("Result")
FLUSH_FACTOR = 2  # times the L2 size
HIDDEN_MS = 0.02  # the device may be busy this long after the last event before it counts as hidden work
HIDDEN_SHARE = 0.1  # or this part of a call
EMPTY_CALLS = 9
LEAD_MS = 1.0

_flush_buffers: dict[int, torch.Tensor] = {}
_round_trips: dict[int, float] = {}
# Taken before any candidate is loaded.
_event: Callable[..., Any] = torch.cuda.Event
_synchronize: Callable[[], None] = torch.cuda.synchronize
_current_stream: Callable[[], Any] = torch.cuda.current_stream


def _driver_function(name: str) -> Callable[[], int]:
    try:
        function: Callable[[], int] = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):  # no driver, or one from before that function
        return lambda: 0
    return function


_reset_persisting = _driver_function("cuCtxResetPersistingL2Cache")


def flush_cache() -> None:
    """Evicts the current device's L2 by writing FLUSH_FACTOR times its size; asynchronous. Lines that somebody made
    persistent become ordinary ones first."""
    device = torch.cuda.current_device()
    held = _flush_buffers.get(device)
    if held is None:
        size = FLUSH_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        held = _flush_buffers[device] = torch.empty(max(size, 1 << 20) // 4, dtype=torch.int32, device="cuda")
    _reset_persisting()
    held.zero_()


def time_calls(call: Callable[[], Result], calls: int) -> tuple[Result, float]:
    """The result of the last of `calls` calls and their total device time in ms, each call with a cold cache."""
    if calls < 1:
        raise ValueError("at least one call is timed")
    results, milliseconds = _timed([call] * calls, {calls - 1})
    return results[0], milliseconds


def call_each(
    model: Callable[..., Any], inputs: Sequence[Sequence[Any]], keep: int, clock: Callable[[], int]
) -> tuple[Any, int]:
    """One call on each set of inputs; returns the kept call's result and ns of device time for all of them."""
    calls = [functools.partial(model, *arguments) for arguments in inputs]
    results, milliseconds = _timed(calls, {keep})
    return results[0], int(1e6 * milliseconds)


def time_inputs(call: Callable[..., object], inputs: Sequence[Sequence[object]], samples: int) -> list[float]:
    """Device time in ms of `samples` single calls, rotating among `inputs`, each with a cold cache."""
    milliseconds = []
    for number in range(samples):
        arguments = inputs[number % len(inputs)]
        milliseconds.append(time_calls(functools.partial(call, *arguments), 1)[1])
    return milliseconds


def _timed(calls: Sequence[Callable[[], Result]], keep: set[int]) -> tuple[list[Result], float]:
    """Kept results and total device time in ms; work that outlasts the last event is charged for every call."""
    round_trip_ms = _round_trip_ms()
    kept, elapsed_ms, after_ms = _measured(calls, keep)
    hidden_ms = after_ms - round_trip_ms
    if hidden_ms > max(HIDDEN_MS, HIDDEN_SHARE * elapsed_ms / len(calls)):
        elapsed_ms += hidden_ms * len(calls)
    return kept, elapsed_ms


def _measured(calls: Sequence[Callable[[], Result]], keep: set[int]) -> tuple[list[Result], float, float]:
    """Kept results, ms between the events of all calls, ms from the last event until the whole device was idle."""
    events = [(_event(enable_timing=True), _event(enable_timing=True)) for _ in calls]
    idle = _event(enable_timing=True)
    kept: list[Result] = []
    _synchronize()
    stream = _current_stream()
    for number, (call, (begin, end)) in enumerate(zip(calls, events, strict=True)):
        gpu_kernels().hold(LEAD_MS)
        flush_cache()
        begin.record(stream)
        result = call()
        end.record(stream)
        if number in keep:
            kept.append(result)
        del result  # its memory is free for the next call, as in any loop
    _synchronize()  # every stream
    idle.record(stream)
    _synchronize()
    return kept, sum(begin.elapsed_time(end) for begin, end in events), events[-1][1].elapsed_time(idle)


def _round_trip_ms() -> float:
    """From the last event of an empty call until the host has seen the device idle and said so; first asked before a
    candidate is loaded."""
    device = torch.cuda.current_device()
    if device not in _round_trips:
        _round_trips[device] = statistics.median(_measured([lambda: None], {0})[2] for _ in range(EMPTY_CALLS))
    return _round_trips[device]


def settle() -> None:
    """Takes what later measurements need: the flush buffer and the round trip. Before a candidate is loaded."""
    gpu_kernels()
    flush_cache()
    _round_trip_ms()
