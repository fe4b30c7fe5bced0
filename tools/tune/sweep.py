"""Searches the configurations of a plan's kernels, each kernel by itself. It sees spaces and times, and no machine.

Rounds take a few samples of new configurations and more of the promising ones; a final times the best in turns.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from foundry.tools.tune.policies import Policy
from foundry.tools.tune.space import Setting, SettingSpace

FIRST = 3  # samples of a new configuration
MORE = 10  # samples of a promising one
MOST = 40  # samples in the final
PROMOTED = 4  # configurations a round that get more samples
PROMISING = 1.1  # multiple of the best time; slower configurations get no more samples
FINALISTS = 4  # finalists of each kernel, beside the present configuration
FLOOR_REACHED = 1.03  # multiple of the floor at which nothing is left to gain
CLEARLY = 0.99  # share of the present time; a smaller gain is noise
FINAL_SHARE = 0.15  # share of the seconds that is kept for the final

NOT_REACHED = "not reached in time"  # neither tried nor failed

Ended = Literal["floor", "exhausted", "time"]


@dataclass(frozen=True)
class Job:
    """A configuration of one kernel."""

    kernel: str
    setting: Setting


class Bench(Protocol):
    """Builds and times configurations: a machine, or a recording of one."""

    overlaps: bool  # builds do not disturb what is timed

    def elapsed_s(self) -> float:
        """Seconds since the sweep began, without waiting for others."""
        ...

    async def build(self, jobs: Sequence[Job]) -> dict[Job, str]:
        """Builds configurations; returns the problem of each that failed, or that it was not reached in time."""
        ...

    async def run(self, jobs: Sequence[Job], samples: int, limit_s: float) -> dict[Job, list[float] | str]:
        """Times in ms, taken in turns for `limit_s` seconds at most, or a problem; configurations not reached are
        left out."""
        ...


@dataclass
class KernelSweep:
    """One kernel's configurations and all samples of them."""

    name: str
    space: SettingSpace
    policy: Policy
    floor_ms: float | None = None
    samples: dict[Setting, list[float]] = field(default_factory=dict)
    problems: dict[Setting, str] = field(default_factory=dict)
    final: dict[Setting, list[float]] = field(default_factory=dict)  # samples taken in turns, at the end
    ended: Ended | None = None
    weight: int = 1  # number of kernels of the plan that are the same

    @property
    def tried(self) -> int:
        """Number of configurations that ran or failed."""
        return len(self.samples) + len(self.problems)

    def times(self) -> dict[Setting, float | None]:
        """Median ms of every known configuration; None for a failed one."""
        known: dict[Setting, float | None] = dict.fromkeys(self.problems)
        known.update({setting: statistics.median(found) for setting, found in self.samples.items()})
        return known

    def best(self) -> tuple[Setting, float]:
        """The fastest configuration and its median ms; infinity while none ran."""
        known = {setting: statistics.median(found) for setting, found in self.samples.items()}
        if not known:
            return self.space.present, float("inf")
        setting = min(known, key=lambda item: known[item])
        return setting, known[setting]

    def winner(self) -> tuple[Setting, float, float]:
        """(configuration to take, its ms, the present one's ms), from the final. The present one stays unless
        clearly beaten."""
        known = {setting: statistics.median(found) for setting, found in (self.final or self.samples).items()}
        present = self.space.present
        present_ms = known.get(present, 0.0)  # nothing to compare with if it is missing
        best = min(known, key=lambda item: known[item], default=present)
        if known.get(best, 0.0) >= CLEARLY * present_ms:
            return present, present_ms, present_ms
        return best, known[best], present_ms

    def to_gain_ms(self) -> float:
        """The most that this kernel and its equals can still gain, in ms."""
        best_ms = self.best()[1]
        return self.weight * max(best_ms - (self.floor_ms or 0.0), 0.0) if best_ms < float("inf") else 0.0

    def medians(self) -> list[tuple[float, Setting]]:
        """Every configuration that ran, with its median in ms, the fastest first."""
        known = [(statistics.median(found), setting) for setting, found in self.samples.items()]
        return sorted(known, key=lambda item: item[0])

    def note(self, setting: Setting, found: list[float] | str) -> None:
        """Books samples of a configuration, or its problem."""
        if isinstance(found, str):
            self.samples.pop(setting, None)
            self.problems[setting] = found
        else:
            self.samples.setdefault(setting, []).extend(found)

    def promising(self, count: int, enough: int) -> list[Setting]:
        """The `count` fastest configurations, without those that have `enough` samples."""
        best_ms = self.best()[1]
        known = self.medians()
        near = [setting for ms, setting in known if ms <= PROMISING * best_ms]
        return [setting for setting in near[:count] if len(self.samples[setting]) < enough]


@dataclass
class PlanSweep:
    """One tuning: its kernels, a machine or a recording, its seconds, and a listener for each round."""

    kernels: Sequence[KernelSweep]
    bench: Bench
    seconds: float
    batch: int  # new configurations a round, all kernels together
    say: Callable[[str], None]
    first: int = FIRST  # samples of a new configuration
    rounds: int = 0
    chosen: int = 0
    _building: dict[asyncio.Task[dict[Job, str]], tuple[KernelSweep, Setting]] = field(default_factory=dict)

    async def run(self) -> None:
        """Sweeps until nothing is left to try, the floor is reached or the time is over."""
        first = asyncio.ensure_future(self._measure_present())
        coming = asyncio.ensure_future(self._prepare() if self.bench.overlaps else _nothing())
        try:
            await first
            for kernel in self.kernels:
                if kernel.space.present not in kernel.samples:
                    kernel.ended = "exhausted"  # nothing to compare with
            if not self.bench.overlaps:
                coming = asyncio.ensure_future(self._prepare())
            while chosen := await coming:
                self.rounds += 1
                coming = asyncio.ensure_future(self._prepare() if self.bench.overlaps else _nothing())
                await self._time(chosen, self.first)
                await self._time(self._promoted(), MORE - FIRST)
                self._close()
                self.say(self.line())
                if not self.bench.overlaps:
                    coming = asyncio.ensure_future(self._prepare())
        finally:
            coming.cancel()
            for build in self._building:
                build.cancel()
        await self._final()

    def line(self) -> str:
        """One line about the search so far: configurations tried and failed, seconds, each kernel's best."""
        tried = sum(kernel.tried for kernel in self.kernels)
        failed = sum(len(kernel.problems) for kernel in self.kernels)
        bests = [_best_in_words(kernel) for kernel in self.kernels if kernel.samples]
        return (
            f"round {self.rounds}: {tried} tried, {failed} failed, {self.bench.elapsed_s():.1f} s; {'; '.join(bests)}"
        )

    def _left_s(self) -> float:
        """Seconds left for the search."""
        return self.seconds - self.bench.elapsed_s()

    async def _prepare(self) -> list[tuple[KernelSweep, list[Setting]]]:
        """The next configurations, built; none if the search is over."""
        if not self.bench.overlaps:
            return await self._built(self._chosen(self.batch))
        while True:
            # Refilled at half, so that compilers never wait for the slowest build.
            if len(self._building) <= self.batch // 2:
                for kernel, settings in self._chosen(self.batch - len(self._building)):
                    for setting in settings:
                        build = asyncio.ensure_future(self.bench.build([Job(kernel.name, setting)]))
                        self._building[build] = (kernel, setting)
            built = await self._next_built() if self._building else []
            if built or not self._building or not self._may_wait_s():
                return built

    def _may_wait_s(self) -> float:
        """Seconds to wait for compilers before the final; unlimited until something besides the present one was
        tried."""
        is_first = all(kernel.tried <= 1 for kernel in self.kernels)
        return math.inf if is_first else max(0.0, self._left_s() - FINAL_SHARE * self.seconds)

    async def _next_built(self) -> list[tuple[KernelSweep, list[Setting]]]:
        """Waits until a quarter of a batch has ended, or until the search's time is over.

        Returns the settings that built, by kernel; records the problems of the others.
        """
        wanted = min(len(self._building), max(1, self.batch // 4))
        while sum(build.done() for build in self._building) < wanted and (most_s := self._may_wait_s()):
            going_on = [build for build in self._building if not build.done()]
            timeout = None if most_s == math.inf else most_s
            await asyncio.wait(going_on, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        found: dict[str, tuple[KernelSweep, list[Setting]]] = {}
        for build in [build for build in self._building if build.done()]:
            kernel, setting = self._building.pop(build)
            if self._is_built(kernel, setting, build.result()):
                found.setdefault(kernel.name, (kernel, []))[1].append(setting)
        return list(found.values())

    def _chosen(self, most: int) -> list[tuple[KernelSweep, list[Setting]]]:
        """The next configurations, as many as the remaining time allows."""
        left_s = self._left_s() - FINAL_SHARE * self.seconds
        count = most if left_s > self.seconds / 2 else most // 4  # some are tried in any case
        if self.chosen:
            count = min(most, int(left_s * self.chosen / self.bench.elapsed_s()))
        chosen = self._choose(count) if count > 0 else []
        self.chosen += sum(len(settings) for _, settings in chosen)
        return chosen

    def _choose(self, count: int) -> list[tuple[KernelSweep, list[Setting]]]:
        """`count` new configurations in all, more for kernels with more to gain; marks a kernel without any as
        exhausted."""
        live = [kernel for kernel in self.kernels if kernel.ended is None]
        total = sum(kernel.to_gain_ms() for kernel in live)
        chosen = []
        for kernel in sorted(live, key=lambda one: -one.to_gain_ms()):
            share = kernel.to_gain_ms() / total if total else 1 / len(live)
            found = kernel.policy.ask(max(1, round(share * count)), kernel.times())
            if found:
                chosen.append((kernel, found))
            else:
                kernel.ended = "exhausted"
        return chosen

    async def _built(self, chosen: list[tuple[KernelSweep, list[Setting]]]) -> list[tuple[KernelSweep, list[Setting]]]:
        """Builds configurations and returns those that built."""
        problems = await self.bench.build([Job(c.name, setting) for c, settings in chosen for setting in settings])
        return [
            (kernel, [setting for setting in settings if self._is_built(kernel, setting, problems)])
            for kernel, settings in chosen
        ]

    def _is_built(self, kernel: KernelSweep, setting: Setting, problems: Mapping[Job, str]) -> bool:
        """True if a configuration built; books its problem otherwise."""
        problem = problems.get(Job(kernel.name, setting), "")
        if problem and problem != NOT_REACHED:
            kernel.note(setting, problem)
        return not problem

    async def _measure_present(self) -> None:
        """Times the present configurations, the basis of all comparisons, however long the process takes to start."""
        await self._time(await self._built([(one, [one.space.present]) for one in self.kernels]), MORE, math.inf)

    async def _time(
        self, chosen: list[tuple[KernelSweep, list[Setting]]], samples: int, least_s: float | None = None
    ) -> None:
        """Times built configurations for at least `least_s` seconds, even if the sweep's time is over."""
        jobs = [Job(kernel.name, setting) for kernel, settings in chosen for setting in settings]
        limit_s = max(self._left_s(), FINAL_SHARE * self.seconds if least_s is None else least_s)
        found = await self.bench.run(jobs, samples, limit_s) if jobs else {}
        for kernel, settings in chosen:
            for setting in settings:
                if (known := found.get(Job(kernel.name, setting))) is not None:
                    kernel.note(setting, known)

    def _promoted(self) -> list[tuple[KernelSweep, list[Setting]]]:
        """The configurations of each kernel that get more samples."""
        return [(kernel, kernel.promising(PROMOTED, MORE)) for kernel in self.kernels]

    def _close(self) -> None:
        """Ends the sweep of kernels that have reached their floor."""
        for kernel in self.kernels:
            if kernel.ended is None and kernel.floor_ms and kernel.best()[1] <= FLOOR_REACHED * kernel.floor_ms:
                kernel.ended = "floor"

    async def _final(self) -> None:
        """Times each kernel's best configurations and its present one in turns, with new samples.

        Earlier samples chose the finalists, so their luck must not count.
        """
        jobs: list[Job] = []
        for kernel in self.kernels:
            kernel.ended = kernel.ended or "time"
            known = kernel.medians()
            finalists = dict.fromkeys([kernel.space.present, *(setting for _, setting in known[:FINALISTS])])
            if len(finalists) > 1 and kernel.space.present in kernel.samples:
                jobs += [Job(kernel.name, setting) for setting in finalists]
        found = await self.bench.run(jobs, MOST, max(self._left_s(), FINAL_SHARE * self.seconds)) if jobs else {}
        for kernel in self.kernels:
            times = {job.setting: ms for job, ms in found.items() if job.kernel == kernel.name}
            kernel.final = {setting: ms for setting, ms in times.items() if not isinstance(ms, str)}


def _best_in_words(kernel: KernelSweep) -> str:
    """The kernel's best time, its gain over the present configuration, its floor, and the values that changed."""
    setting, best_ms = kernel.best()
    start_ms = statistics.median(kernel.samples.get(kernel.space.present) or [best_ms])
    floor = f", floor {kernel.floor_ms:.4g}" if kernel.floor_ms else ""
    before = dict(kernel.space.present)
    changed = " ".join(f"{name}={value}" for name, value in setting if before.get(name) != value)
    return f"{kernel.name} {best_ms:.4g} ms ({start_ms / best_ms:.2f}x{floor}) {changed}".rstrip()


async def _nothing() -> list[tuple[KernelSweep, list[Setting]]]:
    """An awaitable that gives no configurations."""
    return []
