"""Device time: every call cold, and work on other streams charged to the call that started it."""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from foundry.tools.grade.runner import cuda_events
from foundry.tools.grade.runner.cuda_events import call_each, settle, time_calls

make_event: Callable[..., Any] = torch.cuda.Event
make_stream: Callable[..., Any] = torch.cuda.Stream
occupy: Callable[..., Any] = torch.cuda._sleep  # cycles
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")


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


Where = Literal["in sight", "beside", "behind"]


class Multiplication:
    """A product on the current stream or, unseen by its events, on one of its own: at once, or after the call."""

    def __init__(self, size: int, where: Where) -> None:
        self.factor = torch.randn(size, size, device="cuda")
        self.where, self.stream = where, make_stream()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "in sight":
            return x @ self.factor
        if self.where == "behind":
            x.add_(0.0)
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return x @ self.factor


def median_ms(call: Callable[[], Any]) -> float:
    return statistics.median(time_calls(call, 1)[1] for _ in range(15))


@pytest.mark.gpu
@needs_gpu
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
