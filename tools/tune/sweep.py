"""The search over the configurations of a plan's kernels, each kernel by itself: rounds of new configurations with few
samples, more samples for the promising ones, and a final in turns. It sees spaces and times, and no machine.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from foundry.tools.tune.policies import Policy
from foundry.tools.tune.space import Setting, SettingSpace

FIRST, MORE, MOST = 3, 10, 40  # samples of a configuration: new, promising, in the final
PROMOTED = 4  # configurations a round that get more samples
PROMISING = 1.1  # times the best time: others are not looked at again
FINALISTS = 4  # of each kernel, beside the present configuration
FLOOR_REACHED = 1.03  # times the floor: nothing is left to gain
CLEARLY = 0.99  # of the present time: a smaller gain is noise
FINAL_SHARE = 0.15  # of the seconds are kept for the final

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
        """Since the sweep began."""
        ...

    async def build(self, jobs: Sequence[Job]) -> dict[Job, str]:
        """What is wrong with those that cannot be built."""
        ...

    async def run(self, jobs: Sequence[Job], samples: int, limit_s: float) -> dict[Job, list[float] | str]:
        """Times in ms, taken in turns for `limit_s` at most, but each at least once; or what is wrong."""
        ...


@dataclass
class KernelSweep:
    """One kernel's configurations and what is known of them."""

    kernel: str
    space: SettingSpace
    policy: Policy
    floor_ms: float | None = None
    samples: dict[Setting, list[float]] = field(default_factory=dict)
    problems: dict[Setting, str] = field(default_factory=dict)
    final: dict[Setting, list[float]] = field(default_factory=dict)  # samples taken in turns, at the end
    ended: Ended | None = None
    weight: int = 1  # how many kernels of the plan are the same

    @property
    def tried(self) -> int:
        return len(self.samples) + len(self.problems)

    def times(self) -> dict[Setting, float | None]:
        known: dict[Setting, float | None] = dict.fromkeys(self.problems)
        known.update({setting: statistics.median(found) for setting, found in self.samples.items()})
        return known

    def best(self) -> tuple[Setting, float]:
        """The fastest configuration and its ms; infinity while none ran."""
        known = {setting: statistics.median(found) for setting, found in self.samples.items()}
        if not known:
            return self.space.present, float("inf")
        setting = min(known, key=lambda item: known[item])
        return setting, known[setting]

    def winner(self) -> tuple[Setting, float, float]:
        """The configuration to take, its ms and the present one's, both from the final. The present one stays where
        nothing is clearly faster."""
        known = {setting: statistics.median(found) for setting, found in (self.final or self.samples).items()}
        present = self.space.present
        present_ms = known.get(present, 0.0)  # without it there is nothing to compare with
        best = min(known, key=lambda item: known[item], default=present)
        if known.get(best, 0.0) >= CLEARLY * present_ms:
            return present, present_ms, present_ms
        return best, known[best], present_ms

    def to_gain_ms(self) -> float:
        """What is at most still to be gained by this kernel and those like it."""
        best_ms = self.best()[1]
        return self.weight * max(best_ms - (self.floor_ms or 0.0), 0.0) if best_ms < float("inf") else 0.0

    def note(self, setting: Setting, found: list[float] | str) -> None:
        if isinstance(found, str):
            self.samples.pop(setting, None)
            self.problems[setting] = found
        else:
            self.samples.setdefault(setting, []).extend(found)

    def promising(self, count: int, enough: int) -> list[Setting]:
        """The fastest configurations that have fewer than `enough` samples."""
        best_ms = self.best()[1]
        known = sorted((statistics.median(found), setting) for setting, found in self.samples.items())
        near = [setting for ms, setting in known if ms <= PROMISING * best_ms]
        return [setting for setting in near[:count] if len(self.samples[setting]) < enough]


@dataclass
class PlanSweep:
    """One tuning: its contests, the machine or the recording, the seconds it may take, and who hears of each round."""

    contests: Sequence[KernelSweep]
    bench: Bench
    seconds: float
    batch: int  # new configurations a round, all kernels together
    say: Callable[[str], None]
    rounds: int = 0

    async def run(self) -> None:
        """Until nothing is left to try, the floor is reached or the time is over."""
        await self._measure([(contest, [contest.space.present]) for contest in self.contests], MORE)
        for contest in self.contests:
            if contest.space.present not in contest.samples:
                contest.ended = "exhausted"  # nothing to compare with
        coming = asyncio.ensure_future(self._prepare())
        while chosen := await coming:
            self.rounds += 1
            coming = asyncio.ensure_future(self._prepare() if self.bench.overlaps else _nothing())
            await self._time(chosen, FIRST)
            await self._time(self._promoted(), MORE - FIRST)
            self._close_contests()
            self.say(self.line())
            if not self.bench.overlaps:
                coming = asyncio.ensure_future(self._prepare())
        await self._final()

    def line(self) -> str:
        """The round in one line."""
        tried = sum(contest.tried for contest in self.contests)
        failed = sum(len(contest.problems) for contest in self.contests)
        bests = [_best_in_words(contest) for contest in self.contests if contest.samples]
        return (
            f"round {self.rounds}: {tried} tried, {failed} failed, {self.bench.elapsed_s():.1f} s; {'; '.join(bests)}"
        )

    def _left_s(self) -> float:
        return self.seconds - self.bench.elapsed_s()

    async def _prepare(self) -> list[tuple[KernelSweep, list[Setting]]]:
        """The next configurations, built; none when the search is over."""
        tried = sum(contest.tried for contest in self.contests)
        left_s = self._left_s() - FINAL_SHARE * self.seconds
        count = min(self.batch, int(left_s * tried / self.bench.elapsed_s())) if self.rounds else self.batch
        return await self._built(self._choose(count)) if left_s > 0 and count > 0 else []

    def _choose(self, count: int) -> list[tuple[KernelSweep, list[Setting]]]:
        """New configurations, most for the kernel with the most to gain."""
        live = [contest for contest in self.contests if contest.ended is None]
        total = sum(contest.to_gain_ms() for contest in live)
        chosen = []
        for contest in sorted(live, key=lambda one: -one.to_gain_ms()):
            share = contest.to_gain_ms() / total if total else 1 / len(live)
            found = contest.policy.ask(max(1, round(share * count)), contest.times())
            if found:
                chosen.append((contest, found))
            else:
                contest.ended = "exhausted"
        return chosen

    async def _built(self, chosen: list[tuple[KernelSweep, list[Setting]]]) -> list[tuple[KernelSweep, list[Setting]]]:
        problems = await self.bench.build([Job(c.kernel, setting) for c, settings in chosen for setting in settings])
        for contest, settings in chosen:
            for setting in settings:
                if problem := problems.get(Job(contest.kernel, setting)):
                    contest.note(setting, problem)
        return [(c, [setting for setting in settings if setting not in c.problems]) for c, settings in chosen]

    async def _measure(self, chosen: list[tuple[KernelSweep, list[Setting]]], samples: int) -> None:
        await self._time(await self._built(chosen), samples)

    async def _time(self, chosen: list[tuple[KernelSweep, list[Setting]]], samples: int) -> None:
        jobs = [Job(contest.kernel, setting) for contest, settings in chosen for setting in settings]
        found = await self.bench.run(jobs, samples, self._left_s()) if jobs else {}
        for contest, settings in chosen:
            for setting in settings:
                contest.note(setting, found[Job(contest.kernel, setting)])

    def _promoted(self) -> list[tuple[KernelSweep, list[Setting]]]:
        return [(contest, contest.promising(PROMOTED, MORE)) for contest in self.contests]

    def _close_contests(self) -> None:
        for contest in self.contests:
            if contest.ended is None and contest.floor_ms and contest.best()[1] <= FLOOR_REACHED * contest.floor_ms:
                contest.ended = "floor"

    async def _final(self) -> None:
        """The best of each kernel and its present configuration in turns, from nothing: what was measured before chose
        them, so their luck must not count."""
        jobs: list[Job] = []
        for contest in self.contests:
            contest.ended = contest.ended or "time"
            known = sorted((statistics.median(found), setting) for setting, found in contest.samples.items())
            finalists = dict.fromkeys([contest.space.present, *(setting for _, setting in known[:FINALISTS])])
            if len(finalists) > 1 and contest.space.present in contest.samples:
                jobs += [Job(contest.kernel, setting) for setting in finalists]
        found = await self.bench.run(jobs, MOST, max(self._left_s(), FINAL_SHARE * self.seconds)) if jobs else {}
        for contest in self.contests:
            times = {job.setting: ms for job, ms in found.items() if job.kernel == contest.kernel}
            contest.final = {setting: ms for setting, ms in times.items() if not isinstance(ms, str)}


def _best_in_words(contest: KernelSweep) -> str:
    setting, best_ms = contest.best()
    start_ms = statistics.median(contest.samples.get(contest.space.present) or [best_ms])
    floor = f", floor {contest.floor_ms:.4g}" if contest.floor_ms else ""
    before = dict(contest.space.present)
    changed = " ".join(f"{name}={value}" for name, value in setting if before.get(name) != value)
    return f"{contest.kernel} {best_ms:.4g} ms ({start_ms / best_ms:.2f}x{floor}) {changed}".rstrip()


async def _nothing() -> list[tuple[KernelSweep, list[Setting]]]:
    return []
