"""Buffers that forward updates are held to the arithmetic of their own type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foundry.tools.grade.judge.limits import buffer_limit, uses_tf32
from foundry.tools.grade.questions.task_cases import cases_of
from foundry.tools.grade.questions.trial import Trial, UpdatedBuffer
from foundry.tools.protocol import comparison
from foundry.tools.protocol.rules import AS_GIVEN, RANDOMISED, OutputError, accepts
from foundry.tools.task.file import read_task

TASK = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(16, momentum=MOMENTUM)
        self.wide = torch.nn.BatchNorm1d(16, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += x.shape[0]
        return self.norm(x), self.wide(x.double())


def get_inputs():
    return [torch.randn(32, 16, 1024)]
"""
N = 32 * 1024


@pytest.fixture(params=["0.1", "None"])
def trials(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Trial]]:
    (tmp_path / "task.py").write_text(TASK.replace("MOMENTUM", request.param))
    (case,) = cases_of(read_task(tmp_path / "task.py"), [3], "cpu", only_first=True)
    with torch.no_grad():
        given = case.trial(AS_GIVEN, 1)
        case.randomise(2, "randomised")
        yield [given, case.trial(RANDOMISED, 2)]
    case.close()


def is_right(found: torch.Tensor, buffer: UpdatedBuffer) -> bool:
    return accepts(comparison.measure(found, buffer.expected), buffer_limit(buffer, buffer.ieee))


def test_a_variance_without_bessels_correction_is_wrong(trials: list[Trial]) -> None:
    for trial in trials:
        buffers = {item.name: item for item in trial.buffers}
        x = trial.inputs.value()[0]
        biased, unbiased = (x.double().var((0, 2), correction=correction) for correction in (0, 1))
        for name, dtype in (("norm.running_var", torch.float32), ("wide.running_var", torch.float64)):
            buffer = buffers[name]
            share = 1.0 if buffer.share > 0.99 else 0.1
            wrong = buffer.expected.truth + share * (biased - unbiased)
            assert is_right(buffer.expected.truth.to(dtype), buffer)
            assert not is_right(wrong.to(dtype), buffer), (name, buffer.share)


def test_a_serial_sum_in_float32_is_right_for_float32_and_wrong_for_float64(trials: list[Trial]) -> None:
    buffers = {item.name: item for item in trials[0].buffers}
    x = trials[0].inputs.value()[0].transpose(0, 1).reshape(16, -1)
    mean = x.cumsum(1)[:, -1] / N
    share = 0.1 if buffers["norm.running_var"].share < 0.99 else 1.0
    assert is_right(share * mean, buffers["norm.running_mean"])
    assert not is_right(0.1 * mean.double(), buffers["wide.running_mean"])


def test_counters_are_exact_and_no_cpu_has_tf32(trials: list[Trial]) -> None:
    buffers = {item.name: item for item in trials[0].buffers}
    seen = buffers["seen"]
    assert is_right(seen.expected.truth, seen) and not is_right(seen.expected.truth + 1, seen)
    assert not any(uses_tf32(item, trials[0]) for item in trials[0].buffers)


def test_tf32_is_granted_where_pytorchs_products_use_it(trials: list[Trial]) -> None:
    (mean,) = (item for item in trials[0].buffers if item.name == "norm.running_mean")
    on_gpu = replace(trials[0], tf32=trials[0].ieee)
    assert not uses_tf32(mean, on_gpu)
    assert uses_tf32(replace(mean, tf32=OutputError(1e-5, 0.1)), on_gpu)
