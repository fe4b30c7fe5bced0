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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from foundry.knowledge.targets import TargetTraits
from foundry.tools.grade.host.folders import TASK, CandidateFolders, compiles_itself, prepare_folders
from foundry.tools.process.channel import Channel, ChannelClosed, ChannelGarbled, ChannelTimeout, Message
from foundry.tools.process.child import Limits
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker
from foundry.tools.task.limits import RUNNER_CPU_S

RUNNER = "foundry.tools.grade.runner.runner:serve"
READY_S = 30.0
GLANCE_S = 0.5  # how often a process is looked at that works by itself
AT_ONCE = 4  # contexts that are made before a timing may come in between, and before whoever is first has one
RESTOCKED = 2  # pairs that are started at once where a timing goes on: contexts made together take half as long
STALE_S = 60.0  # who was not timed by then is not timed at all

# Of all threads together: 0.05 to 0.2 ms of a core (40 to 140 cycles each), less than what counts as work in a pause. A
# softmax of 64 rows whose two threads share one buffer was wrong in 1 of 100 calls in a row without, in 99 with it.
AWAKE_SPINS = 4000

REFERENCE, CANDIDATE = "reference", "candidate"

Starting = Callable[[], contextlib.AbstractContextManager[Callable[[], object]]]  # gives what lets others time
Fork = Callable[[str, Limits, Path, Sandbox, dict[str, str], Sequence[int]], Worker]


def kind_of(text: str) -> str:
    """Which processes a model may run in: the reference's, any candidate's, or, for a file that compiles itself into a
    build folder of its own, that text's."""
    if not text:
        return REFERENCE
    return text if compiles_itself(text) else CANDIDATE


def _nothing() -> None:
    """There is nobody to tell."""


@contextlib.contextmanager
def _free() -> Iterator[Callable[[], object]]:
    """Nobody else is there."""
    yield _nothing


def _in_order(kinds: Iterable[str]) -> list[str]:
    """Of which more are asked for, those come first: correctness and audit want candidates before pairs are timed."""
    left, ordered = Counter(kinds), list[str]()
    while left.total():
        ordered.append(max(left, key=lambda kind: left[kind]))
        left[ordered[-1]] -= 1
    return ordered


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
        self._options: Message = {"threads": threads, "tf32": tf32, "device": target.torch_device}
        self._numbers = itertools.count()
        self._waiting: dict[str, list[Worker]] = {}  # ready and unused, by kind
        self._starting: Counter[str] = Counter()  # by kind
        self._asked: dict[str, Counter[str]] = {}  # what was asked for a candidate that is under way, by kind
        self._since: dict[str, float] = {}  # when it was asked
        self._coming: Counter[str] = Counter()  # of those starting, whose contexts are being made, by kind
        self._awaited: Counter[str] = Counter()  # of those coming, by kind
        self._most = 0  # that may wait, as told last
        self._guard = threading.Condition()  # of those waiting
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

    def make_ready(
        self,
        text: str,
        wanted: Mapping[str, int],
        most: int,
        *,
        starting: Starting = _free,
        begins: Callable[[], object] = _nothing,
    ) -> None:
        """Lets so many processes of each kind wait on behalf of a candidate, beside what waits for others, and returns
        when they have their contexts. No more than `most` wait at a time, for all candidates together. `begins` is
        called when the first of them is about to come, `starting` is held while any is made."""
        if not self._on_gpu:
            return
        now = time.monotonic()
        with self._guard:
            stale = [other for other, since in self._since.items() if now - since > STALE_S]
        for other in stale:
            self.dismiss(other)
        with self._guard:
            self._most, self._asked[text], self._since[text] = most, Counter(wanted), now
        self._make_missing(text, starting, lambda: _in_order(self._missing(wanted, most)), begins)

    def restock(self, text: str, starting: Starting = _free) -> None:
        """For a timing that takes more pairs than were made ready: where none waits, lets the next ones wait."""
        kinds = (REFERENCE, kind_of(text))

        def missing() -> list[str]:
            free = self._most - self._starting.total() - sum(map(len, self._waiting.values()))
            if not self._on_gpu or free <= 0 or all(self._waiting.get(kind) for kind in kinds):
                return []
            waiting = {kind: len(self._waiting.get(kind, ())) for kind in kinds}
            return [kind for number in range(RESTOCKED) for kind in kinds if waiting[kind] <= number][:free]

        self._make_missing(text, starting, missing)

    def stock(self, text: str, wanted: Mapping[str, int], most: int, at_once: int, starting: Starting = _free) -> bool:
        """Lets so many wait for whatever comes next, and makes some of them ready; whether there were any to make.
        Candidates that are under way take from these first."""
        at_least = Counter(wanted)
        return self._on_gpu and self._make_missing(
            text, starting, lambda: _in_order(self._missing(wanted, most, at_least=at_least))[:at_once]
        )

    def _make_missing(
        self,
        text: str,
        starting: Starting,
        missing: Callable[[], list[str]],
        begins: Callable[[], object] = _nothing,
    ) -> bool:
        """Starts what is `missing` by then, while `starting` is held; whether there was anything. Nobody waits for that
        who misses nothing."""
        with self._guard:
            if not missing():
                return False
        with starting() as let_others:
            with self._guard:
                found = missing()
                self._starting.update(found)
            self._start(found, text, let_others, begins)
        return bool(found)

    def _missing(self, kinds: Iterable[str], most: int, *, at_least: Counter[str] | None = None) -> list[str]:
        """The kind of each process that is to be started now. The caller is alone."""
        all_asked = sum(self._asked.values(), Counter[str]()) | (at_least or Counter[str]())  # the larger of each
        missing: list[str] = []
        for kind in kinds:
            known = len(self._waiting.get(kind, ())) + self._starting[kind]
            missing += [kind] * max(0, all_asked[kind] - known)
        free = most - self._starting.total() - sum(map(len, self._waiting.values()))
        return missing[: max(0, free)]

    def _start(
        self,
        missing: Sequence[str],
        text: str,
        let_others: Callable[[], object],
        begins: Callable[[], object],
    ) -> None:
        """Starts processes and returns when they have their contexts."""
        left = list(missing)
        try:
            while left:
                some, left = left[:AT_ONCE], left[AT_ONCE:]
                self._start_some(some, text, begins)
                if left:
                    begins = _nothing
                    let_others()
        finally:
            with self._guard:
                self._starting.subtract(left)

    def _start_some(self, kinds: Sequence[str], text: str, begins: Callable[[], object]) -> None:
        made: dict[Worker, str] = {}
        left = Counter(kinds)  # that are neither ready nor given up
        with self._guard:
            self._coming.update(left)
        try:
            begins()
            for kind in kinds:
                made[self.fresh("" if kind == REFERENCE else text)] = kind
            for worker in self._warmed(list(made), time.monotonic() + READY_S):
                kind = made.pop(worker)
                left[kind] -= 1
                self._settle(Counter([kind]), worker)
        finally:
            self._settle(left)
            for worker in made:
                self.bury(worker)

    def _settle(self, kinds: Counter[str], ready: Worker | None = None) -> None:
        """They are no longer coming: one is `ready`, or they are given up."""
        with self._guard:
            self._starting.subtract(kinds)
            self._coming.subtract(kinds)
            if ready is not None:
                self._waiting.setdefault(next(iter(kinds)), []).append(ready)
            self._guard.notify_all()

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

    def take(self, text: str = "") -> Worker:
        """An unused process for the reference or a candidate: one that was made ready, or a new one."""
        while (found := self._next_ready(kind_of(text))) is not None:
            if found.alive:
                return found
        return self.fresh(text)

    def _next_ready(self, kind: str) -> Worker | None:
        """One that waits or is coming: the host makes contexts one after the other, so a new one would come later."""
        with self._guard:
            while not self._waiting.get(kind) and self._coming[kind] > self._awaited[kind]:
                self._awaited[kind] += 1
                self._guard.wait()
                self._awaited[kind] -= 1
            waiting = self._waiting.get(kind)
            return waiting.pop() if waiting else None

    def take_awake(self, text: str) -> Worker:
        """A process for a candidate that is not timed, in which threads of OpenMP wait awake for a moment, as they do
        in a user's process: where each call has to wake them, those of a short one hardly ever run at the same time,
        and a race between them does not show."""
        if self._on_gpu:
            return self.take(text)
        spins = AWAKE_SPINS // max(1, int(self._options["threads"]) - 1)
        return self.fresh(text, {"GOMP_SPINCOUNT": str(spins)})

    def pair(self, text: str) -> tuple[Worker, Worker]:
        """Unused processes for the reference and a candidate."""
        return self.take(), self.take(text)

    def dismiss(self, text: str) -> None:
        """Says that a candidate is through: the processes that wait for it alone end, the others serve the next."""
        with self._guard:
            self._asked.pop(text, None)
            self._since.pop(text, None)
        kind = kind_of(text)
        if kind not in (REFERENCE, CANDIDATE):
            self._end_waiting([kind])

    def dismiss_all(self) -> None:
        """Ends the processes that wait."""
        self._end_waiting(list(self._waiting))

    def _end_waiting(self, kinds: Sequence[str]) -> None:
        with self._guard:
            left = [worker for kind in kinds for worker in self._waiting.pop(kind, [])]
        for worker in left:
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
    def links(self, workers: Sequence[Worker], *, threads: Sequence[int] = ()) -> Iterator[list[int]]:
        """An open link to each process, for the judge to take over; the first ones work with so many `threads` instead
        of the usual number. Raises ChannelClosed."""
        links: list[Channel] = []
        try:
            for worker, count in itertools.zip_longest(workers, threads):
                ours, theirs = Channel.pair()
                links.append(ours)
                options = self._options if count is None else {**self._options, "threads": count}
                worker.channel.send(options, [theirs.fileno()])
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
