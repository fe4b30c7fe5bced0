"""Starts and ends the processes that models run in, a fresh one for each. In the main process; free of torch.

On a GPU a process needs some tenths of a second before it can do anything. So some are made ready while something else
runs, before the device is held for them: they have a context then, and no model yet. Each serves once.

The reference gets a fresh process for each group too. One that serves many groups and only moves to other memory
between them is no substitute. On an H200 15 us of work took 4 % more in it than in a fresh one, with three times the
spread from move to move. Of 48 intervals of PyTorch against itself, 32 held the truth.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from foundry.knowledge.targets import TargetTraits
from foundry.tools.grade.host.folders import TASK, CandidateFolders, compiles_itself, prepare_folders
from foundry.tools.grade.host.warm_pool import WarmPool
from foundry.tools.grade.messages.runner import FileToLoad, RunnerCommands, RunnerOptions, SharedImports
from foundry.tools.process.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout
from foundry.tools.process.child import Limits
from foundry.tools.process.messages import asking
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker
from foundry.tools.task.limits import RUNNER_CPU_S

RUNNER = "foundry.tools.grade.runner.runner:serve"
READY_S = 30.0  # seconds a process may take for its context
GLANCE_S = 0.5  # seconds between two looks at a process that works by itself

# Spins of all idle threads together: 0.05 to 0.2 ms of a core (40 to 140 cycles each), less than what counts as work in
# a pause. A softmax of 64 rows whose two threads share one buffer was wrong in 1 of 100 calls without, in 99 with it.
AWAKE_SPINS = 4000

REFERENCE, CANDIDATE = "reference", "candidate"


class Fork(Protocol):
    """Starts a confined process that runs `entry`, in `directory`."""

    def __call__(
        self,
        entry: str,
        limits: Limits,
        directory: Path,
        sandbox: Sandbox,
        environment: dict[str, str],
        folder_locks: Sequence[int],
    ) -> Worker:
        """Starts the process. `folder_locks` are open files that are closed when it has ended."""
        ...


def pool_key(text: str) -> str:
    """The pool's key for a model's processes: REFERENCE for "", the text itself if it compiles itself into a build
    folder of its own, else CANDIDATE."""
    if not text:
        return REFERENCE
    return text if compiles_itself(text) else CANDIDATE


class Runners:
    """The runner processes of one task on one device. Thread-safe."""

    def __init__(
        self,
        fork: Fork,
        scratch: Path,
        *,
        memory_bytes: int,
        threads: int,
        tf32: bool,
        target: TargetTraits,
        await_dying: Callable[[], None],
    ) -> None:
        """Starts no process. `fork` starts one, `await_dying` returns once killed ones are gone; the other values hold
        for each."""
        self._fork, self._scratch, self._memory_bytes = fork, scratch, memory_bytes
        self._on_gpu = not target.uses_host_cores
        self.cpu_s = RUNNER_CPU_S  # limit for each process started from now on
        self._await_dying = await_dying
        self._options = RunnerOptions(threads=threads, tf32=tf32, device=target.torch_device)
        self._numbers = itertools.count()
        self.pool = WarmPool(self._make, self.reap, is_used=not target.uses_host_cores)
        self._reaper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reaper")

    def fresh(self, text: str = "", environment: dict[str, str] | None = None) -> Worker:
        """Starts a process for one model in a directory of its own. With a candidate's `text` it is confined to that
        folder and its builds."""
        folder = self._scratch.absolute() / f"runner-{next(self._numbers)}"
        folder.mkdir(parents=True)
        limits = Limits(
            memory_bytes=self._memory_bytes,
            shared_bytes=self._memory_bytes,
            cpu_s=self.cpu_s,
            file_bytes=1 << 30,
            folder_bytes=2 << 30,
        )
        own = prepare_folders(text, folder) if text else CandidateFolders({"TMPDIR": str(folder)}, TASK, [])
        settings = {**own.environment, **(environment or {})}
        return self._fork(RUNNER, limits, folder, own.sandbox, environment=settings, folder_locks=own.locks)

    def _make(self, kinds: Sequence[str], text: str) -> Iterator[tuple[str, Worker]]:
        """Starts a process for each of `kinds` and yields each once it has its context; reaps those that have none
        after READY_S."""
        made: dict[Worker, str] = {}
        try:
            for kind in kinds:
                made[self.fresh("" if kind == REFERENCE else text)] = kind
            for worker in self._warmed(list(made), time.monotonic() + READY_S):
                yield made.pop(worker), worker
        finally:
            for worker in made:
                self.reap(worker)

    def _warmed(self, workers: Sequence[Worker], deadline: float) -> Iterator[Worker]:
        """Has the workers set up their contexts; yields those that report before `deadline` that they are ready."""
        asked: list[Worker] = []
        for worker in workers:
            with contextlib.suppress(ChannelClosed):
                worker.channel.send_text(self._options.encoded())
                asked.append(worker)
        for worker in asked:
            with contextlib.suppress(ChannelClosed, ChannelTimeout, ChannelGarbled):
                worker.channel.receive_text(max(0.0, deadline - time.monotonic()))
                yield worker

    def take(self, text: str = "") -> Worker:
        """An unused process for the reference or a candidate: one that was made ready, or a new one."""
        while (found := self.pool.take(pool_key(text))) is not None:
            if found.alive:
                return found
        return self.fresh(text)

    def take_awake(self, text: str) -> Worker:
        """A process for a candidate that is checked, not timed, whose idle OpenMP threads spin for a moment.

        So they do in a user's process. If threads must be woken for each short call, they hardly ever run at the same
        time. Then a race between them does not show. On a GPU it is `take`.
        """
        if self._on_gpu:
            return self.take(text)
        spins = AWAKE_SPINS // max(1, self._options.threads - 1)
        return self.fresh(text, {"GOMP_SPINCOUNT": str(spins)})

    def compile_ahead(self, text: str, architecture: str, limit_s: float) -> None:
        """Has a process import a file that compiles itself at import, so that later ones find the library in its build
        folder.

        It sees no GPU, so that it disturbs no timing. Its answer is ignored: an error shows when the file is loaded in
        earnest. `architecture`: what PyTorch would ask the GPU for, "9.0+PTX"; with other flags it would compile again.
        """
        worker = self.fresh(text, {"CUDA_VISIBLE_DEVICES": "", "TORCH_CUDA_ARCH_LIST": architecture})
        deadline = time.monotonic() + limit_s
        try:
            ours, theirs = Channel.pair()
            with contextlib.closing(ours), contextlib.suppress(ChannelClosed, ChannelGarbled):
                options = self._options.model_copy(update={"device": "cpu"})
                worker.channel.send_text(options.encoded(), [theirs.fileno()])
                theirs.close()
                what = FileToLoad("cpu", text=text)
                ours.send_text(asking(RunnerCommands.load, what=what, imports=SharedImports()).encoded())
                while not ours.ready(GLANCE_S) and time.monotonic() < deadline and not worker.excess():
                    pass
        finally:
            self.discard(worker)

    # ------------------------------------------------------------ links and ends

    @contextlib.contextmanager
    def links(self, workers: Sequence[Worker], *, threads: Sequence[int] = ()) -> Iterator[list[int]]:
        """A context manager with an open socket to each process, as file numbers for the judge to take over.

        The first processes work with so many `threads` instead of the usual number. Raises ChannelClosed.
        """
        links: list[Channel] = []
        try:
            for worker, count in itertools.zip_longest(workers, threads):
                ours, theirs = Channel.pair()
                links.append(ours)
                options = self._options.model_copy(update={} if count is None else {"threads": count})
                worker.channel.send_text(options.encoded(), [theirs.fileno()])
                theirs.close()
            yield [link.fileno() for link in links]
        finally:
            for link in links:
                link.close()

    def discard(self, worker: Worker, *, waits: bool = True) -> str:
        """Ends a process and removes its directory. With `waits` it returns how the process had ended."""
        ended = worker.end(waits=waits)
        if worker.directory is not None:
            shutil.rmtree(worker.directory, ignore_errors=True)
        return ended

    def release(self, worker: Worker, *, is_well: bool) -> str:
        """Ends a process: on a GPU in the background if `is_well` (no failure to report), else at once. Returns how it
        had ended, or ""."""
        if self._on_gpu and is_well:
            self.reap(worker)
            return ""
        return self.discard(worker)

    def reap(self, worker: Worker) -> None:
        """Ends a process in the background: a GPU's context takes a tenth of a second to end."""
        self._reaper.submit(self.discard, worker, waits=False)

    def await_reaped(self) -> None:
        """On a GPU, blocks until all processes handed to `reap` have ended, so that none ends beside a timing."""
        if self._on_gpu:
            self._reaper.submit(self._await_dying).result()

    def close(self) -> None:
        """Waits until all processes handed to `reap` have been told to end."""
        self._reaper.shutdown(wait=True)
