"""Whether a process works while it should be waiting: its CPU time between two commands. Free of torch.

A call is over when it returns. OpenMP threads that are parked, a CUDA context, an interpreter that frees memory use
next to nothing; work that was put off to a thread uses what it needs.
"""

from __future__ import annotations

import time

from foundry.tools.process_native import cpu_ns

ONE_GAP_MS = 20.0  # CPU time in a single gap
ALL_GAPS_MS = 10.0  # CPU time in all gaps together, and at the same time
ALL_GAPS_SHARE = 0.25  # this share of their length
MIN_GAPS = 3


class Idleness:
    """CPU time of one process, by the kernel's account, in the gaps between commands."""

    def __init__(self) -> None:
        self.busy_ms = 0.0
        self.gap_ms = 0.0
        self.gaps = 0
        self._pid = 0
        self._start = (0, 0)

    def begin(self, pid: int) -> None:
        """The process has answered and should wait now; `pid` 0: it may do what it likes."""
        used = _cpu_ns(pid) if pid else 0
        self._pid = pid if used else 0
        self._start = (used, time.monotonic_ns())

    def end(self) -> str:
        """The gap is over; says what was wrong with it or those before, or ""."""
        if not self._pid:
            return ""
        busy = 1e-6 * (_cpu_ns(self._pid) - self._start[0])
        gap = 1e-6 * (time.monotonic_ns() - self._start[1])
        self._pid = 0
        self.busy_ms += busy
        self.gap_ms += gap
        self.gaps += 1
        if busy > ONE_GAP_MS:
            return f"the process used {busy:.0f} ms of CPU time in the {gap:.0f} ms after forward had returned"
        is_much = self.busy_ms > ALL_GAPS_MS and self.busy_ms > ALL_GAPS_SHARE * self.gap_ms
        if is_much and self.gaps >= MIN_GAPS:
            return (
                f"the process used {self.busy_ms:.0f} ms of CPU time in {self.gaps} pauses of {self.gap_ms:.0f} ms "
                "altogether, after forward had returned"
            )
        return ""


def _cpu_ns(pid: int) -> int:
    try:
        return cpu_ns(pid)
    except OSError:  # it ended, or is hidden by a namespace: the next command finds out
        return 0
