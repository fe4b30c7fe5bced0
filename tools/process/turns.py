"""CPU time and scheduling of the processes that are timed in turns, read from outside. Free of torch.

Two processes are timed in turns. If one of them computes while it is not its turn, it hides work from the clock or
slows the other one down. Hidden work is finished after the answer, or begun before the question. The kernel counts
every process's CPU time, and no process can forge its own.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from foundry.tools.process.procfs import cpu_ns

IDLE_MS = 0.1  # ms of CPU time between two turns beyond the reference's: a thread going to sleep, a busy machine
IDLE_SHARE = 0.05  # share of a turn's CPU time allowed in addition
OTHER_FACTOR = 1.5  # allowed multiple of the reference's CPU time for the same commands
MIN_TURNS = 3  # turns needed before medians count


@dataclass(frozen=True)
class Scheduling:
    """Scheduling settings of a process or thread: nice value, policy and allowed cores."""

    nice: int
    policy: int
    cores: frozenset[int]


def scheduling_of(pid: int) -> Scheduling | None:
    """The present scheduling settings of a process or thread; None if they cannot be read."""
    try:
        nice = os.getpriority(os.PRIO_PROCESS, pid)
        return Scheduling(nice, os.sched_getscheduler(pid), frozenset(os.sched_getaffinity(pid)))
    except OSError:
        return None


@dataclass(frozen=True)
class Usual:
    """Medians in ms of CPU time: of a timed turn, of the gaps around it, and of other commands between two timed
    turns."""

    used_ms: float
    idle_ms: float
    other_ms: float


class Turns:
    """CPU time of one process: in its timed turns, in other commands, and in the gaps between commands.

    Call `begin` right before a command is sent to it and `end` right after it answered.
    """

    def __init__(self, pid: int) -> None:
        """Watches the process `pid`; reads nothing yet."""
        self.pid = pid
        self.used_ms: list[float] = []  # CPU time in each timed turn
        self.idle_ms: list[float] = []  # CPU time in all gaps since the timed turn before
        self.other_ms: list[float] = []  # CPU time in all other commands since then: inputs changed, outputs fetched
        self._last: int | None = None
        self._gaps = self._others = 0

    def begin(self) -> None:
        """Ends a gap and books its CPU time."""
        now = cpu_ns(self.pid)
        if now is not None and self._last is not None:
            self._gaps += now - self._last
        self._last = now

    def end(self, *, timed: bool) -> None:
        """Ends a command: adds its CPU time to the timed turns or to the other commands."""
        now = cpu_ns(self.pid)
        if now is not None and self._last is not None:
            if timed:
                self.used_ms.append((now - self._last) / 1e6)
                self.idle_ms.append(self._gaps / 1e6)
                self.other_ms.append(self._others / 1e6)
                self._gaps = self._others = 0
            else:
                self._others += now - self._last
        self._last = now

    def usual(self) -> Usual | None:
        """Medians over all turns but the first; None if there were too few."""
        if len(self.used_ms) <= MIN_TURNS:
            return None
        return Usual(*(statistics.median(found[1:]) for found in (self.used_ms, self.idle_ms, self.other_ms)))


def describe_rescheduling(pid: int, usual: Scheduling, *, is_reference: bool) -> str:
    """Says how a process or one of its threads is scheduled differently from `usual`; "" if it is not.

    A candidate may move its own threads to other cores; the reference's must stay as they were.
    """
    for thread in _threads(pid):
        now = scheduling_of(thread)
        if now is None:
            continue
        if is_reference and now != usual:
            return f"the reference's process runs with {_words(now)}, not {_words(usual)}"
        if not is_reference and (now.nice < usual.nice or now.policy != usual.policy):
            return f"its process runs with {_words(now)}, not {_words(usual)}"
    return ""


def out_of_turn(reference: Turns, candidate: Turns) -> str:
    """Evidence that the candidate's process computes while it is not its turn, or "".

    It is compared with the reference's process, which gets the same commands.
    """
    ours, theirs = reference.usual(), candidate.usual()
    if ours is None or theirs is None:
        return ""
    slack_ms = IDLE_MS + IDLE_SHARE * theirs.used_ms
    if theirs.idle_ms > ours.idle_ms + slack_ms:
        return (
            f"its process used {theirs.idle_ms:.3g} ms of CPU time between its turns, while the reference ran or "
            f"nobody did (the reference's process {ours.idle_ms:.3g} ms), beside {theirs.used_ms:.3g} ms in its own "
            "turn: work that the clock did not see, or that slowed the reference"
        )
    if theirs.other_ms > OTHER_FACTOR * ours.other_ms + slack_ms:
        return (
            f"its process used {theirs.other_ms:.3g} ms of CPU time while it was given inputs or asked for outputs "
            f"(the reference's process {ours.other_ms:.3g} ms), beside {theirs.used_ms:.3g} ms in its own turn: work "
            "that the clock did not see"
        )
    return ""


def _threads(pid: int) -> list[int]:
    """The thread ids of a process; empty if it is gone."""
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    return []


def _words(given: Scheduling) -> str:
    """Nice value, policy and number of cores in words."""
    return f"nice {given.nice}, policy {given.policy}, {len(given.cores)} cores"
