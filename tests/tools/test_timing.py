"""Intervals that are honest under noise, and a lock that keeps readers out while someone times."""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from foundry.knowledge.device import Device
from foundry.tools.timing import DeviceLock, combined_ratio, paired_ratio, relative_spread

DEVICE = Device("cpu", "Test CPU / 3 GHz", "x86-64-v3", 2, 1 << 20, 32, 1 << 30)


def noisy(stream: random.Random, factor: float, count: int) -> list[tuple[float, float]]:
    """Pairs whose second time is the first over `factor`, with bursts of noise that no normal distribution has."""

    def sample(base: float) -> float:
        burst = stream.expovariate(1.0) if stream.random() < 0.2 else 0.0
        return base * (1.0 + 0.02 * stream.random() + 0.5 * burst)

    return [(sample(10.0), sample(10.0 / factor)) for _ in range(count)]


@pytest.mark.parametrize("count", [6, 9, 14, 40, 80])
def test_the_interval_covers_the_truth_in_95_of_100_trials(count: int) -> None:
    stream = random.Random(count)
    trials = 300
    covered = 0
    for _ in range(trials):
        estimate = paired_ratio(noisy(stream, 1.3, count))
        covered += estimate.low <= 1.3 <= estimate.high
    assert covered / trials >= 0.92


def test_more_pairs_narrow_the_interval_and_the_estimate_is_close() -> None:
    stream = random.Random(4)
    few, many = paired_ratio(noisy(stream, 2.0, 8)), paired_ratio(noisy(stream, 2.0, 120))
    assert many.half_width < few.half_width / 2
    assert many.ratio == pytest.approx(2.0, rel=0.03)


def test_too_few_pairs_prove_nothing() -> None:
    estimate = paired_ratio([(2.0, 1.0)] * 5)
    assert estimate.ratio == pytest.approx(2.0) and (estimate.low, estimate.high) == (0.0, math.inf)
    assert paired_ratio([(2.0, 1.0)] * 6).low == pytest.approx(2.0, rel=0.01)
    assert math.isnan(paired_ratio([]).ratio)


def test_processes_that_disagree_widen_the_interval() -> None:
    one, other = [(1.00, 1.0)] * 12, [(1.06, 1.0)] * 12
    both = combined_ratio([one, other])
    assert both.low <= 1.0 and both.high >= 1.06
    assert combined_ratio([one]).half_width < 0.005


def test_relative_spread() -> None:
    assert relative_spread([1.0] * 8) == 0.0
    assert relative_spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.0)


async def test_readers_share_and_a_writer_is_alone_and_not_starved(tmp_path: Path) -> None:
    inside: list[str] = []
    seen: list[list[str]] = []
    order: list[str] = []

    async def hold(lock: DeviceLock, name: str, exclusive: bool, delay: float) -> None:
        await asyncio.sleep(delay)
        async with lock.exclusive() if exclusive else lock.shared():
            inside.append(name)
            order.append(name)
            await asyncio.sleep(0.05)
            seen.append(sorted(inside))
            inside.remove(name)

    locks = [DeviceLock(DEVICE, tmp_path) for _ in range(2)]  # two workbenches on one device
    late = [hold(locks[number % 2], f"late{number}", False, 0.04) for number in range(4)]
    await asyncio.gather(
        hold(locks[0], "r1", False, 0.0),
        hold(locks[1], "r2", False, 0.0),
        hold(locks[1], "writer", True, 0.02),
        *late,
    )
    assert ["r1", "r2"] in seen and ["writer"] in seen
    assert all(group == ["writer"] or "writer" not in group for group in seen)
    assert order.index("writer") <= 4  # readers that came later did not all pass it


async def test_a_cancelled_wait_lets_the_lock_go(tmp_path: Path) -> None:
    lock = DeviceLock(DEVICE, tmp_path)

    async def never() -> None:
        async with lock.exclusive():
            await asyncio.sleep(60)

    async with lock.shared():
        waiting = asyncio.ensure_future(never())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(1.0), lock.exclusive():
        pass


async def test_the_lock_reaches_other_processes_and_dies_with_them(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom foundry.knowledge.device import Device\n"
        "from foundry.tools.timing import DeviceLock\n"
        f"lock = DeviceLock(Device('cpu', {DEVICE.name!r}, '', 2, 1, 1, 1), Path({str(tmp_path)!r}))\n"
        "async def main():\n    async with lock.exclusive():\n        print('held', flush=True)\n"
        "        await asyncio.sleep(60)\nasyncio.run(main())"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    lock = DeviceLock(DEVICE, tmp_path)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), lock.shared():
            pass
    other.kill()
    other.wait()
    other.stdout.close()
    async with asyncio.timeout(1.0), lock.shared():
        pass
