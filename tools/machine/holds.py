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
from dataclasses import dataclass, replace

from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.channel import Message


@dataclass(frozen=True)
class LockUse:
    """What a workbench did with the device's lock, in seconds. `device_s`: work that ran on the GPU while it was held
    alone, by device events; 0 on a CPU, where nobody counts it."""

    alone_s: float = 0.0
    device_s: float = 0.0
    shared_s: float = 0.0  # of requests that shared it: several at once count several times
    waited_s: float = 0.0

    @property
    def idle_share(self) -> float:
        """Which part of the time alone nothing of ours ran on the device."""
        return 1.0 - min(1.0, self.device_s / self.alone_s) if self.alone_s else 0.0


class UseOfLock:
    """Adds up the use of a lock. Thread-safe."""

    def __init__(self) -> None:
        self._use = LockUse()
        self._guard = threading.Lock()

    def add(self, **seconds: float) -> None:
        with self._guard:
            more = {name: getattr(self._use, name) + value for name, value in seconds.items()}
            self._use = replace(self._use, **more)

    @property
    def total(self) -> LockUse:
        return self._use


class Holds:
    """The holds of one request, which runs in one thread. Without a lock nobody else is there."""

    def __init__(
        self,
        lock: DeviceLock | None = None,
        use: UseOfLock | None = None,
        *,
        on_cpu: bool = False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lock, self._use, self._on_cpu, self._is_over = lock, use or UseOfLock(), on_cpu, is_over
        self._is_whole = False
        self.waited_s = 0.0

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
        with self._held(fcntl.LOCK_SH, "shared_s"):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While something is timed."""
        with self._held(fcntl.LOCK_EX, "alone_s"):
            yield

    def count(self, answer: Message) -> None:
        """Adds the device's work that an answer tells of."""
        self._use.add(device_s=float(answer.get("device_s", 0.0)))

    @contextlib.contextmanager
    def _held(self, kind: int, counted_as: str) -> Iterator[None]:
        if self._lock is None or self._is_whole:
            yield
            return
        asked = time.monotonic()
        with self._lock.held(kind, self._is_over):
            got = time.monotonic()
            self.waited_s += got - asked
            self._use.add(waited_s=got - asked)
            try:
                yield
            finally:
                self._use.add(**{counted_as: time.monotonic() - got})
