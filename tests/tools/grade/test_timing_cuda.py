"""Device time: every call cold, work on other streams charged to the call that started it and awaited by its caller."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import statistics
import subprocess
import sys
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from foundry.tools.grade.runner import cuda_events, timed_calls
from foundry.tools.grade.runner.cuda_events import call_each, find_unfinished, settle, time_calls

make_event: Callable[..., Any] = torch.cuda.Event
make_stream: Callable[..., Any] = torch.cuda.Stream
occupy: Callable[..., Any] = torch.cuda._sleep  # cycles
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
alone = pytest.mark.skipif(
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1, reason="needs the GPU to itself: run it without -n"
)


def test_pieces_of_an_output_are_its_first_and_last_bytes_and_some_between() -> None:
    flat = torch.arange(100_000, dtype=torch.float32).view(torch.uint8)
    pieces = cuda_events._pieces(timed_calls.bytes_of(flat.view(torch.float32).reshape(1000, 100).t()))
    assert torch.equal(pieces[0], flat[:4096]) and torch.equal(pieces[-1], flat[-4096:])
    assert 3 <= len(pieces) <= cuda_events.SPANS and {piece.numel() for piece in pieces} == {4096}
    assert [piece.numel() for piece in cuda_events._pieces(flat[:100])] == [100] and not cuda_events._pieces(flat[:0])


class Blocks:
    """Memory as PyTorch's allocator hands it out: the first free block, with its old contents."""

    def __init__(self) -> None:
        self.blocks = [torch.zeros(3000) for _ in range(4)]
        self.free = set(range(4))

    def take(self) -> torch.Tensor:
        number = min(self.free)
        self.free.remove(number)
        tensor = self.blocks[number][:]
        weakref.finalize(tensor, self.free.add, number)
        return tensor


@pytest.mark.parametrize(("spared", "last"), [(None, 2.0), ([], math.nan)])
def test_a_call_that_leaves_the_last_answer_where_it_was_shows(spared: list[torch.Tensor] | None, last: float) -> None:
    blocks, calls, ticks = Blocks(), itertools.count(), itertools.count()

    def call() -> list[torch.Tensor]:
        tensor = blocks.take()
        return [tensor if next(calls) > 9 else tensor.fill_(2.0)]  # then it trusts that nobody wrote there since

    outputs = timed_calls.call_in_a_row(call, 40e-9, lambda: next(ticks), spared)
    assert bool(outputs[0].isnan().all()) == math.isnan(last)


def test_on_a_gpu_many_calls_are_queued_before_one_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that asks how long ago the last call was finds calls without a pause between them."""
    ticks, done, looks = itertools.count(), list[int](), list[int]()
    compare = torch.equal

    def look(one: torch.Tensor, other: torch.Tensor) -> bool:
        looks.append(len(done))
        return compare(one, other)

    monkeypatch.setattr(torch, "equal", look)

    def call() -> list[torch.Tensor]:
        done.append(1)
        return [torch.ones(2)]

    held = list[float]()
    timed_calls.call_in_a_row(call, 150e-9, lambda: next(ticks), [], held.append)
    assert len(held) >= 4 and min(held) > 0, "whoever queues several calls keeps the GPU busy meanwhile"
    between = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert between[:4] == [2, 4, 8, 16] and set(between[4:]) == {timed_calls.QUEUED_CALLS}
    del done[:], looks[:]
    timed_calls.call_in_a_row(call, 100e-9, lambda: next(ticks), None)
    assert {later - earlier for earlier, later in itertools.pairwise(looks)} == {1}, "on a CPU each answer is compared"


def test_what_is_given_out_each_time_and_what_is_spared_is_not_overwritten() -> None:
    ticks, table, given = itertools.count(), torch.ones(2), torch.ones(2)
    outputs = timed_calls.call_in_a_row(lambda: [table, given[1:]], 9e-9, lambda: next(ticks), [given])
    assert torch.equal(torch.cat(outputs), torch.ones(3))


class SimulatedDevice:
    """Streams as far as `find_unfinished` sees them: the caller's runs at once, and others when the device is idle."""

    refused = False

    def __init__(self) -> None:
        self.others: list[Callable[[], Any]] = []
        self.is_held = False

    def hold(self, milliseconds: float) -> None:
        self.is_held = True

    def synchronize(self) -> None:
        for work in self.others:
            work()
        self.others, self.is_held = [], False

    def stream(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None)

    def event(self) -> Any:
        return SimpleNamespace(record=lambda _: None, synchronize=lambda: None, query=lambda: not self.is_held)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("caller's stream", {"changed": [], "held": True}),
        ("own stream", {"changed": [1], "held": True}),
        ("own stream, waited for by the host", {"changed": [], "held": False}),
    ],
)
def test_an_output_that_comes_later_is_found_although_its_memory_held_the_last_answer(
    monkeypatch: pytest.MonkeyPatch, where: str, found: dict[str, Any]
) -> None:
    device, blocks = SimulatedDevice(), Blocks()
    for name, part in {
        "_make_stream": device.stream,
        "_current_stream": device.stream,
        "_in_stream": lambda stream: contextlib.nullcontext(),
        "_event": device.event,
        "_synchronize": device.synchronize,
        "gpu_kernels": lambda: device,
    }.items():
        monkeypatch.setattr(cuda_events, name, part)

    def call() -> list[torch.Tensor]:
        output = blocks.take()
        work = functools.partial(torch.Tensor.fill_, output.detach(), 7.0)
        work() if where == "caller's stream" else device.others.append(work)
        if "host" in where:
            device.synchronize()
        return [torch.ones(4), output]

    assert cuda_events.find_unfinished(call, []) == found


def test_without_a_driver_there_is_nothing_to_reset() -> None:
    assert cuda_events._driver_function("noSuchFunctionInAnyDriver")() == 0


@pytest.mark.gpu
@needs_gpu
def test_the_graders_own_kernels_run_in_a_process_that_has_done_nothing_else() -> None:
    program = (
        "from foundry.tools.grade.runner.gpu_kernels import gpu_kernels as of; "
        "print(of().refused, of().fill_shared_memory(1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"], done.stderr


Where = Literal["in sight", "beside", "behind", "joined"]


class Multiplication:
    """A product on the current stream or, unseen by its events, on one of its own: at once, or after the call."""

    def __init__(self, size: int, where: Where) -> None:
        self.factor = torch.randn(size, size, device="cuda")
        self.where, self.stream = where, make_stream()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "in sight":
            return x @ self.factor
        if self.where != "beside":
            x.add_(0.0)
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            product = x @ self.factor
        if self.where == "joined":
            torch.cuda.current_stream().wait_stream(self.stream)
        return product


def median_ms(call: Callable[[], Any]) -> float:
    return statistics.median(time_calls(call, 1)[1] for _ in range(15))


@pytest.mark.gpu
@needs_gpu
@alone
@pytest.mark.parametrize("size", [1024, 4096])
@pytest.mark.parametrize("where", ["beside", "behind"])
def test_work_on_another_stream_is_charged(size: int, where: Where) -> None:
    settle()
    x = torch.randn(size, size, device="cuda")
    honest, hiding = Multiplication(size, "in sight"), Multiplication(size, where)
    for model in (honest, hiding):
        model(x)
    shown, hidden = median_ms(lambda: honest(x)), median_ms(lambda: hiding(x))
    assert hidden > 0.8 * shown
    assert median_ms(lambda: None) < 0.005


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("where", "changed"), [("in sight", []), ("joined", []), ("beside", [0]), ("behind", [0])])
def test_an_output_that_the_callers_stream_does_not_wait_for_is_found(where: Where, changed: list[int]) -> None:
    settle()
    x = torch.randn(1024, 1024, device="cuda")
    model = Multiplication(1024, where)
    for _ in range(3):
        model(x)
    assert find_unfinished(lambda: [model(x)], [x]) == {"changed": changed, "held": True}


@pytest.mark.gpu
@needs_gpu
@alone
def test_an_honest_short_call_is_not_charged_for_a_slow_host() -> None:
    settle()
    x = torch.randn(1 << 20, device="cuda")
    samples = [time_calls(lambda: x.add_(1.0), 1)[1] for _ in range(400)]
    assert sum(sample > 1.4 * statistics.median(samples) for sample in samples) <= 4  # one in a hundred: 3 were seen


@pytest.mark.gpu
@needs_gpu
def test_each_call_has_inputs_of_its_own_and_the_chosen_result_is_kept() -> None:
    settle()
    inputs = [[torch.full((1024,), float(number), device="cuda")] for number in range(4)]
    result, nanoseconds = call_each(lambda x: x + 1, inputs, 2, lambda: 0)
    assert float(result[0]) == 3.0 and nanoseconds > 1000


@pytest.mark.gpu
@needs_gpu
def test_the_cache_is_cold() -> None:
    settle()
    x = torch.randn(4 << 20, device="cuda")  # 16 MB: fits the cache of any device of the last years
    total = torch.empty((), device="cuda")
    reduce = functools.partial(torch.sum, x, dim=0, out=total)
    cold = median_ms(reduce)
    begin, end = make_event(enable_timing=True), make_event(enable_timing=True)
    reduce()
    occupy(20_000_000)  # 10 ms in which the host gets ahead: the launches are not what is timed
    begin.record()
    for _ in range(20):
        reduce()
    end.record()
    torch.cuda.synchronize()
    assert cold > 1.2 * begin.elapsed_time(end) / 20
