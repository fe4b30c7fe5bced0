"""Whose turn it is: CPU time and scheduling of the processes that are timed, read from outside. Free of torch.

Two processes are timed in turns. What one of them computes while it is not its turn was either kept from the clock
(work finished after the answer, or begun before the question) or slows the other one down. The kernel counts every
process's CPU time, and no process can forge its own.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from foundry.tools.process import descendants

IDLE_MS = 0.1  # CPU time between two turns beyond the reference's: a thread going to sleep, a busy machine
IDLE_SHARE = 0.05  # of the CPU time of a turn
MIN_TURNS = 3
_CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h: the clock of a whole process, with what ended threads used


def cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process in ns, ended ones too; None when it is not visible from here."""
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return None


@dataclass(frozen=True)
class Standing:
    """How the kernel schedules a process or thread."""

    nice: int
    policy: int
    cores: frozenset[int]


def standing(pid: int) -> Standing | None:
    """None when it is not visible from here."""
    try:
        nice = os.getpriority(os.PRIO_PROCESS, pid)
        return Standing(nice, os.sched_getscheduler(pid), frozenset(os.sched_getaffinity(pid)))
    except OSError:
        return None


class Turns:
    """CPU time of one process: what it uses in its timed turns, and what it uses between all commands.

    Call `begin` right before a command is sent to it and `end` right after it answered.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.used_ms: list[float] = []  # a timed turn
        self.idle_ms: list[float] = []  # all gaps between the end of one timed turn and the end of the next
        self._last: int | None = None
        self._gaps = 0
        self._before = standing(pid)
        self._children_ns = 0

    def begin(self) -> None:
        now = cpu_ns(self.pid)
        if now is not None and self._last is not None:
            self._gaps += now - self._last
        self._last = now

    def end(self, *, timed: bool) -> None:
        now = cpu_ns(self.pid)
        if timed and now is not None and self._last is not None:
            self.used_ms.append((now - self._last) / 1e6)
            self.idle_ms.append(self._gaps / 1e6)
            self._gaps = 0
        self._last = now

    def idle(self) -> tuple[float, float] | None:
        """(median CPU ms between turns, median CPU ms of a turn), or None when too little was seen."""
        if len(self.used_ms) <= MIN_TURNS:
            return None
        return statistics.median(self.idle_ms[1:]), statistics.median(self.used_ms[1:])

    def moved(self, *, is_reference: bool) -> str:
        """How the scheduler came to treat the process differently since the start, or "".

        A candidate may pin its threads to cores of its choice; nobody else may do that to the reference.
        """
        before = self._before
        if before is None:
            return ""
        for thread in _threads(self.pid):
            now = standing(thread)
            if now is None:
                continue
            if is_reference and now != before:
                return f"a thread of the reference's process went from {_words(before)} to {_words(now)}"
            if not is_reference and (now.nice < before.nice or now.policy != before.policy):
                return f"a thread of its process went from {_words(before)} to {_words(now)}"
        return ""


def children_cpu_ns(pid: int) -> int:
    """CPU time of everything that a process started and that still runs."""
    return sum(cpu_ns(child) or 0 for child in descendants(pid)[1:])


def out_of_turn(reference: Turns, candidate: Turns) -> str:
    """Evidence that the candidate's process computes while it is not its turn, or "".

    The reference's process, which gets the same commands, says what is usual.
    """
    ours, theirs = reference.idle(), candidate.idle()
    if ours is None or theirs is None:
        return ""
    usual, (idle, used) = ours[0], theirs
    if idle - usual <= IDLE_MS + IDLE_SHARE * used:
        return ""
    return (
        f"its process used {idle:.3g} ms of CPU time between its turns, while the reference ran or nobody did (the "
        f"reference's process {usual:.3g} ms), beside {used:.3g} ms in its own turn: work that the clock did not see, "
        "or that slowed the reference"
    )


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    return []


def _words(given: Standing) -> str:
    return f"nice {given.nice}, policy {given.policy}, {len(given.cores)} cores"
