"""Whether a process works while it should be waiting: its CPU time between two commands. Free of torch.

A call is over when it returns. OpenMP threads that are parked, a CUDA context, an interpreter that frees memory use
next to nothing; work that was put off to a thread uses what it needs.
"""

from __future__ import annotations

import time

from foundry.tools.process_native import cpu_ns

# Measured on honest candidates: 0.01 ms a gap, at most 0.1 ms.
ONE_GAP_MS = 5.0  # CPU time in a single gap, or
ONE_GAP_SHARE = 0.02  # this share of a long one
ALL_GAPS_MS = 3.0  # CPU time in all gaps together, and at the same time
EACH_GAP_MS = 0.3  # so much in each on average
OWN_SHARE = 0.03  # of what its commands used: threads that go to sleep on a busy machine (0.4 ms a gap was seen)


class Idleness:
    """CPU time of one process, by the kernel's account, in the gaps between commands."""

    def __init__(self) -> None:
        self.busy_ms = 0.0
        self.gap_ms = 0.0
        self.gaps = 0
        self.commands_ms = 0.0
        self._pid = 0
        self._start = (0, 0)
        self._ended = 0

    def begin(self, pid: int) -> None:
        """The process has answered and should wait now; `pid` 0: it may do what it likes."""
        used = _cpu_ns(pid) if pid else 0
        if used and self._ended:
            self.commands_ms += 1e-6 * (used - self._ended)
        self._ended = 0
        self._pid = pid if used else 0
        self._start = (used, time.monotonic_ns())

    def end(self) -> str:
        """The gap is over; says what was wrong with it or those before, or ""."""
        if not self._pid:
            return ""
        self._ended = _cpu_ns(self._pid)
        busy = 1e-6 * (self._ended - self._start[0])
        gap = 1e-6 * (time.monotonic_ns() - self._start[1])
        self._pid = 0
        self.busy_ms += busy
        self.gap_ms += gap
        self.gaps += 1
        if busy > max(ONE_GAP_MS, ONE_GAP_SHARE * gap):
            return f"the process used {busy:.0f} ms of CPU time in the {gap:.0f} ms while it had nothing to do"
        free_ms = max(ALL_GAPS_MS, EACH_GAP_MS * self.gaps) + ONE_GAP_SHARE * self.gap_ms + OWN_SHARE * self.commands_ms
        if self.busy_ms > free_ms:
            return (
                f"the process used {self.busy_ms:.1f} ms of CPU time in {self.gaps} pauses of {self.gap_ms:.0f} ms "
                "altogether, while it had nothing to do"
            )
        return ""


def _cpu_ns(pid: int) -> int:
    try:
        return cpu_ns(pid)
    except OSError:  # it ended, or is hidden by a namespace: the next command finds out
        return 0
