"""The arithmetic of a bench's summary. Free of plots and of words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundry.graph.doors.bench.results import TaskResult

ALL = "all"


@dataclass(frozen=True)
class RivalFigures:
    """Another way to run the reference, on the tasks that count and on which it could be timed."""

    tasks: int
    over_baseline: float | None  # geomean of eager (TF32 allowed) over it
    by_kernel: float | None  # geomean of it over the accepted kernels
    beaten: float | None  # share of the tasks whose accepted kernel is faster


@dataclass(frozen=True)
class ForeignFigures:
    """Shares of the tasks that count; `geomean` is over the kernels that are right by those rules."""

    rules: str
    correct: float
    geomean: float | None
    fast_1: float
    eager_correct: float | None  # share of the asked tasks on which the timed eager PyTorch is right


@dataclass(frozen=True)
class Figures:
    """Counts, shares and mean speedups of a group of tasks.

    Shares are of the tasks that count. `geomean` and `median` are over the accepted kernels, slow ones among them.
    `geomean_of_all` takes every other task that counts as 1.0x, because its user would keep PyTorch. A figure over no
    task is None.
    """

    group: str
    tasks: int
    counted: int
    accepted: int
    geomean: float | None
    geomean_of_all: float | None
    median: float | None
    fast_1: float | None
    fast_1_2: float | None
    fast_2: float | None
    eager: RivalFigures  # PyTorch's default arithmetic
    compiled: RivalFigures
    autotuned: RivalFigures
    foreign: ForeignFigures | None  # None where no rules but ours were asked for
    peak_memory: float | None  # geomean of kernel over eager
    fraction_of_floor: float | None  # median
    first_verified_s: float | None  # median; of runs that were never stopped, as are the next two
    task_s: float | None  # median
    evaluations_per_minute: float | None

    @property
    def correct(self) -> float | None:
        """Share of the tasks that count with an accepted kernel."""
        return self.accepted / self.counted if self.counted else None


def figures_of(results: Sequence[TaskResult]) -> list[Figures]:
    """One a group, by its name, and one of all; only that where there is one group."""
    groups = sorted({group_of(result) for result in results})
    found = [_figures(group, [one for one in results if group_of(one) == group]) for group in groups]
    return [*(found if len(groups) > 1 else []), _figures(ALL, results)]


def group_of(result: TaskResult) -> str:
    """The folder part of a task's name; "" without one."""
    return result.task.rpartition("/")[0]


def _figures(group: str, results: Sequence[TaskResult]) -> Figures:
    """The figures of one group of results: counts, geometric means, fast_p, baselines, medians of time and memory."""
    counted = [result for result in results if result.counts]
    speedups = [speedup for result in counted if (speedup := _accepted_speedup(result))]
    whole = [result for result in counted if result.sessions == 1 and result.run]
    minutes = sum(result.wall_s for result in whole) / 60
    return Figures(
        group,
        len(results),
        len(counted),
        len(speedups),
        geomean=geomean(speedups),
        geomean_of_all=geomean([*speedups, *([1.0] * (len(counted) - len(speedups)))]),
        median=_median(speedups),
        fast_1=fast(counted, 1.0),
        fast_1_2=fast(counted, 1.2),
        fast_2=fast(counted, 2.0),
        eager=_rival("eager", counted),
        compiled=_rival("compile", counted),
        autotuned=_rival("autotune", counted),
        foreign=_foreign(counted),
        peak_memory=geomean(one.peak_memory_ratio for one in counted if one.is_accepted and one.peak_memory_ratio),
        fraction_of_floor=_median(result.fraction_of_floor for result in counted if result.is_accepted),
        first_verified_s=_median(result.first_verified_s for result in whole),
        task_s=_median(result.wall_s for result in whole),
        evaluations_per_minute=sum(result.evaluations for result in whole) / minutes if minutes else None,
    )


def _rival(name: str, counted: Sequence[TaskResult]) -> RivalFigures:
    """One baseline's figures over the tasks for which it was timed: its speedup, ours over it, and the share we
    beat."""
    timed = [one for one in counted if getattr(one, f"{name}_speedup")]
    versus = [getattr(one, f"speedup_vs_{name}") for one in timed if one.is_accepted]
    known = [ratio for ratio in versus if ratio]
    return RivalFigures(
        len(timed),
        geomean(getattr(one, f"{name}_speedup") for one in timed),
        geomean(known),
        sum(ratio > 1 for ratio in known) / len(timed) if timed else None,
    )


def _foreign(counted: Sequence[TaskResult]) -> ForeignFigures | None:
    """The figures by another benchmark's rules; None if no accepted kernel was judged by them."""
    asked = [one.foreign for one in counted if one.is_accepted and one.foreign]
    if not asked:
        return None
    speedups = [one.speedup for one in asked if one.correct and one.speedup]
    eager = [one.eager_correct for one in asked if one.eager_correct is not None]
    return ForeignFigures(
        asked[0].rules,
        sum(one.correct for one in asked) / len(counted),
        geomean(speedups),
        sum(speedup > 1 for speedup in speedups) / len(counted),
        sum(eager) / len(eager) if eager else None,
    )


def fast(counted: Sequence[TaskResult], bar: float) -> float | None:
    """fast_p: the share of the tasks that count whose accepted kernel is more than `bar` times as fast as eager."""
    if not counted:
        return None
    return sum((_accepted_speedup(result) or 0.0) > bar for result in counted) / len(counted)


def geomean(ratios: Iterable[float]) -> float | None:
    """Geometric mean; None for no ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None


def _accepted_speedup(result: TaskResult) -> float | None:
    """The speedup of an accepted kernel, else None."""
    return result.speedup if result.is_accepted else None


def _median(values: Iterable[float | None]) -> float | None:
    """Median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
