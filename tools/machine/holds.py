"""How a request of the grader holds the device: shared while it prepares, alone while it times. Free of torch.

A GPU that somebody holds alone should work. So what a timing needs beforehand (files loaded, models built, inputs
given, a first call) is made ready while others may use the GPU too, and only the timed calls are made alone. On a CPU
the cores that prepare are those that are timed: there a timing holds the device from its beginning to its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.channel import Message

Result = TypeVar("Result")
Hold = Callable[[], contextlib.AbstractContextManager[Callable[[], float]]]  # gives how to leave and come back


class WaitClock:
    """Seconds in which somebody waited, those of a wait that still lasts among them. Thread-safe."""

    def __init__(self) -> None:
        self._ended_s, self._since, self._waiting = 0.0, 0.0, 0
        self._guard = threading.Lock()

    @property
    def seconds(self) -> float:
        with self._guard:
            return self._until_now()

    def _until_now(self) -> float:
        return self._ended_s + (time.monotonic() - self._since if self._waiting else 0.0)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._guard:
            self._ended_s, self._since = self._until_now(), time.monotonic()
            self._waiting += more


class Holds:
    """The holds of one request, which runs in one thread. Without a lock nobody else is there."""

    def __init__(
        self,
        lock: DeviceLock | None = None,
        *,
        on_cpu: bool = False,
        is_over: Callable[[], bool] = lambda: False,
        waits: WaitClock | None = None,
    ) -> None:
        self._lock, self._on_cpu, self._is_over = lock, on_cpu, is_over
        self._is_whole = False
        self._leave: Callable[[], float] | None = None  # and come back, while others may have a GPU
        self._waits = waits or WaitClock()

    @property
    def waited_s(self) -> float:
        """Until now; another thread may ask too."""
        return self._waits.seconds

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Around a whole timing, preparations and all."""
        if not self._on_cpu:
            yield
            return
        with self.alone():
            self._is_whole = True
            try:
                yield
            finally:
                self._is_whole = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """While something runs that would disturb a timing."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def starting(self) -> Iterator[Callable[[], None]]:
        """While processes get their contexts on a GPU, a few at a time: that would disturb a timing, and nobody else.
        Gives what lets those in who wait to time something. Never within another hold. On a CPU a process that starts
        takes a core: there it shares the device."""
        lock = self._lock
        if lock is None or self._on_cpu:
            with self.shared():
                yield lambda: None
            return
        with self._entered(lambda: lock.starting(self._is_over), may_leave=True):
            yield self.pause or (lambda: None)

    def start(self, work: Callable[[], Result]) -> Result:
        """Work that only gives a process its context."""
        with self.starting():
            return work()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While something is timed."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def alone_in_turns(self) -> Iterator[None]:
        """While something is timed for so long that others should come in between: after timings that wait already,
        and with a `pause` even so."""
        with self._held(fcntl.LOCK_EX, is_patient=True):
            yield

    @property
    def pause(self) -> Callable[[], None] | None:
        """While a GPU is shared: lets those in who wait to time something, and returns when they are done. A long
        request calls it between two of its steps. While it is held alone in turns: lets in whoever waits."""
        leave = self._leave
        return None if leave is None else lambda: self._wait_outside(leave)

    def _wait_outside(self, leave: Callable[[], float]) -> None:
        with self._waits.waiting():
            leave()

    def count(self, answer: Message) -> None:
        """Adds the device's work that an answer tells of."""
        if self._lock is not None:
            self._lock.use.add(device_s=float(answer.get("device_s", 0.0)))

    @contextlib.contextmanager
    def _held(self, kind: int, *, is_patient: bool = False) -> Iterator[None]:
        lock, may_leave = self._lock, is_patient or (kind == fcntl.LOCK_SH and not self._on_cpu)
        hold = None if lock is None else lambda: lock.held(kind, self._is_over, is_patient=is_patient)
        with self._entered(hold, may_leave=may_leave):
            yield

    @contextlib.contextmanager
    def _entered(self, hold: Hold | None, *, may_leave: bool) -> Iterator[None]:
        if hold is None or self._is_whole:
            yield
            return
        with contextlib.ExitStack() as stack:
            with self._waits.waiting():
                leave = stack.enter_context(hold())
            self._leave = leave if may_leave else None
            stack.callback(setattr, self, "_leave", None)
            yield
