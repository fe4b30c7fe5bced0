"""The machine behind a sweep: compilers on every core, and one warm process that runs what they built.

A configuration that hangs or breaks the device costs itself and a restart of that process; so does a process that
somebody kills. What had been loaded is loaded again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.codec import encode
from foundry.knowledge.device import Device
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.channel import Message
from foundry.tools.process.child import Limits, machine_memory_bytes
from foundry.tools.process.zygote import Worker, WorkerDied, Zygote
from foundry.tools.targets.base import Target, build_cache
from foundry.tools.targets.cpu import CpuTarget
from foundry.tools.targets.cuda import CudaTarget
from foundry.tools.tune.alone import Subject
from foundry.tools.tune.prune import unfit
from foundry.tools.tune.space import KernelSpace
from foundry.tools.tune.sweep import Job

Result = TypeVar("Result")
ENTRY = "foundry.tools.tune.worker:serve"
COMPILE_S = 30.0
OPEN_S = 60.0  # a context, and the plan printed
SET_UP_S = 20.0  # a kernel's inputs drawn, and its present configuration loaded and called
LOAD_S = 4.0  # any other configuration loaded, called once and compared
HANG_S, HANG_TIMES = 2.0, 30  # a sample may take so long and so many times the present configuration's time
SLOW = 3.0  # times the present time: one sample says enough


@dataclass
class Crew:
    """What a session works with, the same for all kernels of a plan."""

    graph: OpGraph
    recipe: Recipe
    device: Device
    zygote: Zygote
    lock: DeviceLock
    threads: int
    compilers: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    @property
    def target(self) -> Target:
        """What builds the configurations: as for any candidate, without what only reports read."""
        if self.device.target == "cuda":
            return CudaTarget(self.device, compile_s=COMPILE_S, disassembles=False)
        return CpuTarget(compile_s=COMPILE_S)


class Session:
    """Implements Bench on this machine."""

    def __init__(self, crew: Crew, subjects: Mapping[str, Subject], spaces: Mapping[str, KernelSpace]) -> None:
        self._crew, self._subjects, self._spaces = crew, subjects, spaces
        self.overlaps = crew.device.target == "cuda"
        self.restarts = 0
        self.spent_s = {"build": 0.0, "load": 0.0, "time": 0.0}  # builds: of all compilers together
        self._target = crew.target
        self._texts: dict[Job, str] = {}
        self._present_ms: dict[str, float] = {}
        self._loaded: set[Job] = set()
        self._worker: Worker | None = None
        self._pool = ThreadPoolExecutor(crew.compilers, thread_name_prefix="tuner-build")
        self._runner = ThreadPoolExecutor(1, thread_name_prefix="tuner-run")
        self._started = time.monotonic()
        self._closed = False

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid if self._worker else None

    async def open(self) -> None:
        """Starts the warm process while the first configurations are compiled. Where it fails, the first configuration
        that is loaded tries it again."""

        def start() -> None:
            with contextlib.suppress(WorkerDied):
                _ = self._worker or self._start()

        async with self._crew.lock.shared():
            await self._in(self._runner, start)

    # ------------------------------------------------------------ building

    async def build(self, jobs: Sequence[Job]) -> dict[Job, str]:
        async with self._crew.lock.compiling():
            found = await asyncio.gather(*(self._in(self._pool, self._build, job) for job in jobs))
        return {job: problem for job, problem in zip(jobs, found, strict=True) if problem}

    def _build(self, job: Job) -> str:
        if self._closed:
            return "the session is closed"
        printed = self._spaces[job.kernel].printed(job.setting)
        if reason := unfit(printed, self._crew.device):
            return f"pruned: {reason}"
        text = self._texts[job] = self._subjects[job.kernel].file(printed)
        build = self._target.build(text)
        self.spent_s["build"] += build.seconds
        return "" if build.ok else f"does not compile: {build.first_error}"

    # ------------------------------------------------------------ running

    async def run(self, jobs: Sequence[Job], samples: int, limit_s: float) -> dict[Job, list[float] | str]:
        problems: dict[Job, str] = {}
        async with self._crew.lock.shared():
            for job in jobs:
                if problem := await self._in(self._runner, self._load, job):
                    problems[job] = problem
        times: dict[Job, list[float]] = {job: [] for job in jobs if job not in problems}
        async with self._crew.lock.exclusive():
            await self._in(self._runner, self._take_turns, times, problems, samples, limit_s)
        return {**times, **problems}

    def _load(self, job: Job) -> str:
        """Makes a configuration ready in the warm process; what is wrong with it, or ""."""
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

    def _take_turns(
        self, times: dict[Job, list[float]], problems: dict[Job, str], samples: int, limit_s: float
    ) -> None:
        """One sample of each configuration after the other, so that a slow spell of the machine meets them all."""
        end = time.monotonic() + limit_s
        for turn in range(samples):
            if turn and time.monotonic() > end:
                break
            for job in list(times):
                limit_ms = SLOW * self._present_ms.get(job.kernel, float("inf"))
                if times[job] and times[job][0] > limit_ms:
                    continue
                problem = self._load(job)
                answer: Message = {"problem": problem} if problem else self._sample(job)
                if problem := str(answer.get("problem", "")):
                    problems[job] = problem
                    del times[job]
                else:
                    times[job] += answer["ms"]
                    self._present_ms.setdefault(job.kernel, answer["ms"][0])  # the first of all is the present one

    def _sample(self, job: Job) -> Message:
        start = time.monotonic()
        answer = self._ask(job, {"do": "time", "samples": 1}, HANG_S + self._slowest_s(job))
        self.spent_s["time"] += time.monotonic() - start
        self._crew.lock.use.add(device_s=float(answer.get("device_s", 0.0)))
        return answer

    def _slowest_s(self, job: Job) -> float:
        """What a call of a kernel may take."""
        return HANG_TIMES * self._present_ms.get(job.kernel, 0.0) / 1e3

    def _ask(self, job: Job, message: Message, seconds: float) -> Message:
        """The warm process's answer; a problem where it died of the question."""
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
        crew = self._crew
        limits = Limits(wall_s=OPEN_S, memory_bytes=machine_memory_bytes(), cpu_s=36_000)
        worker = crew.zygote.fork(ENTRY, limits, environment={"FOUNDRY_BUILD_CACHE": str(build_cache())})
        message: Message = {"device": encode(crew.device), "recipe": encode(crew.recipe), "graph": encode(crew.graph)}
        worker.request({**message, "threads": crew.threads})
        self._worker = worker
        return worker

    def _lose(self) -> None:
        """Ends the warm process; the next question starts another."""
        if self._worker is not None:
            self._worker.end()
            self.restarts += 1
        self._worker = None
        self._loaded.clear()

    async def aclose(self) -> None:
        """Ends the warm process and waits for the compilers that still run."""
        self._closed = True
        if self._worker is not None:
            await asyncio.to_thread(self._worker.end)
            self._worker = None
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
        self._runner.shutdown(wait=True)

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
