"""Paired statistics of timings, and the lock that keeps a device quiet while something is timed. Free of torch."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import math
import os
import re
import statistics
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from foundry.knowledge.candidate import Stage
from foundry.knowledge.device import Device

CONFIDENCE = 0.95
MIN_PAIRS = 6  # fewer cannot exclude anything with 95 % confidence: 2 / 2**5 > 0.05
MIN_HALF_WIDTH = 0.002  # the clock, the layout of memory: nothing here is surer than 0.2 %
POLL_S = 0.004


@dataclass(frozen=True)
class Effort:
    """How long a stage may time. `half_width` is the relative half width of the interval at which it may stop."""

    min_pairs: int
    max_pairs: int
    budget_s: float
    half_width: float
    processes: int  # times that both sides are started afresh
    checked: int  # timed outputs compared with PyTorch's


EFFORTS: dict[Stage, Effort] = {
    "screen": Effort(min_pairs=6, max_pairs=10, budget_s=0.9, half_width=0.02, processes=1, checked=1),
    "full": Effort(min_pairs=12, max_pairs=200, budget_s=7.0, half_width=0.01, processes=2, checked=3),
    "final": Effort(min_pairs=15, max_pairs=300, budget_s=12.0, half_width=0.01, processes=3, checked=4),
}


@dataclass(frozen=True)
class Ratio:
    """A ratio of times (first over second) with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Relative half width of the interval."""
        return (self.high - self.low) / (2.0 * self.ratio) if self.ratio > 0 else math.inf


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Median ratio first/second of paired times with its 95 % interval.

    Hodges-Lehmann estimate and the distribution-free interval from the Wilcoxon signed-rank test over the logarithms
    of the ratios (Hollander, Wolfe, Chicken: Nonparametric Statistical Methods, section 3.2-3.3). It assumes that the
    noise of a pair is symmetric, which ABBA ordering makes true, and nothing about its size or tails. Below
    `MIN_PAIRS` no 95 % interval exists: it is (0, inf).
    """
    logs = [math.log(first / second) for first, second in pairs]
    if not logs:
        return Ratio(math.nan, 0.0, math.inf)
    averages = sorted((a + b) / 2.0 for i, a in enumerate(logs) for b in logs[i:])
    centre = statistics.median(averages)
    if len(logs) < MIN_PAIRS:
        return Ratio(math.exp(centre), 0.0, math.inf)
    rank = _critical_rank(len(logs))
    low, high = averages[rank - 1], averages[len(averages) - rank]
    low, high = min(low, centre - MIN_HALF_WIDTH), max(high, centre + MIN_HALF_WIDTH)
    return Ratio(math.exp(centre), math.exp(low), math.exp(high))


def combined_ratio(groups: Sequence[Sequence[tuple[float, float]]]) -> Ratio:
    """As `paired_ratio` over pairs measured in several processes, each of which has a bias of its own.

    The layout of memory differs from process to process and shifts all ratios measured there alike, which no number
    of pairs shows. So the interval is at least as wide as the groups' own estimates spread.
    """
    everything = paired_ratio([pair for group in groups for pair in group])
    centres = [paired_ratio(group).ratio for group in groups if group]
    if len(centres) < 2:
        return everything
    return Ratio(everything.ratio, min(everything.low, *centres), max(everything.high, *centres))


def relative_spread(samples: Sequence[float]) -> float:
    """Interquartile range over median."""
    if len(samples) < 4:
        return 0.0
    first, middle, third = statistics.quantiles(samples, n=4)
    return (third - first) / middle if middle > 0 else 0.0


@lru_cache(maxsize=512)
def _critical_rank(count: int) -> int:
    """The rank k so that the k-th smallest and largest Walsh averages bound a 95 % interval for `count` differences.

    Exact distribution of the signed-rank sum up to 60, its normal approximation beyond.
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    if count > 60:
        mean = count * (count + 1) / 4.0
        deviation = math.sqrt(count * (count + 1) * (2 * count + 1) / 24.0)
        return max(1, math.floor(mean + statistics.NormalDist().inv_cdf(tail) * deviation))
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    below = 0
    for total, number in enumerate(ways):
        below += number
        if below / 2.0**count > tail:
            return max(1, total)
    raise AssertionError("the distribution sums to one")


class DeviceLock:
    """Readers (compile, verify) and one writer (time) on a device, across processes and tasks of this one.

    Two files: everyone passes the gate first, and whoever waits to time holds the gate until the readers have left,
    so that a stream of compilations cannot starve it. Locks vanish with the process that holds them.
    """

    def __init__(self, device: Device, home: Path | None = None) -> None:
        folder = (home or foundry_home()) / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", device.key)
        self._gate = folder / f"{name}.gate"
        self._room = folder / f"{name}.lock"
        self._queue: asyncio.Lock | None = None

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Held while something runs that would disturb a timing."""
        async with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Held while something is timed."""
        async with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.asynccontextmanager
    async def _held(self, kind: int) -> AsyncIterator[None]:
        if self._queue is None:
            self._queue = asyncio.Lock()
        room = os.open(self._room, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            async with self._queue:  # first come, first served in this process
                gate = os.open(self._gate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    await _acquire(gate, fcntl.LOCK_EX)
                    await _acquire(room, kind)
                finally:
                    os.close(gate)
            yield
        finally:
            os.close(room)


def foundry_home() -> Path:
    """Where caches, locks and stores live: $FOUNDRY_HOME or ~/.foundry."""
    return Path(os.environ.get("FOUNDRY_HOME") or Path.home() / ".foundry")


async def _acquire(handle: int, kind: int) -> None:
    """Polls, so that a cancelled task leaves no thread behind that would take the lock later."""
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(POLL_S)
