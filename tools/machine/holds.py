"""Holds the device for a request of the grader: shared while it prepares, alone while it times. Free of torch.

A GPU that is held alone should not idle. So a timing prepares (loads files, builds models, receives inputs, makes a
first call) while others may use the GPU too, and only the timed calls are made alone. On a CPU the same cores prepare
and are timed, so a timing holds the device from its beginning to its end.
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
    """Counts the seconds in which a thread waited, including waits that still last. Thread-safe."""

    def __init__(self) -> None:
        """No thread waits yet."""
        self._ended_s, self._since, self._waiting = 0.0, 0.0, 0
        self._guard = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds waited so far, waits that last included."""
        with self._guard:
            return self._until_now()

    def _until_now(self) -> float:
        """Seconds waited so far, with a wait that still goes on."""
        return self._ended_s + (time.monotonic() - self._since if self._waiting else 0.0)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A context manager in which time counts as waiting."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        """Changes the number of threads that wait; waits that overlap are counted each."""
        with self._guard:
            self._ended_s, self._since = self._until_now(), time.monotonic()
            self._waiting += more


class Holds:
    """The holds of one request, which runs in one thread. Without a lock they return at once."""

    def __init__(
        self,
        lock: DeviceLock | None = None,
        *,
        on_cpu: bool = False,
        is_over: Callable[[], bool] = lambda: False,
        waits: WaitClock | None = None,
    ) -> None:
        """`is_over` ends waits with an error; `waits` counts them. Without a lock nothing is held."""
        self._lock, self._on_cpu, self._is_over = lock, on_cpu, is_over
        self._is_whole = False
        self._leave: Callable[[], float] | None = None  # releases the device to others and takes it again
        self._waits = waits or WaitClock()

    @property
    def waited_s(self) -> float:
        """Seconds that the request has waited so far; may be read by another thread."""
        return self._waits.seconds

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Holds a CPU alone for a whole timing with its preparations; does nothing on a GPU."""
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
        """Shares the device with other requests during work that would disturb a timing."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def starting(self) -> Iterator[Callable[[], None]]:
        """Holds the device while processes make their contexts on a GPU, a few at a time.

        Making a context disturbs timings only. Yields a function that admits waiting timings. Never enter it within
        another hold. On a CPU it shares the device, because a process that starts takes a core.
        """
        lock = self._lock
        if lock is None or self._on_cpu:
            with self.shared():
                yield lambda: None
            return
        with self._entered(lambda: lock.starting(self._is_over), may_leave=True):
            yield self.pause or (lambda: None)

    def start(self, work: Callable[[], Result]) -> Result:
        """Runs `work`, which only makes a process's context, and returns its result."""
        with self.starting():
            return work()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the device alone during a timing."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def alone_in_turns(self) -> Iterator[None]:
        """Holds the device alone for a long timing: after timings that wait already, and with a `pause` for others."""
        with self._held(fcntl.LOCK_EX, is_patient=True):
            yield

    @property
    def pause(self) -> Callable[[], None] | None:
        """A function that admits waiting requests and returns when they are done; None if the hold allows no pause.

        A long request calls it between two of its steps. A shared hold admits timings; `alone_in_turns` admits every
        request.
        """
        leave = self._leave
        return None if leave is None else lambda: self._wait_outside(leave)

    def _wait_outside(self, leave: Callable[[], float]) -> None:
        """Leaves the device to others until they are done; the time counts as waiting."""
        with self._waits.waiting():
            leave()

    def count(self, answer: Message) -> None:
        """Adds the seconds of device work in an answer (`device_s`) to the lock's use."""
        if self._lock is not None:
            self._lock.use.add(device_s=float(answer.get("device_s", 0.0)))

    @contextlib.contextmanager
    def _held(self, kind: int, *, is_patient: bool = False) -> Iterator[None]:
        """A context manager that holds the device, shared or alone; `is_patient` holds and shared ones beside a CPU may
        be left for others."""
        lock, may_leave = self._lock, is_patient or (kind == fcntl.LOCK_SH and not self._on_cpu)
        hold = None if lock is None else lambda: lock.held(kind, self._is_over, is_patient=is_patient)
        with self._entered(hold, may_leave=may_leave):
            yield

    @contextlib.contextmanager
    def _entered(self, hold: Hold | None, *, may_leave: bool) -> Iterator[None]:
        """A context manager that enters `hold`, counting the wait, unless a hold of the whole request is in force."""
        if hold is None or self._is_whole:
            yield
            return
        with contextlib.ExitStack() as stack:
            with self._waits.waiting():
                leave = stack.enter_context(hold())
            self._leave = leave if may_leave else None
            stack.callback(setattr, self, "_leave", None)
            yield
