"""Detects a process that works while it should be waiting, by its CPU time between two commands. Free of torch.

A call is over when it returns. Parked OpenMP threads, a CUDA context, or an interpreter that frees memory use next
to nothing; work deferred to a thread uses what it needs.
"""

from __future__ import annotations

import os
import time

from foundry.tools.process.procfs import cpu_ns

# Measured on honest candidates: 0.01 ms a gap, at most 0.1 ms.
_CLOCK_MONOTONIC_COARSE = 6  # its resolution is the kernel's tick
# The kernel may book a thread's CPU time one tick late: work of a command then shows in the gap after it
# (8 ms in a gap of less than one were seen on an honest process).
TICK_MS = 1e3 * time.clock_getres(_CLOCK_MONOTONIC_COARSE)
ONE_GAP_MS = max(5.0, 1.25 * TICK_MS)  # ms of CPU time in a single gap that make it odd, or
ONE_GAP_SHARE = 0.02  # this share of a long gap
ODD_GAPS = 3  # odd gaps that prove work: deferred work follows every call, a late tick only some
AT_ONCE_MS = max(25.0, 6.0 * TICK_MS)  # ms in one gap that no late tick explains, even of several threads
ALL_GAPS_MS = max(3.0, 1.25 * TICK_MS)  # ms of CPU time in all gaps together that prove work, if also
EACH_GAP_MS = 0.3  # ms on average in each gap
CORES = os.cpu_count() or 1
OWN_SHARE = 0.03  # allowed share of its commands' CPU time: threads that fall asleep late (0.4 ms a gap was seen)


class Idleness:
    """CPU time of one process in the gaps between commands, as the kernel counts it."""

    def __init__(self) -> None:
        """Watches no process yet."""
        self.busy_ms = 0.0
        self.gap_ms = 0.0
        self.gaps = 0
        self.commands_ms = 0.0
        self._odd = 0
        self._largest = [0.0] * (ODD_GAPS - 1)  # the largest gaps, in ms busy: as many as may be odd
        self._pid = 0
        self._start = (0, 0)
        self._ended = 0

    def begin(self, pid: int) -> None:
        """Starts a gap: process `pid` has answered and should be idle now. With `pid` 0 the gap is not watched."""
        used = (cpu_ns(pid) or 0) if pid else 0  # 0: the process ended or is hidden; the next command finds out
        if used and self._ended:
            self.commands_ms += 1e-6 * (used - self._ended)
        self._ended = 0
        self._pid = pid if used else 0
        self._start = (used, time.monotonic_ns())

    def end(self) -> str:
        """Ends the gap. Returns evidence that the process worked in it, or in all gaps together; "" if none.

        Evidence is a third odd gap (ODD_GAPS), one too busy for any late tick, or more CPU time in all gaps together
        than an idle process uses.
        """
        if not self._pid:
            return ""
        self._ended = cpu_ns(self._pid) or 0
        gap = 1e-6 * (time.monotonic_ns() - self._start[1])
        busy = min(1e-6 * (self._ended - self._start[0]), CORES * gap)  # the most that a process can use
        self._pid = 0
        self.busy_ms += busy
        self.gap_ms += gap
        self.gaps += 1
        self._largest = sorted([*self._largest, busy])[1:]
        if busy > max(ONE_GAP_MS, ONE_GAP_SHARE * gap):
            self._odd += 1
            if self._odd >= ODD_GAPS or busy > max(AT_ONCE_MS, ONE_GAP_SHARE * gap):
                return f"the process used {busy:.0f} ms of CPU time in the {gap:.0f} ms while it had nothing to do"
        free_ms = max(ALL_GAPS_MS, EACH_GAP_MS * self.gaps) + ONE_GAP_SHARE * self.gap_ms + OWN_SHARE * self.commands_ms
        usual_ms = self.busy_ms - sum(self._largest)
        if usual_ms > free_ms:
            return (
                f"the process used {usual_ms:.1f} ms of CPU time in {self.gaps} pauses of {self.gap_ms:.0f} ms "
                "altogether, while it had nothing to do"
            )
        return ""
