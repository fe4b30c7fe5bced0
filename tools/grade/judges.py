"""The judges of one task, from the main process: as many at once as there are lanes. Free of torch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from foundry.tools.process.zygote import Worker


class Judges:
    """Idle judges, and new ones where there is none. Thread-safe. `start` forks one, `open_` tells it its task."""

    def __init__(self, start: Callable[[], Worker], open_: Callable[[Worker], None], lanes: int) -> None:
        self._start, self._open = start, open_
        self._lanes, self._lane_count = threading.Semaphore(lanes), lanes
        self._idle: list[Worker] = []
        self._warm: list[Worker] = []  # they do not know their task yet
        self._guard = threading.Lock()  # of both: requests come from several threads

    def limit_lanes(self, most: int) -> None:
        """Lets no more than `most` work at once; call it before any does."""
        while self._lane_count > most:
            self._lanes.acquire()
            self._lane_count -= 1

    def warm(self, prepare: Callable[[Worker], object]) -> None:
        """Starts and prepares a judge before it is known what it is told about its task."""
        judge = self._start()
        prepare(judge)
        with self._guard:
            self._warm.append(judge)

    @contextlib.contextmanager
    def one(self) -> Iterator[Worker]:
        """A judge for one request. A judge that died is not used again."""
        with self._lanes:
            with self._guard:
                judge = self._idle.pop() if self._idle else None
            judge = judge or self._opened()
            try:
                yield judge
            finally:
                if judge.alive:
                    with self._guard:
                        self._idle.append(judge)

    @contextlib.contextmanager
    def apart(self) -> Iterator[Worker]:
        """A judge besides the lanes, for something that lasts while others go on; it ends with it."""
        judge = self._opened()
        try:
            yield judge
        finally:
            judge.end()

    def _opened(self) -> Worker:
        with self._guard:
            warm = self._warm.pop() if self._warm else None
        judge = warm if warm is not None and warm.alive else self._start()
        self._open(judge)
        return judge
