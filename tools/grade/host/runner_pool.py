"""The processes that models run in, from the main process: a fresh one for each. Free of torch.

On a GPU a process needs some tenths of a second before it can do anything. So some are made ready while something else
runs, before the device is held for them: they have a context then, and nothing of anybody's model. Each serves once.

The reference gets a fresh process for each group too. One that serves many groups and only moves to other memory
between them is no substitute: on an H200 15 us of work took 4 % more in it than in a fresh one, with three times the
spread from move to move, and 32 of 48 intervals of PyTorch against itself held the truth.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
READY_S = 30.0  # for a process's context
GLANCE_S = 0.5  # how often a process is looked at that works by itself

# Of all threads together: 0.05 to 0.2 ms of a core (40 to 140 cycles each), less than what counts as work in a pause. A
# softmax of 64 rows whose two threads share one buffer was wrong in 1 of 100 calls in a row without, in 99 with it.
AWAKE_SPINS = 4000

REFERENCE, CANDIDATE = "reference", "candidate"

Fork = Callable[[str, Limits, Path, Sandbox, dict[str, str], Sequence[int]], Worker]


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
        self._fork, self._scratch, self._memory_bytes = fork, scratch, memory_bytes
        self._on_gpu = not target.uses_host_cores
        self.cpu_s = RUNNER_CPU_S  # of each process from now on
        self._await_dying = await_dying
        self._options = RunnerOptions(threads=threads, tf32=tf32, device=target.torch_device)
        self._numbers = itertools.count()
        self.pool = WarmPool(self._make, self.bury, is_used=not target.uses_host_cores)
        self._undertaker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="undertaker")

    def fresh(self, text: str = "", environment: dict[str, str] | None = None) -> Worker:
        """A process for one model, in a directory of its own; with a candidate's `text` it is confined to that
        folder."""
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
        return self._fork(RUNNER, limits, folder, own.sandbox, {**own.environment, **(environment or {})}, own.locks)

    def _make(self, kinds: Sequence[str], text: str) -> Iterator[tuple[str, Worker]]:
        """Starts processes and yields each once it has its context; buries those that have none after READY_S."""
        made: dict[Worker, str] = {}
        try:
            for kind in kinds:
                made[self.fresh("" if kind == REFERENCE else text)] = kind
            for worker in self._warmed(list(made), time.monotonic() + READY_S):
                yield made.pop(worker), worker
        finally:
            for worker in made:
                self.bury(worker)

    def _warmed(self, workers: Sequence[Worker], deadline: float) -> Iterator[Worker]:
        """The workers that report before `deadline` that they are ready."""
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
        """A process for a candidate that is not timed, in which threads of OpenMP wait awake for a moment, as they do
        in a user's process: where each call has to wake them, those of a short one hardly ever run at the same time,
        and a race between them does not show."""
        if self._on_gpu:
            return self.take(text)
        spins = AWAKE_SPINS // max(1, self._options.threads - 1)
        return self.fresh(text, {"GOMP_SPINCOUNT": str(spins)})

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
        """An open link to each process, for the judge to take over; the first ones work with so many `threads` instead
        of the usual number. Raises ChannelClosed."""
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
        """Ends a process with its directory; returns how it had ended, if it `waits` for that."""
        ended = worker.end(waits=waits)
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
        self._undertaker.submit(self.discard, worker, waits=False)

    def rest(self) -> None:
        """Returns when no process ends any more that was buried until now: so that none does beside a timing."""
        if self._on_gpu:
            self._undertaker.submit(self._await_dying).result()

    def close(self) -> None:
        """Waits for the last burial."""
        self._undertaker.shutdown(wait=True)
