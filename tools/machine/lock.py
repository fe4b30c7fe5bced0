"""The lock that keeps a device quiet while something is timed. Free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from foundry.knowledge.device import Device
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.home import foundry_home

POLL_S = 0.004
THREAD_POLL_S = 0.001  # a GPU that is held alone and waits for a thread does nothing


@dataclass(frozen=True)
class LockUse:
    """Seconds for which a device's lock was held or waited for.

    `device_s` is work that ran on the GPU while it was held alone, by device events; it is not counted on a CPU (0).
    """

    alone_s: float = 0.0
    device_s: float = 0.0
    shared_s: float = 0.0  # summed over all requests that shared it
    waited_s: float = 0.0

    @property
    def idle_share(self) -> float:
        """The share of `alone_s` in which none of our work ran on the device, from 0 to 1."""
        return 1.0 - min(1.0, self.device_s / self.alone_s) if self.alone_s else 0.0


class UseOfLock:
    """Adds up the use of a lock. Thread-safe."""

    def __init__(self) -> None:
        """Counts from 0."""
        self._use = LockUse()
        self._guard = threading.Lock()

    def add(self, **seconds: float) -> None:
        """Adds seconds to the named counts."""
        with self._guard:
            more = {name: getattr(self._use, name) + value for name, value in seconds.items()}
            self._use = replace(self._use, **more)

    @contextlib.contextmanager
    def counted(self, asked: float, *, is_alone: bool) -> Iterator[None]:
        """Counts the seconds of a hold that begins now, and the wait since `asked` (time.monotonic)."""
        got = time.monotonic()
        self.add(waited_s=got - asked)
        try:
            yield
        finally:
            self.add(**{"alone_s" if is_alone else "shared_s": time.monotonic() - got})

    @property
    def total(self) -> LockUse:
        """Total use so far."""
        return self._use


class DeviceLock:
    """A lock on one physical device, across processes and asyncio tasks: many readers (compile, verify), one writer
    (time).

    It has four files. Everyone locks the gate first; a writer holds the gate until the readers have left, so that a
    stream of compilations cannot keep it waiting for ever. Readers do not come to the gate while a writer waits: the
    device is emptied once for all timings that are ready, and not for each of them. A patient writer comes to the gate
    as a reader does, after the timings that wait, and leaves whenever it is asked to: it may time for long. Processes
    that get their contexts on a GPU disturb a timing, and neither readers nor a patient writer, who looks for the best
    of many: they have a file of their own, which each of them and every writer but a patient one holds alone. Locks
    vanish with the process that holds them. `use`: what was done with this object.
    """

    def __init__(self, device: Device, home: Path | None = None) -> None:
        """Makes the folder of the lock files; locks nothing."""
        folder = (home or foundry_home()) / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", device.unit)
        self._is_cpu = device.traits.uses_host_cores
        self._gate = folder / f"{name}.gate"
        self._room = folder / f"{name}.lock"
        self._wish = folder / f"{name}.wish"  # shared by the writers that wait
        self._starts = folder / f"{name}.starts"
        self._queue: asyncio.Lock | None = None
        self._threads = threading.Lock()
        self.use = UseOfLock()

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Held while something runs that would disturb a timing."""
        async with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.asynccontextmanager
    async def compiling(self) -> AsyncIterator[None]:
        """Held while a compiler runs: it takes cores from what is timed on a CPU, and nothing from a GPU."""
        if not self._is_cpu:
            yield
            return
        async with self.shared():
            yield

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Held while something is timed."""
        async with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def held(
        self, kind: int, is_over: Callable[[], bool], *, is_patient: bool = False
    ) -> Iterator[Callable[[], float]]:
        """Holds the device for a thread: `kind` is fcntl's LOCK_SH or LOCK_EX.

        Yields a function that admits waiting requests: it releases the device, waits for its turn again and returns the
        seconds that took, 0.0 if no request waits. Raises FoundryError once `is_over` returns True.
        """
        is_alone = kind == fcntl.LOCK_EX
        wished = fcntl.LOCK_EX if is_patient else _wished(kind)
        with _opened(self._room) as room, _opened(self._starts) as starts:

            def enter() -> None:
                """Blocks until the lock is held: waits for earlier wishes, passes the gate, locks the room."""
                with _opened(self._wish) as wish:
                    _wait_for(wish, wished, is_over)
                    if wished == fcntl.LOCK_EX:
                        fcntl.flock(wish, fcntl.LOCK_UN)
                    with self._threads, _opened(self._gate) as gate:
                        _wait_for(gate, fcntl.LOCK_EX, is_over)
                        _wait_for(room, kind, is_over)
                        if wished == fcntl.LOCK_SH:
                            _wait_for(starts, fcntl.LOCK_EX, is_over)

            def leave() -> None:
                """Unlocks the room."""
                fcntl.flock(room, fcntl.LOCK_UN)

            with self._counted(enter, leave, self._is_wanted, is_alone=is_alone) as let_others:
                yield let_others

    @contextlib.contextmanager
    def starting(self, is_over: Callable[[], bool]) -> Iterator[Callable[[], float]]:
        """Held by a thread while processes get their contexts on a GPU, a few at a time; gives what `held` gives."""
        with _opened(self._starts) as starts:

            def enter() -> None:
                """Blocks until no other process starts and no writer waits; then holds the lock of starts."""
                while True:
                    _wait_for(starts, fcntl.LOCK_EX, is_over)
                    if not self._is_wished():
                        return
                    leave()
                    with _opened(self._wish) as wish:
                        _wait_for(wish, fcntl.LOCK_EX, is_over)

            def leave() -> None:
                """Unlocks the file of starts, so that other processes may start."""
                fcntl.flock(starts, fcntl.LOCK_UN)

            with self._counted(enter, leave, self._is_wished, is_alone=False) as let_others:
                yield let_others

    @contextlib.contextmanager
    def _counted(
        self, enter: Callable[[], None], leave: Callable[[], None], is_wanted: Callable[[], bool], *, is_alone: bool
    ) -> Iterator[Callable[[], float]]:
        """A context manager that enters and leaves a thread's hold and counts its use; gives `let_others`."""
        asked = time.monotonic()

        def let_others() -> float:
            """Releases the lock and takes it again if another process wants it; returns the seconds in between."""
            if not is_wanted():
                return 0.0
            left = time.monotonic()
            leave()
            enter()
            away_s = time.monotonic() - left
            self.use.add(waited_s=away_s, **{"alone_s" if is_alone else "shared_s": -away_s})
            return away_s

        enter()
        with self.use.counted(asked, is_alone=is_alone):
            yield let_others

    def _is_wished(self) -> bool:
        """True if a writer waits that is not patient."""
        return _is_held(self._wish)

    def _is_wanted(self) -> bool:
        """True if a request holds the gate, that is, waits for the room.

        While readers hold the room only a writer stays in the gate; while a writer holds it, the next request does. A
        waiting writer enters the gate as soon as it can.
        """
        return _is_held(self._gate)

    @contextlib.asynccontextmanager
    async def _held(self, kind: int) -> AsyncIterator[None]:
        """An async context manager that holds the lock, shared or alone, and counts its use. First come, first
        served."""
        if self._queue is None:
            self._queue = asyncio.Lock()
        asked = time.monotonic()
        with _opened(self._room) as room, _opened(self._starts) as starts:
            with _opened(self._wish) as wish:
                await _acquire(wish, _wished(kind))
                if kind == fcntl.LOCK_SH:
                    fcntl.flock(wish, fcntl.LOCK_UN)
                async with self._queue:  # first come, first served in this process
                    with _opened(self._gate) as gate:
                        await _acquire(gate, fcntl.LOCK_EX)
                        await _acquire(room, kind)
                        if kind == fcntl.LOCK_EX:
                            await _acquire(starts, kind)
            with self.use.counted(asked, is_alone=kind == fcntl.LOCK_EX):
                yield


def _wished(kind: int) -> int:
    """The mode in which a request locks the file of waiting writers.

    All waiting writers share it. A reader, and a patient writer, locks it alone for an instant, so it comes after them.
    """
    return fcntl.LOCK_SH if kind == fcntl.LOCK_EX else fcntl.LOCK_EX


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file to lock; closing it gives up the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_held(path: Path) -> bool:
    """True if some process or thread has the lock of a file, alone or shared."""
    with _opened(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def _acquire(handle: int, kind: int) -> None:
    """Polls, so that a cancelled task leaves no thread behind that would take the lock later."""
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(POLL_S)


def _wait_for(handle: int, kind: int, is_over: Callable[[], bool]) -> None:
    """Locks an open file, polling; raises FoundryError once `is_over`."""
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if is_over():
                raise FoundryError("the grader is closed", "resume the run") from None
            time.sleep(THREAD_POLL_S)
