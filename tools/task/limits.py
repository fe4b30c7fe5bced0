"""How many seconds a task may take for its import, inputs and first forwards, and how much memory it may need, the
machine's and the GPU's."""

from __future__ import annotations

import os

from foundry.knowledge.errors import UsageError
from foundry.tools.process.child import machine_memory_bytes

SECONDS = "FOUNDRY_TASK_SECONDS"
GIGABYTES = "FOUNDRY_TASK_GB"
GPU_GIGABYTES = "FOUNDRY_GPU_GB"
DEFAULT_SECONDS = 60.0
MEMORY_SHARE = 0.5  # of the machine's, for a process that runs the task


def task_seconds() -> float:
    """Seconds for importing the file, its inputs and a few forwards: $FOUNDRY_TASK_SECONDS. Raises UsageError."""
    return _positive(SECONDS, DEFAULT_SECONDS)


def task_memory_bytes() -> int:
    """Memory of a process that runs the task: $FOUNDRY_TASK_GB, or half of the machine's. Raises UsageError."""
    return int(1e9 * _positive(GIGABYTES, MEMORY_SHARE * machine_memory_bytes() / 1e9))


def gpu_memory_bytes(free_bytes: int) -> int:
    """What all processes of a task may take of a GPU's free memory: $FOUNDRY_GPU_GB at most. Raises UsageError."""
    return min(free_bytes, gpu_limit_bytes() or free_bytes)


def gpu_limit_bytes() -> int:
    """$FOUNDRY_GPU_GB in bytes, 0 where it is not set. Raises UsageError."""
    return int(1e9 * _positive(GPU_GIGABYTES, 0.0))


def check_limits() -> None:
    """Raises UsageError for a limit that is not a positive number, before a process is started under it."""
    task_seconds()
    task_memory_bytes()
    gpu_memory_bytes(0)


def _positive(name: str, default: float) -> float:
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
