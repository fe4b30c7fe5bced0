"""The machine behind a sweep: compilers on every core, and one warm process that runs the built configurations.

The compiler's own kernels run in a trusted process. An author's kernel runs in one that is confined like any
candidate's: its answers are data, and at worst they choose a candidate that is no faster.

A configuration that hangs or breaks the device costs itself and a restart of that process; so does a process that is
killed from outside. Loaded configurations are then loaded again automatically. No compiler runs beyond a session's
seconds.

A session's seconds are those in which it could work: its clock stands still while others have the device, and on a
GPU its compilers go on meanwhile. It holds the device for short slices, and lets waiting timings go first.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard, TypeVar

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.codec import encode
from foundry.knowledge.device import Device
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.holds import Holds, WaitClock
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.channel import Message
from foundry.tools.process.child import Limits, machine_memory_bytes
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker, WorkerDied, Zygote
from foundry.tools.targets.base import Target, build_cache
from foundry.tools.targets.registry import target_of
from foundry.tools.tune.alone import Subject
from foundry.tools.tune.space import KernelSpace
from foundry.tools.tune.sweep import NOT_REACHED, Job

Result = TypeVar("Result")
ENTRY = "foundry.tools.tune.worker:serve"
COMPILE_S = 30.0  # seconds for one compilation
OPEN_S = 60.0  # seconds for a context and the printed plan
SET_UP_S = 20.0  # seconds for a kernel's inputs, and for loading and calling its present configuration
LOAD_S = 4.0  # seconds for loading, calling once and comparing any other configuration
HANG_S = 2.0  # seconds that a sample may take,
HANG_TIMES = 30  # plus this multiple of the present configuration's time
SLOW = 3.0  # multiple of the present time; one sample of a slower configuration is enough
LEAST_BUILD_S = 0.3  # seconds; with less left nothing is compiled any more
SLICE_S = 0.2  # seconds for which the device is held alone while others wait for it


@dataclass(frozen=True)
class Cell:
    """The place of a confined process: a new folder of its own, the environment, and the sandbox around it."""

    folder: Path
    environment: Mapping[str, str]
    sandbox: Sandbox


@dataclass
class Crew:
    """Everything that a session works with, the same for all kernels of a plan.

    `cell` makes the place in which an author's code runs; without it only the compiler's own kernels are tuned.
    """

    graph: OpGraph
    recipe: Recipe
    device: Device
    zygote: Zygote
    lock: DeviceLock
    threads: int
    cell: Callable[[], Cell] | None = None
    compilers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def target(self, compile_s: float = COMPILE_S) -> Target:
        """The target that builds configurations like any candidate, without disassembly (only reports read it)."""
        return target_of(self.device, compile_s=compile_s, disassembles=False)


class Session:
    """Implements Bench on this machine."""

    def __init__(
        self,
        crew: Crew,
        subjects: Mapping[str, Subject],
        spaces: Mapping[str, KernelSpace],
        seconds: float = float("inf"),
        waiting_s: float = float("inf"),
    ) -> None:
        """`seconds` is its own time, `waiting_s` the most that it waits for other users of the device."""
        self._crew, self._subjects, self._spaces = crew, subjects, spaces
        self.overlaps = not crew.device.traits.uses_host_cores
        self.restarts = 0
        self.spent_s = {"build": 0.0, "load": 0.0, "time": 0.0}  # builds: of all compilers together
        self._texts: dict[Job, str] = {}
        self._present_ms: dict[str, float] = {}
        self._loaded: set[Job] = set()
        self._worker: Worker | None = None
        self._pool = ThreadPoolExecutor(crew.compilers, thread_name_prefix="tuner-build")
        self._runner = ThreadPoolExecutor(1, thread_name_prefix="tuner-run")
        self._started = time.monotonic()
        self._seconds = seconds
        self._waiting_s = waiting_s
        self._closed = False
        on_cpu = crew.device.traits.uses_host_cores
        self._waits = WaitClock()  # counts compilers' waiting too
        self._holds = Holds(crew.lock, on_cpu=on_cpu, is_over=lambda: self._closed, waits=self._waits)

    @property
    def waited_s(self) -> float:
        """Seconds for which it waited until others released the device."""
        return self._waits.seconds

    def elapsed_s(self) -> float:
        """Seconds since the start, without those that were spent waiting."""
        return time.monotonic() - self._started - self.waited_s

    def left_s(self) -> float:
        """Seconds until its own time, or its time for waiting, is over."""
        waited_s = self.waited_s
        return self._seconds - self.elapsed_s() + min(0.0, self._waiting_s - waited_s)

    @property
    def worker_pid(self) -> int | None:
        """Process id of the warm process; None without one."""
        return self._worker.pid if self._worker else None

    async def open(self) -> None:
        """Starts the warm process while the first configurations are compiled. A failure is tried again by the first
        load."""

        def start() -> None:
            """Starts the warm process, unless it is there."""
            with contextlib.suppress(WorkerDied):
                _ = self._worker or self._start()

        await self._in(self._runner, self._starting, start)

    def _starting(self, work: Callable[[], None]) -> None:
        """Runs `work` while holding the device as a starting process."""
        with self._until_closed(), self._holds.starting():
            work()

    def _sharing(self, work: Callable[[], None]) -> None:
        """Runs `work` while sharing the device."""
        with self._until_closed(), self._holds.shared():
            work()

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Swallows errors of waiting for the device once the session is closed."""
        try:
            yield
        except FoundryError:
            if not self._closed:
                raise

    # ------------------------------------------------------------ building

    async def build(self, jobs: Sequence[Job]) -> dict[Job, str]:
        """Compiles the jobs on all cores, with the device's lock shared for compiling; returns the problem of each that
        failed."""
        async with contextlib.AsyncExitStack() as stack:
            with self._waits.waiting():
                await stack.enter_async_context(self._crew.lock.compiling())
            found = await asyncio.gather(*(self._in(self._pool, self._build, job) for job in jobs))
        return {job: problem for job, problem in zip(jobs, found, strict=True) if problem}

    def _build(self, job: Job) -> str:
        """Compiles one configuration; returns "", or what is wrong: pruned, not reached in time, or the compiler's
        first error."""
        if self._closed:
            return "the session is closed"
        printed = self._spaces[job.kernel].printed(job.setting)
        if reason := self._crew.target().unfit(printed):
            return f"pruned: {reason}"
        text = self._texts[job] = self._subjects[job.kernel].file(printed)
        left_s = self.left_s()
        if left_s < LEAST_BUILD_S:
            return NOT_REACHED
        build = self._crew.target(min(COMPILE_S, left_s)).build(text)
        self.spent_s["build"] += build.seconds
        if build.ok:
            return ""
        return NOT_REACHED if self.left_s() < 0 else f"does not compile: {build.first_error}"

    # ------------------------------------------------------------ running

    async def run(self, jobs: Sequence[Job], samples: int, limit_s: float) -> dict[Job, list[float] | str]:
        """Loads the built jobs and times them in turns until `samples` each or the limit; returns ms, or a problem, by
        job."""
        end_s = self.elapsed_s() + limit_s
        times: dict[Job, list[float]] = {}
        problems: dict[Job, str] = {}

        def load() -> None:
            """Loads all jobs in the warm process."""
            self._load_all(jobs, times, problems, end_s)

        await self._in(self._runner, self._sharing, load)
        await self._in(self._runner, self._take_turns, times, problems, samples, end_s)
        return {**{job: found for job, found in times.items() if found}, **problems}

    def _load_all(
        self, jobs: Sequence[Job], times: dict[Job, list[float]], problems: dict[Job, str], end_s: float
    ) -> None:
        """Loads configurations until `end_s` and makes an empty list of times for each; timings of others may come
        in between."""
        for job in jobs:
            if pause := self._holds.pause:
                pause()
            if self._is_over(end_s):
                break
            if problem := self._load(job):
                problems[job] = problem
            else:
                times[job] = []

    def _is_over(self, end_s: float) -> bool:
        """True if the session is closed or its clock has passed `end_s`."""
        return self._closed or self.elapsed_s() > end_s

    def _load(self, job: Job) -> str:
        """Loads a configuration into the warm process; returns what is wrong with it, or ""."""
        if job in self._loaded and self._worker is not None:
            return ""
        present = Job(job.kernel, self._spaces[job.kernel].present)
        if job != present and (problem := self._load(present)):
            return problem
        seconds = SET_UP_S if job == present else LOAD_S + self._slowest_s(job)
        start = time.monotonic()
        answer = self._ask(job, {"do": "load", "choices": dict(job.setting)}, seconds)
        self.spent_s["load"] += time.monotonic() - start
        if problem := str(answer.get("problem", "")):
            return problem
        self._loaded.add(job)
        return ""

    def _take_turns(self, times: dict[Job, list[float]], problems: dict[Job, str], samples: int, end_s: float) -> None:
        """Takes the samples of all jobs while the device is held alone; lets others time after each SLICE_S seconds."""
        with self._until_closed(), self._holds.alone_in_turns():
            began = time.monotonic()
            for _ in self._turns(times, problems, samples, end_s):
                if time.monotonic() - began > SLICE_S and (pause := self._holds.pause):
                    pause()
                    began = time.monotonic()

    def _turns(
        self, times: dict[Job, list[float]], problems: dict[Job, str], samples: int, end_s: float
    ) -> Iterator[None]:
        """Takes one sample of each configuration after the other, so that a slow spell of the machine meets them
        all."""
        for _ in range(samples):
            for job in list(times):
                if self._is_over(end_s):
                    return
                limit_ms = SLOW * self._present_ms.get(job.kernel, float("inf"))
                if times[job] and times[job][0] > limit_ms:
                    continue
                problem = self._load(job)
                answer: Message = {"problem": problem} if problem else self._sample(job)
                if problem := str(answer.get("problem", "")):
                    problems[job] = problem
                    del times[job]
                else:
                    times[job].append(answer["ms"])
                    # The first sample of all is the present configuration's.
                    self._present_ms.setdefault(job.kernel, answer["ms"])
                yield

    def _sample(self, job: Job) -> Message:
        """Times a configuration once; returns {"ms": ...} or {"problem": ...}. Times that cannot have passed are a
        problem."""
        start = time.monotonic()
        answer = self._ask(job, {"do": "time"}, HANG_S + self._slowest_s(job))
        took_s = time.monotonic() - start
        self.spent_s["time"] += took_s
        if "problem" in answer:
            return answer
        ms, device_s = answer.get("ms"), answer.get("device_s")
        if not is_time(ms, 1e3 * took_s) or not is_time(device_s, took_s):
            return {"problem": "gave no time that can have passed"}
        self._crew.lock.use.add(device_s=device_s)
        return {"ms": ms}

    def _slowest_s(self, job: Job) -> float:
        """Seconds that one call of a kernel may take."""
        return HANG_TIMES * self._present_ms.get(job.kernel, 0.0) / 1e3

    def _ask(self, job: Job, message: Message, seconds: float) -> Message:
        """The warm process's answer; a problem if the process died of the question."""
        if self._closed:
            return {"problem": "the session is closed"}
        try:
            worker = self._worker or self._start()
            order = {**message, "kernel": job.kernel, "text": self._texts[job]}
            answer, _ = worker.request(order, timeout_s=seconds)
        except WorkerDied as died:
            self._lose()
            return {"problem": f"{died.outcome}: {died.evidence}"}
        if answer.get("is_lost"):
            self._lose()
        return answer

    def _start(self) -> Worker:
        """Forks a worker and sends it device, recipe and graph: confined if the recipe contains an author's code."""
        crew = self._crew
        worker = self._fork_confined() if crew.recipe.authored is not None else self._fork_trusted()
        self._worker = worker  # `aclose` now ends it, even while it starts
        message: Message = {"device": encode(crew.device), "recipe": encode(crew.recipe), "graph": encode(crew.graph)}
        try:
            worker.request({**message, "threads": crew.threads})
        except WorkerDied:
            self._worker = None
            raise
        return worker

    def _fork_trusted(self) -> Worker:
        """Forks a worker without a sandbox, for code of the kernel compiler only."""
        limits = Limits(wall_s=OPEN_S, memory_bytes=machine_memory_bytes(), cpu_s=36_000)
        return self._crew.zygote.fork(ENTRY, limits, environment={"FOUNDRY_BUILD_CACHE": str(build_cache())})

    def _fork_confined(self) -> Worker:
        """Forks a worker in a sandbox, for code written by a model or a user. Raises WorkerDied if there is no
        sandbox."""
        if self._crew.cell is None:
            raise WorkerDied("crash", "there is no place to confine an author's code in")
        cell = self._crew.cell()
        memory = machine_memory_bytes()
        limits = Limits(
            wall_s=OPEN_S,
            memory_bytes=memory,
            shared_bytes=memory,
            cpu_s=3600,
            file_bytes=1 << 30,
            folder_bytes=2 << 30,
        )
        return self._crew.zygote.fork(
            ENTRY, limits, directory=cell.folder, environment=cell.environment, sandbox=cell.sandbox
        )

    def _lose(self) -> None:
        """Ends the warm process; the next question starts another."""
        if self._worker is not None:
            _end(self._worker)
            self.restarts += 1
        self._worker = None
        self._loaded.clear()

    async def aclose(self) -> None:
        """Ends the warm process and waits for the compilers that still run."""
        await asyncio.to_thread(self._stop)
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)

    def _stop(self) -> None:
        """Stops all work; nothing of this session runs on the device afterwards."""
        self._closed = True
        if worker := self._worker:
            _end(worker)
        self._runner.shutdown(wait=True, cancel_futures=True)
        if worker := self._worker:  # forked just now
            _end(worker)
        self._worker = None

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[..., Result], *arguments: object) -> Result:
        """Runs `work` in a thread. If it is cancelled while it holds the device, nothing keeps running there."""
        future = asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if pool is self._runner:
                await asyncio.to_thread(self._stop)
            else:
                future.cancel()  # has no effect if it has begun
            raise


def _end(worker: Worker) -> None:
    """Ends a process and deletes its folder, if it has one."""
    worker.end()
    if worker.directory is not None:
        shutil.rmtree(worker.directory, ignore_errors=True)


def is_time(value: object, most: float) -> TypeGuard[float]:
    """True if an answer is a time that can have passed; it may come from hostile code."""
    return isinstance(value, float) and math.isfinite(value) and 0.0 <= value <= most
