"""Limits of a task: seconds for its import, inputs and forwards, memory of the machine and of the GPU. Free of torch.

The limits of time only end a task that hangs; they decide nothing about a candidate. A reference that was measured
to be slow gets more.
"""

from __future__ import annotations

import os
from typing import Literal

from foundry.knowledge.errors import UsageError
from foundry.tools.process.child import machine_memory_bytes
from foundry.tools.process.messages import Message

SECONDS = "FOUNDRY_TASK_SECONDS"
GIGABYTES = "FOUNDRY_TASK_GB"
GPU_GIGABYTES = "FOUNDRY_GPU_GB"
DEFAULT_SECONDS = 60.0
MEMORY_SHARE = 0.5  # share of the machine's memory for a process that runs the task
# Seconds for requests about a task whose forward takes milliseconds.
CAPTURE_S = 150.0
BASELINE_S = 180.0
JUDGE_S = 900.0
CONTEST_S = 1800.0
RUNNER_CPU_S = 3600  # CPU seconds of one runner
# Forwards of the reference that each request makes, doubled for float64 and busy cores.
CHECKED = 12
TRACED = 40
TIMED = 80
JUDGED = 800
COMPARED = 160


class FirstForward(Message):
    """An interim message of intake, before its answer: seconds of the first forward."""

    says: Literal["first forward"] = "first forward"
    seconds: float


_INTERIM = b'{"says":"first forward"'


def task_seconds() -> float:
    """Seconds for importing the file, its inputs and a few forwards: $FOUNDRY_TASK_SECONDS. Raises UsageError."""
    return _positive(SECONDS, DEFAULT_SECONDS)


def task_memory_bytes() -> int:
    """Memory of a process that runs the task: $FOUNDRY_TASK_GB, or half of the machine's. Raises UsageError."""
    return int(1e9 * _positive(GIGABYTES, MEMORY_SHARE * machine_memory_bytes() / 1e9))


def gpu_memory_bytes(free_bytes: int) -> int:
    """Bytes of a GPU's free memory for all processes of a task: $FOUNDRY_GPU_GB at most. Raises UsageError."""
    return min(free_bytes, gpu_limit_bytes() or free_bytes)


def gpu_limit_bytes() -> int:
    """$FOUNDRY_GPU_GB in bytes, 0 if it is not set. Raises UsageError."""
    return int(1e9 * _positive(GPU_GIGABYTES, 0.0))


def check_limits() -> None:
    """Raises UsageError for a limit that is not a positive number, before a process is started with it."""
    task_seconds()
    task_memory_bytes()
    gpu_memory_bytes(0)


class TimeLimits:
    """Seconds for each request. `forward_s`: one forward of the reference, as intake measured it; 0 until then."""

    def __init__(self) -> None:
        """No forward has been timed yet."""
        self.forward_s = 0.0

    def read_measurement(self, text: bytes) -> float | None:
        """Takes a measurement from an interim message of intake; returns the seconds that the request may still take.

        None for any other message.
        """
        if not text.startswith(_INTERIM):
            return None
        self.forward_s = max(self.forward_s, FirstForward.model_validate_json(text).seconds)
        return self.intake_s

    @property
    def intake_s(self) -> float:
        """Seconds for the task's import, inputs and forwards at intake."""
        return task_seconds() + CHECKED * self.forward_s

    @property
    def capture_s(self) -> float:
        """Seconds for a capture: CAPTURE_S, the task's own, or TRACED forwards, the largest of them."""
        return max(CAPTURE_S, task_seconds(), TRACED * self.forward_s)

    @property
    def baseline_s(self) -> float:
        """Seconds for a baseline: BASELINE_S or TIMED forwards, the larger one."""
        return max(BASELINE_S, TIMED * self.forward_s)

    @property
    def judge_s(self) -> float:
        """Seconds for one request about a candidate: all questions of a proof, or one group of a timing."""
        return max(JUDGE_S, JUDGED * self.forward_s)

    @property
    def contest_s(self) -> float:
        """Seconds for a baseline comparison: CONTEST_S or COMPARED forwards, the larger one."""
        return max(CONTEST_S, COMPARED * self.forward_s)

    def runner_cpu_s(self, threads: int) -> int:
        """CPU seconds of one process that runs a model with so many threads."""
        return max(RUNNER_CPU_S, int(JUDGED * self.forward_s) * threads)

    @property
    def measured(self) -> str:
        """The measured time of a forward in words for a message; "" for a quick reference."""
        return f"one forward of the reference took {self.forward_s:.3g} s" if self.forward_s >= 0.5 else ""


def _positive(name: str, default: float) -> float:
    """A positive number from an environment variable, `default` if it is not set. Raises UsageError for another
    value."""
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise UsageError(f"{name}={text} is not a limit", "set a positive number")
    return value
