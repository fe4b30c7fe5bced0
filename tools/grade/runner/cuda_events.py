"""Device-event timing inside a runner that holds a GPU: every call starts with a cold L2 cache.

The flush writes a buffer larger than the cache. Then a kernel occupies the whole device for a millisecond. Meanwhile
the device's clocks recover from the pause, and the host queues the timed call. So the events measure the device's work
and not the host's pace (unless queueing a call takes longer than that), and no other stream gets ahead. Events see one
stream only. So each call is followed by a kernel that ends when nothing else runs on the device, and the time that it
waits is charged to the call. The host notices the end 20 to 100 us late in a tenth of the samples; its clock only
reveals long work.

A candidate may use a stream of its own, and pays for its work. To see if the caller's stream waits for it, another
kernel holds every multiprocessor: copies by the copy engine need none, so a copy in the caller's stream is then made
before any kernel that this stream does not wait for.
"""

from __future__ import annotations

import ctypes
import functools
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from foundry.tools.audit.acts.observed import UnfinishedOutputs
from foundry.tools.grade.runner import timed_calls
from foundry.tools.grade.runner.gpu_kernels import gpu_kernels
from foundry.tools.task import loading

Result = TypeVar("Result")
FLUSH_FACTOR = 2  # multiple of the L2 size
HIDDEN_MS = 0.005  # ms that the device may be busy after a call before it counts as hidden work
HIDDEN_SHARE = 0.05  # or this share of the call
SEEN_BY_HOST_MS = 0.25  # the same limit in ms for the host's last look, which alone shows copies and work queued late
EMPTY_CALLS = 9  # calls of which the usual delay is the median
LEAD_MS = 1.0  # ms for which the device is held before a timed call
HELD_MS = (5.0, 20.0, 80.0, 400.0)  # ms, tried one after another: queueing the call must take less
SPANS, SPAN_BYTES = 8, 4096  # pieces of each output that are copied, and their bytes

_flush_buffers: dict[int, torch.Tensor] = {}
_usual: dict[int, tuple[float, float]] = {}
_span_ms = [0.0]  # ms of all the device's work in the last measurement: flushes, waits and calls
# Looked up before any candidate is loaded.
_event: Callable[..., Any] = torch.cuda.Event
_synchronize: Callable[[], None] = torch.cuda.synchronize
_current_stream: Callable[[], Any] = torch.cuda.current_stream
_make_stream: Callable[[], Any] = torch.cuda.Stream
_in_stream: Callable[[Any], Any] = torch.cuda.stream
_blas_handle: Callable[[], Any] = torch.cuda.current_blas_handle


def _driver_function(name: str) -> Callable[[], int]:
    """A function of the CUDA driver that returns a code; one that does nothing if there is none."""
    try:
        function: Callable[[], int] = getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):  # no driver, or one older than that function
        return lambda: 0
    return function


_reset_persisting = _driver_function("cuCtxResetPersistingL2Cache")


def flush_cache() -> None:
    """Evicts the current device's L2 cache by writing FLUSH_FACTOR times its size; asynchronous.

    Persisting cache lines are reset first.
    """
    device = torch.cuda.current_device()
    held = _flush_buffers.get(device)
    if held is None:
        size = FLUSH_FACTOR * torch.cuda.get_device_properties(device).L2_cache_size
        held = _flush_buffers[device] = torch.empty(max(size, 1 << 20) // 4, dtype=torch.int32, device="cuda")
    _reset_persisting()
    held.zero_()


def time_calls(call: Callable[[], Result], calls: int) -> tuple[Result, float]:
    """(result of the last call, total device time in ms) of `calls` calls, each with a cold cache. Raises ValueError
    for less than one call."""
    if calls < 1:
        raise ValueError("at least one call is timed")
    results, milliseconds = _time_kept([call] * calls, {calls - 1})
    return results[0], milliseconds


def call_each(
    model: Callable[..., Any], inputs: Sequence[Sequence[Any]], keep: int, clock: Callable[[], int]
) -> tuple[Any, int]:
    """Calls the model on each set of inputs; returns the kept call's result and ns of device time for all calls."""
    calls = [functools.partial(loading.call, model, arguments) for arguments in inputs]
    results, milliseconds = _time_kept(calls, {keep})
    return results[0], int(1e6 * milliseconds)


def time_inputs(call: Callable[..., object], inputs: Sequence[Sequence[object]], samples: int) -> list[float]:
    """Device time in ms of `samples` single calls, rotating among `inputs`, each with a cold cache."""
    milliseconds = []
    for number in range(samples):
        arguments = inputs[number % len(inputs)]
        milliseconds.append(time_calls(functools.partial(call, *arguments), 1)[1])
    return milliseconds


@dataclass(frozen=True)
class Afterwards:
    """Time in ms for which work went on after timed calls."""

    busy_ms: list[float]  # time from each call's last event until the device was idle
    seen_ms: float  # further time, after the last call, until the host had seen every stream idle


def _time_kept(calls: Sequence[Callable[[], Result]], keep: set[int]) -> tuple[list[Result], float]:
    """(kept results, total device time in ms); work that outlasts a call's last event is charged to the call."""
    usual_busy_ms, usual_seen_ms = _usual_afterwards()
    kept, elapsed_ms, afterwards = _measure(calls, keep)
    total_ms = sum(elapsed_ms)
    for own_ms, busy_ms in zip(elapsed_ms, afterwards.busy_ms, strict=True):
        hidden_ms = busy_ms - usual_busy_ms
        total_ms += hidden_ms if hidden_ms > max(HIDDEN_MS, HIDDEN_SHARE * own_ms) else 0.0
    hidden_ms = afterwards.seen_ms - usual_seen_ms
    if hidden_ms > max(SEEN_BY_HOST_MS, HIDDEN_SHARE * total_ms / len(calls)):
        total_ms += hidden_ms * len(calls)
    return kept, total_ms


def _measure(calls: Sequence[Callable[[], Result]], keep: set[int]) -> tuple[list[Result], list[float], Afterwards]:
    """(kept results, ms between the events of each call, work after the calls). Flushes the cache before each call."""
    events = [[_event(enable_timing=True) for _ in range(3)] for _ in calls]
    first, idle = _event(enable_timing=True), _event(enable_timing=True)
    kept: list[Result] = []
    _synchronize()
    stream = _current_stream()
    first.record(stream)
    for number, (call, (begin, end, free)) in enumerate(zip(calls, events, strict=True)):
        flush_cache()
        gpu_kernels().hold(LEAD_MS)  # directly before the call, so that no stream can get ahead of it
        begin.record(stream)
        result = call()
        end.record(stream)
        gpu_kernels().wait_for_all()
        free.record(stream)
        if number in keep:
            kept.append(result)
        del result  # its memory is free for the next call, as in any loop
    _synchronize()  # every stream
    idle.record(stream)
    _synchronize()
    _span_ms[0] = first.elapsed_time(idle)
    elapsed_ms = [begin.elapsed_time(end) for begin, end, _ in events]
    busy_ms = [end.elapsed_time(free) for _, end, free in events]
    return kept, elapsed_ms, Afterwards(busy_ms, events[-1][2].elapsed_time(idle))


def last_span_ns() -> int:
    """Ns from the first to the last work on the device in the last measurement."""
    return int(1e6 * _span_ms[0])


def _usual_afterwards() -> tuple[float, float]:
    """Median `busy_ms` and `seen_ms` of empty calls; measured before a candidate is loaded."""
    device = torch.cuda.current_device()
    if device not in _usual:
        found = [_measure([lambda: None], {0})[2] for _ in range(EMPTY_CALLS)]
        busy_ms = statistics.median(one.busy_ms[0] for one in found)
        _usual[device] = busy_ms, statistics.median(one.seen_ms for one in found)
    return _usual[device]


def rehearse() -> None:
    """Runs all steps of a timing once, so that the context exists and the driver has loaded their kernels.

    Its measurements are dropped: the device may be busy.
    """
    tensor = torch.zeros(1 << 10, device="cuda")
    _blas_handle()
    timed_calls.elements([tensor], [[0]])
    torch.empty_like(tensor).copy_(tensor)
    _measure([tensor.clone], {0})


def settle() -> None:
    """Prepares later measurements, before a candidate is loaded: the flush buffer, and the usual delay after a call."""
    gpu_kernels()
    flush_cache()
    _usual_afterwards()


def find_unfinished(call: Callable[[], list[torch.Tensor]], others: Sequence[torch.Tensor]) -> UnfinishedOutputs:
    """Finds outputs of a call that are not finished when a copy in the caller's stream reads them.

    Returns {"changed": numbers of outputs, "held": true if the device was held until the copy was queued}. If it was
    held, no kernel can have finished in time by luck. Outputs of an earlier call are overwritten first, so that
    reused memory does not look finished; the memory of `others` is left alone.
    """
    spared = [*others, *timed_calls.find_kept(call)]
    blank = torch.zeros(SPAN_BYTES, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")
    changed, is_held = list[int](), False
    for held_ms in HELD_MS:
        outputs = [*call(), *call()]  # covers all memory in which the next call's outputs may lie
        _synchronize()
        timed_calls.overwrite(outputs, spared)
        room = _page_locked(1 + SPANS * len(outputs))
        outputs.clear()
        if not room:
            break
        changed, is_held = _copy_while_held(call, held_ms, room, blank)
        if changed or is_held:
            break
    return {"changed": changed, "held": is_held}


def _page_locked(count: int) -> list[torch.Tensor]:
    """`count` pieces of page-locked memory, which copies in a stream need; none if the system gives none."""
    try:
        shape = (count, SPAN_BYTES)
        return list(torch.empty(shape, dtype=torch.uint8, pin_memory=torch.cuda.is_available()))
    except RuntimeError:
        return []


def _copy_while_held(
    call: Callable[[], list[torch.Tensor]], held_ms: float, room: Sequence[torch.Tensor], blank: torch.Tensor
) -> tuple[list[int], bool]:
    """(outputs that differ between a copy in the caller's stream and one after all work, True if the device was held).

    "Held" means until that copy was queued, and that copies could be made meanwhile. `room` is page-locked memory
    for the copies, allocated before because that fails while the device works.
    """
    holder, begun, ended = _make_stream(), _event(), _event()
    _synchronize()
    with _in_stream(holder):
        begun.record(holder)
        gpu_kernels().hold(held_ms)
        ended.record(holder)
    begun.synchronize()
    room[0].copy_(blank, non_blocking=True)
    _current_stream().synchronize()
    can_copy = not ended.query() and not gpu_kernels().refused
    outputs = [timed_calls.bytes_of(tensor) for tensor in call()]
    pieces = [(number, piece) for number, flat in enumerate(outputs) for piece in _pieces(flat)]
    copies = [(number, piece, copy[: piece.numel()]) for (number, piece), copy in zip(pieces, room[1:], strict=False)]
    for _, piece, copy in copies:
        copy.copy_(piece, non_blocking=True)
    is_held = can_copy and not ended.query()
    _synchronize()
    return sorted({number for number, piece, copy in copies if not torch.equal(copy, piece.cpu())}), is_held


def _pieces(flat: torch.Tensor) -> list[torch.Tensor]:
    """The first and the last bytes of a tensor, and some random ones between them."""
    room = flat.numel() - SPAN_BYTES
    if room <= 0:
        return [flat] if flat.numel() else []
    starts = {0, room, *(random.SystemRandom().randrange(room) for _ in range(SPANS - 2))}
    return [flat[start : start + SPAN_BYTES] for start in sorted(starts)]
