"""The arithmetic of a bench's summary. Free of plots and of words."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foundry.graph.bench.results import TaskResult

ALL = "all"


@dataclass(frozen=True)
class Figures:
    """What a group of tasks comes to. Shares are of the tasks that count. `geomean` and `median` are over the accepted
    kernels, slow ones among them; `geomean_of_all` takes every other task that counts as 1.0x, because its user would
    keep PyTorch. None: there is nothing to take it over."""

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
    geomean_vs_compile: float | None  # over the accepted kernels of tasks on which torch.compile could be timed
    faster_than_compile: float | None  # share of the tasks that count and on which torch.compile could be timed
    compile_geomean: float | None  # torch.compile over eager, on all tasks on which it could be timed
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
    return result.task.rpartition("/")[0]


def _figures(group: str, results: Sequence[TaskResult]) -> Figures:
    counted = [result for result in results if result.counts]
    speedups = [speedup for result in counted if (speedup := _accepted_speedup(result))]
    compiled = [result for result in counted if result.compile_speedup]
    versus = [result.speedup_vs_compile for result in compiled if result.is_accepted and result.speedup_vs_compile]
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
        geomean_vs_compile=geomean(versus),
        faster_than_compile=sum(ratio > 1 for ratio in versus) / len(compiled) if compiled else None,
        compile_geomean=geomean([result.compile_speedup for result in compiled if result.compile_speedup]),
        fraction_of_floor=_median(result.fraction_of_floor for result in counted if result.is_accepted),
        first_verified_s=_median(result.first_verified_s for result in whole),
        task_s=_median(result.wall_s for result in whole),
        evaluations_per_minute=sum(result.evaluations for result in whole) / minutes if minutes else None,
    )


def fast(counted: Sequence[TaskResult], bar: float) -> float | None:
    """fast_p: the share of the tasks that count whose accepted kernel is more than `bar` times as fast as eager."""
    if not counted:
        return None
    return sum((_accepted_speedup(result) or 0.0) > bar for result in counted) / len(counted)


def geomean(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None


def _accepted_speedup(result: TaskResult) -> float | None:
    return result.speedup if result.is_accepted else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
