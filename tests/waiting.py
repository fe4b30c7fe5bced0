"""Waiting in tests: for a fact that a machine whose cores are shared with other work makes true late."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

PATIENCE_S = 120.0  # what takes longer hangs: nothing that tests wait for takes more than seconds on a quiet machine
POLL_S = 0.05

Fact = TypeVar("Fact")


def until(fact: Callable[[], Fact | None], what: str, limit_s: float = PATIENCE_S) -> Fact:
    """Waits for a fact to be true and returns it."""
    deadline = time.monotonic() + limit_s
    while True:
        if found := fact():
            return found
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:g} s"
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, also where nobody has asked yet how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
