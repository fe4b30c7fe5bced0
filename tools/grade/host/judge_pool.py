"""Pool of judge processes for one task, and inputs drawn ahead for them. In the main process; free of torch."""

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
from foundry.tools.process.messages import Done, asking
from foundry.tools.process.zygote import Worker, WorkerDied
from foundry.tools.protocol.orders import public_seeds
from foundry.tools.task.intake_messages import TaskPlace, TaskQuestions

KEPT_SHARE = 0.1  # share of the machine's memory
LITTLE_BYTES = 32 << 20  # bytes of inputs that a host draws in a twentieth of a second


class Judges:
    """A thread-safe pool of judge processes: idle ones, and new ones if none is idle. `start` forks one, `open_` sends
    it its task."""

    def __init__(self, start: Callable[[], Worker], open_: Callable[[Worker], None], lanes: int) -> None:
        """Starts nothing. `lanes` is the number of judges that may work at once."""
        self._start, self._open = start, open_
        self._lanes, self._lane_count = threading.Semaphore(lanes), lanes
        self._idle: list[Worker] = []
        self._warm: list[Worker] = []  # they do not know their task yet
        self._guard = threading.Lock()  # guards both: requests come from several threads

    def limit_lanes(self, most: int) -> None:
        """Lowers the number of judges that may work at once to `most`. Blocks while more are at work, so call it
        before."""
        while self._lane_count > most:
            self._lanes.acquire()
            self._lane_count -= 1

    def warm(self, prepare: Callable[[Worker], object]) -> None:
        """Starts a judge that does not know its task yet, runs `prepare` on it and keeps it for the first request."""
        judge = self._start()
        prepare(judge)
        with self._guard:
            self._warm.append(judge)

    @contextlib.contextmanager
    def one(self) -> Iterator[Worker]:
        """A context manager that lends a judge for one request, after waiting for a free lane. A judge that died is not
        kept."""
        with self._lanes:
            with self._guard:
                judge = self._idle.pop() if self._idle else None
            judge = judge or self._open_new()
            try:
                yield judge
            finally:
                if judge.alive:
                    with self._guard:
                        self._idle.append(judge)

    @contextlib.contextmanager
    def apart(self) -> Iterator[Worker]:
        """A context manager that lends a judge beside the lanes and ends it afterwards."""
        judge = self._open_new()
        try:
            yield judge
        finally:
            judge.end()

    def _open_new(self) -> Worker:
        """A judge that knows its task: a warm one if there is one alive, else a new process."""
        with self._guard:
            warm = self._warm.pop() if self._warm else None
        judge = warm if warm is not None and warm.alive else self._start()
        self._open(judge)
        return judge


class DrawnAhead:
    """Inputs for the seeds that benchmarks use, drawn once by a process of their own in the background; a gigabyte
    takes over a second."""

    def __init__(self, start: Callable[[], Worker], task: Task) -> None:
        """Draws nothing yet. `start` forks a process that can draw the inputs of `task`."""
        self._start, self._task = start, task
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="draw")
        self._drawn: Future[None] | None = None
        self._found: list[tuple[int, Message]] = []  # seeds, and how their inputs are packed
        self._handles: list[int] = []  # handles of the memory that holds these

    def begin(self, nbytes: int) -> None:
        """Draws inputs in the background, unless they are small (below LITTLE_BYTES) or too many to keep. `nbytes`:
        bytes of one seed's inputs."""
        seeds = public_seeds(nbytes)
        is_kept = len(seeds) * nbytes <= KEPT_SHARE * machine_memory_bytes()
        if self._drawn is None and nbytes >= LITTLE_BYTES and is_kept:
            self._drawn = self._pool.submit(self._draw, seeds)

    def _draw(self, seeds: Sequence[int]) -> None:
        """Has a fresh process draw the inputs of each seed into shared memory; keeps the handles, ends the process."""
        worker = self._start()
        where = TaskPlace(codec.encode(self._task), threads=1, device="cpu")
        try:
            for seed in seeds:
                drawn, handles = worker.ask(asking(TaskQuestions.draw, where=where, seed=seed))
                self._handles += handles
                if isinstance(drawn, Done) and len(handles) == 1:
                    self._found.append((seed, codec.to_plain(drawn.answer)))
        finally:
            worker.end()

    def take(self) -> tuple[list[tuple[int, Message]], list[int]]:
        """Waits for the drawing; returns seeds with the layout of their inputs, and handles of the memory that holds
        them.

        Seeds that could not be drawn are missing: their user draws them again and sees the error.
        """
        with contextlib.suppress(FoundryError, WorkerDied):
            if self._drawn is not None:
                self._drawn.result()
        return self._found, self._handles

    def close(self) -> None:
        """Waits for the drawing and frees the inputs' memory."""
        close_all(self.take()[1])
        self._pool.shutdown(wait=True)
