"""The tuner beside a second lane, by simulation: how many configurations it tries a second of its own clock.

    python benchmarks/lab/two_lanes.py --seconds 6

Locks, turns and the search are the real ones. Compilers and kernels sleep as long as they took on an H200, and the
other lane holds the device as lanes did there: contexts, correctness, screens, proofs. So it needs no GPU and hardly a
core.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.device import Device
from foundry.tools.machine.device import describe
from foundry.tools.machine.holds import Holds
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.task.capture import capture
from foundry.tools.tune.alone import subjects
from foundry.tools.tune.policies import Evolution
from foundry.tools.tune.space import KernelSpace
from foundry.tools.tune.sweep import Job, KernelSweep, PlanSweep

COMPILERS, BATCH = 8, 16  # of a lane that has half of 16 cores
BUILD_S, START_S, LOAD_S, SAMPLE_S = (1.2, 2.0), 1.5, 0.02, 0.002
SLICE_S = 0.2
SHARED, ALONE, STARTING = "shared", "alone", "starting"
# What a lane holds: how, for how long, and after how long it lets others in; 0.0 for not at all.
SCREEN = [(SHARED, 0.7, 0.0), (SHARED, 0.8, 0.1), *[(SHARED, 0.3, 0.1), (ALONE, 0.1, 0.0), (SHARED, 0.1, 0.0)] * 2]
STOCK = [(STARTING, 1.2, 0.0)] * 6  # as many contexts as a proof needs, three at a time
PROOF = [(SHARED, 2.9, 0.7), (SHARED, 1.5, 0.1), (SHARED, 2.0, 0.0)]
GROUP = [(SHARED, 0.25, 0.1), (ALONE, 0.1, 0.0), (SHARED, 0.1, 0.1), (ALONE, 0.05, 0.0), (SHARED, 0.1, 0.1)]
TASK = [*SCREEN, *STOCK, *SCREEN, *PROOF, *GROUP * 6, (SHARED, 2.5, 0.8)]


class Linear(nn.Module):
    """A product, for its tunables."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@dataclass
class Sleeping:
    """Implements the tuner's Bench: what it would do takes its time, and nothing else."""

    lock: DeviceLock
    overlaps: bool = True
    _started: float = field(default_factory=time.monotonic)
    _is_open: bool = False

    def __post_init__(self) -> None:
        self.holds = Holds(self.lock)
        self._free = asyncio.Semaphore(COMPILERS)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started - self.holds.waited_s

    async def build(self, jobs: list[Job]) -> dict[Job, str]:
        async with self._free:
            await asyncio.sleep(random.Random(str(jobs)).uniform(*BUILD_S) * len(jobs))
        return {}

    async def run(self, jobs: list[Job], samples: int, limit_s: float) -> dict[Job, list[float] | str]:
        return await asyncio.to_thread(self._run, jobs, samples)

    def _run(self, jobs: list[Job], samples: int) -> dict[Job, list[float] | str]:
        with self.holds.shared():
            time.sleep(0.0 if self._is_open else START_S)
            self._is_open = True
            for _ in jobs:
                time.sleep(LOAD_S)
                self._let_others()
        with self.holds.alone_in_turns():
            began = time.monotonic()
            for _ in range(samples * len(jobs)):
                time.sleep(SAMPLE_S)
                if time.monotonic() - began > SLICE_S:
                    self._let_others()
                    began = time.monotonic()
        return {job: [random.Random(str(job)).uniform(1.0, 2.0)] * samples for job in jobs}

    def _let_others(self) -> None:
        if pause := self.holds.pause:
            pause()


@contextlib.contextmanager
def lane_beside(device: Device, home: Path) -> Iterator[None]:
    """Another lane that goes from task to task."""
    is_over = threading.Event()
    holds = Holds(DeviceLock(device, home))

    def go_on() -> None:
        while not is_over.is_set():
            for how, seconds, between_s in TASK:
                if is_over.is_set():
                    return
                with {SHARED: holds.shared, ALONE: holds.alone, STARTING: holds.starting}[how]():
                    _hold(holds, seconds, between_s)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _hold(holds: Holds, seconds: float, between_s: float) -> None:
    left_s = seconds
    while left_s > 0:
        time.sleep(min(left_s, between_s or left_s))
        left_s -= between_s or left_s
        if between_s and (pause := holds.pause):
            pause()


def tuned(device: Device, home: Path, seconds: float) -> dict[str, float]:
    """One tuning of one kernel."""
    graph = capture(Linear(), (torch.empty(256, 256),))
    subject = subjects(graph, Recipe("cpu"), device)[0]
    space = KernelSpace(subject)
    kernel = KernelSweep(subject.name, space, Evolution(space, 0))
    began = time.monotonic()

    async def sweep() -> Sleeping:
        bench = Sleeping(DeviceLock(device, home))
        await PlanSweep([kernel], bench, seconds, BATCH, lambda line: None).run()
        return bench

    bench = asyncio.run(sweep())
    own_s = bench.elapsed_s()
    figures = {"tried": kernel.tried, "own_s": own_s, "wall_s": time.monotonic() - began}
    figures |= {"waited_s": bench.holds.waited_s, "tried_a_second": kernel.tried / own_s}
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    seconds = parser.parse_args().seconds
    device = describe("cpu")
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps({"lanes": 1, **tuned(device, Path(name), seconds)}), flush=True)
        with lane_beside(device, Path(name)):
            print(json.dumps({"lanes": 2, **tuned(device, Path(name), seconds)}), flush=True)


if __name__ == "__main__":
    main()
