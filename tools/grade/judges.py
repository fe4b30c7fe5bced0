"""The judges of one task, from the main process, and what is drawn for them ahead: free of torch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from foundry.knowledge import codec
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.task import Task
from foundry.tools.process.channel import Message, close_all
from foundry.tools.process.child import machine_memory_bytes
from foundry.tools.process.zygote import Worker, WorkerDied
from foundry.tools.protocol.orders import LONG_DRAW_BYTES, PUBLIC_SEEDS

KEPT_SHARE = 0.1  # of the machine's memory


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


class DrawnAhead:
    """The inputs that benchmarks draw first of all, drawn once by a process of the task's own while other things go on:
    gigabytes take the host seconds."""

    def __init__(self, start: Callable[[], Worker], task: Task) -> None:
        self._start, self._task, self._is_long = start, task, False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="draw")
        self._drawn: Future[tuple[Message, list[int]]] | None = None

    def expect(self, nbytes: int) -> None:
        """How much they are: little is drawn at once, and too much is not kept."""
        self._is_long = LONG_DRAW_BYTES <= nbytes <= KEPT_SHARE * machine_memory_bytes()

    def begin(self) -> None:
        if self._is_long and self._drawn is None:
            self._drawn = self._pool.submit(self._draw)

    def _draw(self) -> tuple[Message, list[int]]:
        worker = self._start()
        message: Message = {"task": codec.encode(self._task), "threads": 1, "device": "cpu", "seed": PUBLIC_SEEDS[0]}
        try:
            return worker.request({"do": "draw", **message})
        finally:
            worker.end()

    def take(self) -> tuple[Message, list[int]]:
        """How they are packed and the handle of their memory, once they are drawn; nothing if none are, or they could
        not be: then whoever needs them draws them and sees why."""
        try:
            answer, handles = self._drawn.result() if self._drawn is not None else ({}, [])
        except (FoundryError, WorkerDied):
            return {}, []
        return answer.get("inputs", {}), handles

    def close(self) -> None:
        """Gives their memory back."""
        close_all(self.take()[1])
        self._pool.shutdown(wait=True)
