"""Intervals that are honest under noise, and a lock that keeps readers out while someone times."""

from __future__ import annotations

import asyncio
import fcntl
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from foundry.knowledge.device import Device
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.protocol.statistics import (
    EFFORTS,
    Ratio,
    ScreenHistory,
    centre,
    combined_ratio,
    relative_spread,
    signed_rank,
    two_speeds,
)

Pair = tuple[float, float]
DEVICE = Device("cpu", "Test CPU / 3 GHz", "x86-64-v3", 2, 1 << 20, 32, 1 << 30)
H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
TRIALS = 400
HONEST = (92.0, 98.0)  # percent of 95 % intervals that must hold the truth
NOISE = ("normal", "heavy tails", "bursts", "drift")


def a_group(stream: random.Random, factor: float, pairs: int, noise: str, bias: float = 0.03) -> list[Pair]:
    """Pairs of one pair of processes: a bias of its own, and noise within as machines have it."""
    drift, group = 0.0, []
    shift = stream.gauss(0.0, bias) * (stream.choice((1, 1, 1, 8)) if noise == "bursts" else 1.0)
    if noise == "heavy tails":
        shift = bias * stream.gauss(0.0, 1.0) / max(0.1, math.sqrt(stream.gammavariate(1.0, 1.0)))
    for number in range(pairs):
        drift = 0.9 * drift + stream.gauss(0.0, 0.05 if noise == "drift" else 0.0)
        burst = stream.expovariate(1.0) if stream.random() < 0.1 else 0.0
        order = 0.03 if number % 2 else -0.03  # who comes second is slower
        first = math.exp(drift + order + stream.gauss(0.0, 0.05)) * (1.0 + burst)
        second = math.exp(drift - order + stream.gauss(0.0, 0.05))
        group.append((10.0 * first * math.exp(shift), 10.0 / factor * second * (1.0 + burst * stream.random())))
    return group


def percent_covered(intervals: Iterable[Ratio], truth: float) -> float:
    found = [interval.low <= truth <= interval.high for interval in intervals]
    return 100.0 * sum(found) / len(found)


def symmetric(stream: random.Random, factor: float, pairs: int, noise: str) -> list[Pair]:
    """A group whose error is as often positive as negative, as between two processes of one kind."""
    group = a_group(stream, 1.0, pairs, noise)
    turned = group if stream.random() < 0.5 else [(second, first) for first, second in group]
    return [(first * factor, second) for first, second in turned]


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("count", [7, 12])
def test_the_interval_covers_the_truth_in_95_of_100_trials(count: int, noise: str) -> None:
    stream = random.Random(f"{noise} {count}")
    trials = [[symmetric(stream, 1.3, 6, noise) for _ in range(count)] for _ in range(TRIALS)]
    assert HONEST[0] <= percent_covered(map(combined_ratio, trials), 1.3) <= HONEST[1]


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("half_width", [0.01, 0.03, 0.05])
def test_stopping_when_the_interval_is_narrow_keeps_it_honest(half_width: float, noise: str) -> None:
    stream = random.Random(f"{noise} {half_width}")
    effort = replace(EFFORTS["full"], half_width=half_width)
    intervals, sizes = [], []
    for _ in range(TRIALS):
        groups: list[list[Pair]] = []
        while not effort.is_enough(groups, 0.0):
            groups.append(symmetric(stream, 1.0, 4, noise))
        intervals.append(combined_ratio(groups))
        sizes.append(len(groups))
    assert HONEST[0] <= percent_covered(intervals, 1.0) <= HONEST[1]
    assert effort.min_groups <= min(sizes) <= max(sizes) <= effort.max_groups


def test_pairs_of_one_process_would_claim_too_much() -> None:
    """Why the unit is a process: pairs alone do not show what all of them share."""
    stream = random.Random(5)
    trials = [symmetric(stream, 1.0, 40, "normal") for _ in range(TRIALS)]
    assert percent_covered((signed_rank([math.log(a / b) for a, b in trial]) for trial in trials), 1.0) < 85.0


@pytest.mark.parametrize("noise", NOISE)
def test_screens_learn_how_far_two_groups_lie_apart(noise: str) -> None:
    stream, history = random.Random(noise), ScreenHistory()
    intervals = []
    for number in range(2 * TRIALS):
        factor, pairs = stream.choice((0.8, 1.0, 2.5)), 4 if number % 100 < 50 else 8
        estimate = history.ratio([symmetric(stream, factor, pairs, noise) for _ in range(2)])
        intervals.append(Ratio(estimate.ratio / factor, estimate.low / factor, estimate.high / factor))
    assert HONEST[0] <= percent_covered(intervals, 1.0) <= HONEST[1]


def test_a_single_group_of_a_screen_says_less_than_two() -> None:
    group = symmetric(random.Random(1), 2.0, 6, "normal")
    one, two = ScreenHistory().ratio([group]), ScreenHistory().ratio([group, group])
    assert one.ratio == pytest.approx(two.ratio) and one.half_width > two.half_width > 0


def test_more_groups_narrow_the_interval_and_the_estimate_is_close() -> None:
    stream = random.Random(4)
    groups = [symmetric(stream, 2.0, 8, "normal") for _ in range(60)]
    few, many = combined_ratio(groups[:8]), combined_ratio(groups)
    assert many.half_width < few.half_width / 2
    assert many.ratio == pytest.approx(2.0, rel=0.03)


def test_too_few_groups_prove_nothing() -> None:
    estimate = combined_ratio([[(2.0, 1.0)] * 9] * 5)
    assert estimate.ratio == pytest.approx(2.0) and (estimate.low, estimate.high) == (0.0, math.inf)
    assert combined_ratio([[(2.0, 1.0)] * 2] * 6).low == pytest.approx(2.0, rel=0.01)
    assert math.isnan(combined_ratio([]).ratio)


def test_the_order_within_a_pair_does_not_count() -> None:
    assert centre([(1.1, 1.0), (1.0, 1.1)] * 3) == pytest.approx(0.0, abs=1e-12)


def test_pairs_fit_the_time_and_are_even() -> None:
    effort = EFFORTS["full"]
    assert effort.pairs_within(100.0) == effort.min_pairs and effort.pairs_within(0.0) == effort.max_pairs
    assert effort.pairs_within(effort.group_s / 7.5) == 6


def test_two_speeds_are_seen_and_one_with_stragglers_is_not() -> None:
    stream = random.Random(2)
    one = [1.0 + 0.1 * stream.random() for _ in range(30)]
    assert two_speeds(one) is None and two_speeds([*one, 9.0, 8.0]) is None
    cached = two_speeds([value if stream.random() < 0.5 else value / 10 for value in one])
    assert cached is not None and cached[1] / cached[0] == pytest.approx(10, rel=0.1)
    assert two_speeds([1.0, 10.0] * 5) is None  # too few to tell


def test_relative_spread() -> None:
    assert relative_spread([1.0] * 8) == 0.0
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.0)


def writers_that_wait(folder: Path) -> int:
    """The number of processes that wait for the lock, read from /proc/locks."""
    (wish,) = (folder / "locks").glob("*.wish")
    locked = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(words[3] == "READ" and words[5].endswith(f":{wish.stat().st_ino}") for words in locked)


async def writers_wait(folder: Path, count: int) -> None:
    """Returns once so many writers wait, or where the kernel does not tell."""
    for _ in range(1000):
        if writers_that_wait(folder) == count:
            return
        await asyncio.sleep(0.02)


async def test_readers_share_and_a_writer_is_alone_and_not_starved(tmp_path: Path) -> None:
    inside, order = set[str](), list[str]()
    locks = [DeviceLock(DEVICE, tmp_path) for _ in range(2)]  # two workbenches on one device
    both, may_leave = asyncio.Barrier(3), asyncio.Event()

    async def read(lock: DeviceLock, name: str, *, is_early: bool = False) -> None:
        async with lock.shared():
            inside.add(name)
            order.append(name)
            if is_early:
                await both.wait()
                await may_leave.wait()
            inside.remove(name)

    async def write() -> None:
        async with locks[1].exclusive():
            order.append("writer")
            for _ in range(3):
                assert not inside
                await asyncio.sleep(0.01)

    early = [asyncio.ensure_future(read(lock, f"early {n}", is_early=True)) for n, lock in enumerate(locks)]
    async with asyncio.timeout(PATIENCE_S):
        await both.wait()
    assert len(inside) == 2
    writing = asyncio.ensure_future(write())
    await writers_wait(tmp_path, 1)
    late = [asyncio.ensure_future(read(locks[number % 2], f"late {number}")) for number in range(4)]
    await asyncio.sleep(0.05)
    assert len(order) == 2, "readers that come later pass the one who wants to be alone"
    may_leave.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*early, writing, *late)
    assert order[2] == "writer" and len(order) == 7


def test_who_shares_the_gpu_lets_a_timing_in_between_two_steps(tmp_path: Path) -> None:
    lock = DeviceLock(DEVICE, tmp_path)
    sharing, timing = Holds(lock), Holds(DeviceLock(DEVICE, tmp_path))
    told: list[str] = []

    def time_it() -> None:
        with timing.alone():
            told.append("timed")
            assert timing.pause is None  # no other process enters while something is timed

    with sharing.shared():
        assert sharing.pause is not None
        before = lock.use.total
        sharing.pause()
        assert lock.use.total == before, "it left although nobody waited"
        other = threading.Thread(target=time_it)
        other.start()
        while not told:  # as between the commands of a verification
            sharing.pause()
            time.sleep(0.001)
        told.append("went on")
    other.join()
    assert told == ["timed", "went on"] and sharing.pause is None
    on_cpu = Holds(DeviceLock(DEVICE, tmp_path), on_cpu=True)
    with on_cpu.shared():
        assert on_cpu.pause is None  # what waits there would still spin on the cores


def test_processes_start_beside_all_but_a_timing_and_let_it_in(tmp_path: Path) -> None:
    starting, sharing, tuner, timing = (Holds(DeviceLock(DEVICE, tmp_path)) for _ in range(4))
    told: list[str] = []

    def time_it() -> None:
        with timing.alone():
            told.append("timed")
            late.start()
            while late_one.waited_s < 0.02:
                time.sleep(0.001)
            told.append("timed on")

    def start_late() -> None:
        with late_one.starting():
            told.append("started late")

    late_one = Holds(DeviceLock(DEVICE, tmp_path))
    late, other = threading.Thread(target=start_late), threading.Thread(target=time_it)
    with starting.starting():
        with sharing.shared():
            told.append("shared")
        with tuner.alone_in_turns():
            told.append("tuned")
        other.start()
        while "timed" not in told:  # as between the contexts of a proof
            assert starting.pause is not None
            starting.pause()
            time.sleep(0.001)
    other.join()
    late.join()
    assert told == ["shared", "tuned", "timed", "timed on", "started late"]


def test_who_times_for_long_comes_after_those_that_wait_and_lets_them_in(tmp_path: Path) -> None:
    """As the tuner does; what it waits is known meanwhile."""
    long, proof, sharing = (Holds(DeviceLock(DEVICE, tmp_path)) for _ in range(3))
    told: list[str] = []

    def time_long() -> None:
        with long.alone_in_turns():
            told.append("begins")
            while "proof" not in told:
                assert long.pause is not None
                long.pause()
                time.sleep(0.001)
            told.append("goes on")

    def prove() -> None:
        with proof.alone():
            told.append("proof")

    begun = [threading.Thread(target=time_long), threading.Thread(target=prove)]
    with sharing.shared():
        begun[0].start()
        while long.waited_s < 0.05:
            time.sleep(0.001)
    while not told:
        time.sleep(0.001)
    begun[1].start()
    for thread in begun:
        thread.join()
    assert told == ["begins", "proof", "goes on"] and long.pause is None and long.waited_s >= 0.05


def test_a_long_timing_wishes_for_nothing_while_a_proof_does(tmp_path: Path) -> None:
    long, told = Holds(DeviceLock(DEVICE, tmp_path)), list[str]()
    with long.alone_in_turns():
        (wishes,) = (tmp_path / "locks").glob("*.wish")
    before_s = long.waited_s

    def time_long() -> None:
        with long.alone_in_turns():
            told.append("long")

    with wishes.open("w") as wish:
        fcntl.flock(wish, fcntl.LOCK_SH)  # as a timing does that waits
        thread = threading.Thread(target=time_long)
        thread.start()
        while long.waited_s < before_s + 0.1:
            time.sleep(0.001)
        assert not told
        fcntl.flock(wish, fcntl.LOCK_UN)
    thread.join()
    assert told == ["long"]


async def test_timings_that_are_ready_follow_each_other_before_anybody_shares_again(tmp_path: Path) -> None:
    """The device is emptied for them once: each emptying takes as long as the slowest of those who share it."""
    locks, order = [DeviceLock(DEVICE, tmp_path) for _ in range(3)], list[str]()

    async def hold(lock: DeviceLock, name: str) -> None:
        async with lock.shared() if name == "shares" else lock.exclusive():
            order.append(name)

    async with locks[0].shared():
        begun = [asyncio.ensure_future(hold(locks[number], "alone")) for number in (0, 1)]
        await writers_wait(tmp_path, 2)
        begun.append(asyncio.ensure_future(hold(locks[2], "shares")))
        await asyncio.sleep(0.02)
    await asyncio.gather(*begun)
    assert order == ["alone", "alone", "shares"]


async def test_a_cancelled_wait_lets_the_lock_go(tmp_path: Path) -> None:
    lock = DeviceLock(DEVICE, tmp_path)

    async def never() -> None:
        async with lock.exclusive():
            await asyncio.sleep(1e6)

    async with lock.shared():
        waiting = asyncio.ensure_future(never())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert await is_free(lock.exclusive())


async def is_free(held: AbstractAsyncContextManager[None], patience_s: float = PATIENCE_S) -> bool:
    """True if the lock can be taken."""
    try:
        async with asyncio.timeout(patience_s), held:
            return True
    except TimeoutError:
        return False


AT_ONCE_S = 0.05  # whoever holds a lock would keep it for ever


async def test_each_gpu_of_a_host_has_a_lock_of_its_own(tmp_path: Path) -> None:
    """Two of one kind differ in their UUID only, as the driver gave it on a host with several H200."""
    first = replace(H200, uuid="0e1b7a2c-6f2f-2d0d-9c5f-6d7f3a0c51e4")
    second = replace(H200, uuid="5c3e9d11-90a4-8b1e-1f0a-2b9c4d7e8f60")
    assert first.key == second.key and first.unit != second.unit
    async with DeviceLock(first, tmp_path).exclusive():
        assert await is_free(DeviceLock(second, tmp_path).exclusive())
        assert not await is_free(DeviceLock(first, tmp_path).exclusive(), AT_ONCE_S)
        assert not await is_free(DeviceLock(first, tmp_path).shared(), AT_ONCE_S)


async def test_compiling_waits_for_timings_on_a_cpu_only(tmp_path: Path) -> None:
    for device, waits in ((DEVICE, True), (H200, False)):
        patience_s = AT_ONCE_S if waits else PATIENCE_S
        async with DeviceLock(device, tmp_path).exclusive():
            assert await is_free(DeviceLock(device, tmp_path).compiling(), patience_s) is not waits
        async with DeviceLock(device, tmp_path).compiling():
            assert await is_free(DeviceLock(device, tmp_path).exclusive(), patience_s) is not waits


async def test_the_lock_reaches_other_processes_and_dies_with_them(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom foundry.knowledge.device import Device\n"
        "from foundry.tools.machine.lock import DeviceLock\n"
        f"lock = DeviceLock(Device('cpu', {DEVICE.name!r}, '', 2, 1, 1, 1), Path({str(tmp_path)!r}))\n"
        "async def main():\n    async with lock.exclusive():\n        print('held', flush=True)\n"
        "        await asyncio.sleep(1e6)\nasyncio.run(main())"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    lock = DeviceLock(DEVICE, tmp_path)
    assert not await is_free(lock.shared(), AT_ONCE_S)
    other.kill()
    other.wait()
    other.stdout.close()
    assert await is_free(lock.shared())
