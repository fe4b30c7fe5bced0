"""Records one call by PyTorch's dispatcher and profiler, and its peak memory. Runs in a runner.

Imports torch inside its functions.
"""

from __future__ import annotations

import gc
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foundry.tools.audit.acts.observed import Launch, OperatorRow
from foundry.tools.grade.messages.runner import MeanTime
from foundry.tools.task.flops import known_flops
from foundry.tools.task.operators import COPIES, FREE, OF_VIEWS, OWN, TAKEN

if TYPE_CHECKING:
    import torch


_HERE = "foundry: this thread"
# Least time of a hidden operator: microseconds, and share of the call.
HIDDEN_US, HIDDEN_SHARE = 20.0, 0.1
TIMED_CALLS, TIMED_US = 5, 50.0  # calls that are timed; us below which operators' time is only the profiler's


def record_ops(run: Callable[[], Any]) -> list[OperatorRow]:
    """Calls `run` and returns the operators that PyTorch's dispatcher saw, one row each with calls, FLOPs and bytes.

    Rows are {"op": "aten.mm.default", "calls": n, "flops": f, "bytes": b}, heaviest first; bytes are those of tensor
    arguments and results. Runs in the candidate's worker; operators called from C++ and other threads of autograd
    are seen as well. The result of `run` is dropped.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    rows: dict[str, OperatorRow] = {}

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """Runs an operator and adds its calls, bytes and FLOPs to its row; looks inside a candidate's own
            operator."""
            inside: list[OperatorRow] | None = None
            if func.namespace in TAKEN:
                result = func(*args, **(kwargs or {}))
            else:
                result, inside = _looked_into(lambda: func(*args, **(kwargs or {})))
            name = str(func) if inside is None else f"{OWN}{func}"
            row = rows.setdefault(name, {"op": name, "calls": 0, "flops": 0, "bytes": 0})
            inputs, outputs = _tensors([*args, *(kwargs or {}).values()]), _tensors([result])
            row["calls"] += 1
            row["bytes"] += sum(tensor.numel() * tensor.element_size() for tensor in [*inputs, *outputs])
            kind = func._schema.name.split("::")[-1] if func.namespace in TAKEN else ""
            row["flops"] += _flops(kind, args, kwargs or {}, [t.shape for t in inputs], [t.shape for t in outputs])
            if inside is not None:  # the candidate's own operator: PyTorch's operators inside it count
                for part in inside:
                    _add(rows.setdefault(part["op"], {"op": part["op"], "calls": 0, "flops": 0, "bytes": 0}), part)
            return result

    with torch.no_grad(), Recorder():  # type: ignore[no-untyped-call]
        run()
    return sorted(rows.values(), key=lambda row: -(row["flops"] + row["bytes"]))


def _add(row: OperatorRow, part: OperatorRow) -> None:
    """Adds the counts of one row to another."""
    row["calls"] += part["calls"]
    row["flops"] += part["flops"]
    row["bytes"] += part["bytes"]


def _looked_into(run: Callable[[], Any]) -> tuple[Any, list[OperatorRow] | None]:
    """(result of an operator that the candidate registered, PyTorch's operators inside it; None if they cannot be
    seen).

    The dispatcher's mode is off inside; its profiler is not.
    """
    import torch

    try:
        with torch.autograd.profiler.profile(record_shapes=True) as seen:
            result = run()
        events = list(seen.function_events or ())
    except RuntimeError:
        return run(), None
    rows: list[OperatorRow] = []
    for event in events:
        namespace, _, kind = event.name.partition("::")
        shapes = [shape for shape in event.input_shapes or () if shape]
        if kind and namespace in TAKEN and not event.cpu_children:
            size = sum(math.prod(shape) for shape in shapes)
            flops = _flops(kind, (), {}, shapes, shapes[:1])  # its other arguments are not recorded
            rows.append({"op": f"{namespace}.{kind}.inside", "calls": 1, "flops": flops, "bytes": 8 * size})
    return result, rows


def _flops(kind: str, arguments: Any, keywords: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """FLOPs of a PyTorch operator.

    One for each element read if `kind` is "" (the candidate's own operator, whatever its name) or arguments are
    unusual.
    """
    if kind:
        return known_flops(kind, arguments, keywords, inputs, outputs)
    return sum(int(math.prod(shape)) for shape in inputs)


def _tensors(items: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of arguments, lists and tuples in them included."""
    import torch

    found: list[torch.Tensor] = []
    for item in items:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, list | tuple):
            found.extend(_tensors(item))
    return found


def record_beside(run: Callable[[], Any]) -> list[str]:
    """PyTorch's operators on other threads than this one, which a dispatch mode cannot see."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile, record_function

    try:
        everywhere = _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return ["what this version of PyTorch cannot show"]
    with profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as seen, record_function(_HERE):
        run()
    events = list(seen.events() or ())
    here = {event.thread for event in events if event.name == _HERE}
    names = [event.name.partition("::") for event in events if event.thread not in here]
    return sorted({f"{namespace}.{kind}" for namespace, _, kind in names if kind and namespace in TAKEN})


def record_hidden(run: Callable[[], Any], dispatched: Sequence[OperatorRow], clock: Callable[[], int]) -> list[str]:
    """PyTorch's operators on this thread that take a good part of a call but are missing in `dispatched`.

    The dispatcher can be told to look away; the old profiler used here cannot. `dispatched` are its rows of such a
    call.
    """
    from torch.autograd.profiler import profile

    known = {"::".join(row["op"].split(".")[:2]) for row in dispatched}
    begin = clock()
    with profile(use_kineto=False) as seen:
        run()
    least_us = max(HIDDEN_US, HIDDEN_SHARE * (clock() - begin) / 1e3)
    found: set[str] = set()

    def look(event: Any) -> bool:
        """True if the dispatcher saw this event or one inside it; else keeps the event's name if it is long."""
        namespace, _, kind = event.name.partition("::")
        if event.name in known or namespace not in TAKEN:
            return True
        if any([look(inner) for inner in event.cpu_children]):
            return True
        if event.cpu_time_total >= least_us:
            found.add(f"{namespace}.{kind}")
        return False

    for event in seen.function_events or ():
        if event.cpu_parent is None:
            look(event)
    return sorted(found)


def time_operators(run: Callable[[], Any], clock: Callable[[], int]) -> tuple[float, list[tuple[str, float]]]:
    """(share of a call's time in PyTorch's computing operators on this thread, their parts of it, longest first).

    The middle share of TIMED_CALLS calls under PyTorch's profiler. A call's time is the shorter of its own and that
    of a call without the profiler just before it: a busy neighbour then slows both parts of a share, and a candidate
    that is slow on purpose under the profiler gains nothing. Operators that take less than TIMED_US do not count.
    """
    from torch.autograd.profiler import profile

    found = list[tuple[float, dict[str, float]]]()
    for _ in range(TIMED_CALLS):
        plain_us = _took_us(run, clock)
        with profile(use_kineto=False) as seen:
            whole_us = min(plain_us, _took_us(run, clock))
        times = dict[str, float]()
        for event in seen.function_events or ():
            if event.cpu_parent is None:
                _add_times(event, times)
        taken_us = sum(times.values())
        is_long = whole_us > 0.0 and taken_us >= TIMED_US
        found.append((min(1.0, taken_us / whole_us) if is_long else 0.0, times))
    share, times = sorted(found, key=lambda one: one[0])[TIMED_CALLS // 2]
    whole_us = sum(times.values())
    return share, [(name, times[name] / whole_us) for name in sorted(times, key=lambda name: -times[name])]


def _took_us(run: Callable[[], Any], clock: Callable[[], int]) -> float:
    """Microseconds of one call."""
    begin = clock()
    run()
    return (clock() - begin) / 1e3


def _add_times(event: Any, times: dict[str, float]) -> None:
    """Adds the us of PyTorch's computing operators in an event; the whole event if it is one."""
    namespace, _, kind = event.name.partition("::")
    if kind and namespace in TAKEN and kind not in FREE | COPIES | OF_VIEWS:
        name = f"{namespace}.{kind}"
        times[name] = times.get(name, 0.0) + float(event.cpu_time_total)
        return
    for inner in event.cpu_children:
        _add_times(inner, times)


def record_launches(run: Callable[[], Any]) -> list[Launch]:
    """(name, microseconds, blocks, threads a block) of every kernel, copy and fill of one call in order, from CUPTI.

    0 blocks for a copy. Empty if the profiler sees no device.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        return read_trace(path.read_text(encoding="utf-8", errors="replace"))


def read_trace(text: str) -> list[Launch]:
    """Rows [name, microseconds, blocks, threads] of kernels, copies and fills in a profiler's trace, in order of
    time."""
    rows: list[tuple[float, Launch]] = []
    for event in json.loads(text).get("traceEvents", ()):
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and float(event.get("dur", 0)) > 0:
            facts = event.get("args", {})
            blocks, threads = (math.prod(facts.get(name, ())) if name in facts else 0 for name in ("grid", "block"))
            rows.append((float(event.get("ts", 0)), (str(event["name"]), float(event["dur"]), blocks, threads)))
    return [launch for _, launch in sorted(rows)]


def held_bytes(inputs: Sequence[torch.Tensor], model: torch.nn.Module, ground_bytes: int, device: torch.device) -> int:
    """Bytes of inputs and state; on a GPU of all that PyTorch held at most since `forget_peak`, beyond the ground."""
    from foundry.tools.process.torch_device import torch_device_of

    side = torch_device_of(device)
    if side.is_host:
        return sum(item.nbytes for item in [*inputs, *model.state_dict().values()])
    return sum(item.nbytes for item in inputs) + side.peak_bytes() - ground_bytes  # inputs are not PyTorch's memory


def forget_peak(device: torch.device) -> None:
    """Gives free memory back, so that the next call's peak is its own."""
    from foundry.tools.process.torch_device import torch_device_of

    gc.collect()
    side = torch_device_of(device)
    side.release()
    side.forget_peak()


def profiled(
    run: Callable[[], Any], seconds: float, clock: Callable[[], int], renew: Callable[[], None], *, on_gpu: bool
) -> MeanTime:
    """Calls `run` for a while, each time after `renew`: the mean time of a call in ms, and on a GPU what the device did
    in one more call. Runs in a candidate's process: what comes of it is a diagnosis, never a verdict."""
    run()
    begin, calls, spent_ns = clock(), 0, 0
    while not calls or (clock() - begin) < 1e9 * seconds:
        renew()
        start = clock()
        run()
        calls, spent_ns = calls + 1, spent_ns + clock() - start
    return MeanTime(spent_ns / 1e6 / calls, calls, record_launches(run) if on_gpu and seconds else [])
