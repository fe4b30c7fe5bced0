"""The judges of one task, from the main process, and what is drawn for them ahead: free of torch."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from foundry.knowledge import codec
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.task import Task
from foundry.tools.process.channel import Message, close_all
from foundry.tools.process.child import machine_memory_bytes
from foundry.tools.process.zygote import Worker, WorkerDied
from foundry.tools.protocol.orders import public_seeds

KEPT_SHARE = 0.1  # of the machine's memory
LITTLE_BYTES = 32 << 20  # of inputs: a host draws them in a twentieth of a second


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
    a gigabyte takes the host more than a second."""

    def __init__(self, start: Callable[[], Worker], task: Task) -> None:
        self._start, self._task = start, task
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="draw")
        self._drawn: Future[None] | None = None
        self._found: list[tuple[int, Message]] = []  # seeds, and how their inputs are packed
        self._handles: list[int] = []  # of the memory that these lie in

    def begin(self, nbytes: int) -> None:
        """Draws them if they are so many bytes that it takes long, and not too many to be kept."""
        seeds = public_seeds(nbytes)
        is_kept = len(seeds) * nbytes <= KEPT_SHARE * machine_memory_bytes()
        if self._drawn is None and nbytes >= LITTLE_BYTES and is_kept:
            self._drawn = self._pool.submit(self._draw, seeds)

    def _draw(self, seeds: Sequence[int]) -> None:
        worker = self._start()
        message: Message = {"do": "draw", "task": codec.encode(self._task), "threads": 1, "device": "cpu"}
        try:
            for seed in seeds:
                answer, handles = worker.request({**message, "seed": seed})
                self._handles += handles
                if len(handles) == 1:
                    self._found.append((seed, answer["inputs"]))
        finally:
            worker.end()

    def take(self) -> tuple[list[tuple[int, Message]], list[int]]:
        """Seeds with how their inputs are packed, and the handles of the memory that these lie in, once they are drawn;
        none that could not be: then whoever needs them draws them and sees why."""
        with contextlib.suppress(FoundryError, WorkerDied):
            if self._drawn is not None:
                self._drawn.result()
        return self._found, self._handles

    def close(self) -> None:
        """Gives their memory back."""
        close_all(self.take()[1])
        self._pool.shutdown(wait=True)
