"""The processes that models run in, from the main process: a fresh one for each. Free of torch.

On a GPU a process needs some tenths of a second before it can do anything. So those of a timing can be made ready
before the device is held: they have a context then, and nothing of the candidate's.

The reference gets a fresh process for each group too. One that serves many groups and only moves to other memory
between them is no substitute: on an H200 15 us of work took 4 % more in it than in a fresh one, with three times the
spread from move to move, and 32 of 48 intervals of PyTorch against itself held the truth.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foundry.tools.grade.folders import TASK, CandidateFolders, prepare_folders
from foundry.tools.process.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout, Message
from foundry.tools.process.child import Limits
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker

RUNNER = "foundry.tools.grade.runner.runner:serve"
LIFE_S = 900.0  # of a runner, at most
READY_S = 30.0
GLANCE_S = 0.5  # how often a process is looked at that works by itself
STALE_S = 60.0  # who was not timed by then is not timed at all

Fork = Callable[[str, Limits, Path, Sandbox, dict[str, str], Sequence[int]], Worker]


class Runners:
    """The runner processes of one task on one device. Thread-safe."""

    def __init__(self, fork: Fork, scratch: Path, *, memory_bytes: int, threads: int, tf32: bool, on_gpu: bool) -> None:
        self._fork, self._scratch, self._memory_bytes, self._on_gpu = fork, scratch, memory_bytes, on_gpu
        self._options: Message = {"threads": threads, "tf32": tf32, "device": "cuda" if on_gpu else "cpu"}
        self._numbers = itertools.count()
        self._waiting: dict[str, list[tuple[Worker, Worker]]] = {}  # (reference's, candidate's) by the latter's text
        self._since: dict[str, float] = {}  # when a text's processes were started
        self._starting = 0  # pairs
        self._guard = threading.Lock()  # of those waiting
        self._undertaker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="undertaker")

    def fresh(self, text: str = "", environment: dict[str, str] | None = None) -> Worker:
        """A process for one model, in a directory of its own; with a candidate's `text` it is confined to that
        folder."""
        folder = self._scratch.absolute() / f"runner-{next(self._numbers)}"
        folder.mkdir(parents=True)
        limits = Limits(
            wall_s=LIFE_S,
            memory_bytes=self._memory_bytes,
            shared_bytes=self._memory_bytes,
            cpu_s=3600,
            file_bytes=1 << 30,
            folder_bytes=2 << 30,
        )
        own = prepare_folders(text, folder) if text else CandidateFolders({"TMPDIR": str(folder)}, TASK, [])
        return self._fork(RUNNER, limits, folder, own.sandbox, {**own.environment, **(environment or {})}, own.locks)

    def make_ready(self, text: str, pairs: int, most: int) -> None:
        """Starts processes for the reference and a candidate, for so many groups, and waits for their contexts. No more
        than `most` processes wait at a time, for all candidates together."""
        if not self._on_gpu:
            return
        with self._guard:
            stale = [other for other, since in self._since.items() if time.monotonic() - since > STALE_S]
        for other in stale:
            self.dismiss(other)
        with self._guard:
            self._since[text] = time.monotonic()
            pairs = max(0, min(pairs, most // 2 - self._starting - sum(map(len, self._waiting.values()))))
            self._starting += pairs
        try:
            made = [(self.fresh(), self.fresh(text)) for _ in range(pairs)]
            workers = [worker for pair in made for worker in pair]
            ready = {id(worker) for worker in self._warmed(workers, time.monotonic() + READY_S)}
        finally:
            with self._guard:
                self._starting -= pairs
        for pair in made:
            if all(id(worker) in ready for worker in pair):
                with self._guard:
                    self._waiting.setdefault(text, []).append(pair)
            else:
                for worker in pair:
                    self.bury(worker)

    def _warmed(self, workers: Sequence[Worker], deadline: float) -> Iterator[Worker]:
        """The workers that report before `deadline` that they are ready."""
        asked: list[Worker] = []
        for worker in workers:
            with contextlib.suppress(ChannelClosed):
                worker.channel.send(self._options)
                asked.append(worker)
        for worker in asked:
            with contextlib.suppress(ChannelClosed, ChannelTimeout, ChannelGarbled):
                worker.channel.receive(max(0.0, deadline - time.monotonic()))
                yield worker

    def pair(self, text: str, environment: dict[str, str] | None = None) -> tuple[Worker, Worker]:
        """Unused processes for the reference and a candidate: those that were made ready, or new ones."""
        with self._guard:
            waiting = [] if environment else self._waiting.get(text, [])
            found = waiting.pop() if waiting else None
        if found is not None and all(worker.alive for worker in found):
            return found
        return self.fresh(), self.fresh(text, environment)

    def dismiss(self, text: str) -> None:
        """Ends the processes that are still waiting for a candidate."""
        with self._guard:
            self._since.pop(text, None)
            left = self._waiting.pop(text, [])
        for pair in left:
            for worker in pair:
                self.bury(worker)

    def compile_ahead(self, text: str, architecture: str, limit_s: float) -> None:
        """Lets a file that compiles itself at import do so once, before anybody holds the device for it: the processes
        that follow find the library in the file's build folder. This one sees no GPU, so that it disturbs no timing;
        what it says counts for nothing, and whatever is wrong with the file shows when it is loaded in earnest.

        `architecture`: what PyTorch would ask the GPU for, "9.0+PTX": with other flags it would compile again."""
        worker = self.fresh(text, {"CUDA_VISIBLE_DEVICES": "", "TORCH_CUDA_ARCH_LIST": architecture})
        deadline = time.monotonic() + limit_s
        try:
            ours, theirs = Channel.pair()
            with contextlib.closing(ours), contextlib.suppress(ChannelClosed, ChannelGarbled):
                worker.channel.send({**self._options, "device": "cpu"}, [theirs.fileno()])
                theirs.close()
                ours.send({"do": "load", "text": text, "device": "cpu", "number": 0})
                while not ours.ready(GLANCE_S) and time.monotonic() < deadline and not worker.excess():
                    pass
        finally:
            self.discard(worker)

    # ------------------------------------------------------------ links and ends

    @contextlib.contextmanager
    def links(self, workers: Sequence[Worker]) -> Iterator[list[int]]:
        """An open link to each process, for the judge to take over. Raises ChannelClosed."""
        links: list[Channel] = []
        try:
            for worker in workers:
                ours, theirs = Channel.pair()
                links.append(ours)
                worker.channel.send(self._options, [theirs.fileno()])
                theirs.close()
            yield [link.fileno() for link in links]
        finally:
            for link in links:
                link.close()

    def discard(self, worker: Worker) -> str:
        """Ends a process with its directory; returns how it had ended."""
        ended = worker.end()
        if worker.directory is not None:
            shutil.rmtree(worker.directory, ignore_errors=True)
        return ended

    def part_from(self, worker: Worker, *, is_well: bool) -> str:
        """Discards a process; one on a GPU that did what it was asked for, and of which nothing is to be said, while
        something else goes on."""
        if self._on_gpu and is_well:
            self.bury(worker)
            return ""
        return self.discard(worker)

    def bury(self, worker: Worker) -> None:
        """Discards a process while something else goes on: a GPU's context takes a tenth of a second to end."""
        self._undertaker.submit(self.discard, worker)

    def close(self) -> None:
        """Waits for the last burial."""
        self._undertaker.shutdown(wait=True)
