"""The tuner on three kernels: how many configurations a minute it tries, what its winner brings over the default, and
how search policies compare on recorded exhaustive sweeps.

python benchmarks/lab/tuning.py tune --target cuda --seconds 60  # rates and winners, on this machine
python benchmarks/lab/tuning.py record --target cuda --out FILE --seconds 60  # sweeps to replay
python benchmarks/lab/tuning.py replay FILE...  # policies on recorded sweeps; needs no device
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from foundry.knowledge.candidate import Recipe
from foundry.knowledge.device import Device
from foundry.tools.machine.ceilings import with_ceilings
from foundry.tools.machine.device import describe
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.zygote import Zygote
from foundry.tools.task.capture import capture
from foundry.tools.tune.alone import subjects
from foundry.tools.tune.policies import CoordinateDescent, Evolution, Policy, RandomSearch
from foundry.tools.tune.replay import RecordedBench, RecordedSpace, Recording, read_recordings, write_recordings
from foundry.tools.tune.session import Crew, Session
from foundry.tools.tune.space import KernelSpace, SettingSpace, everything
from foundry.tools.tune.sweep import FIRST, MORE, Job, KernelSweep, PlanSweep
from foundry.tools.tune.tuner import tune

SAMPLES = 12  # of each configuration of a recorded sweep
MOST = 4000  # configurations of a recorded sweep
BATCH = 16  # configurations a round of a replay
SEEDS = 9
# Each policy by its name, with the samples of a new configuration: 3 with successive halving, 10 without.
POLICIES: Mapping[str, tuple[Callable[[SettingSpace, int], Policy], int]] = {
    "random, no halving": (RandomSearch, MORE),
    "random": (RandomSearch, FIRST),
    "coordinate descent": (CoordinateDescent, FIRST),
    "evolution, no halving": (Evolution, MORE),
    "evolution": (Evolution, FIRST),
}
COUNTS = (24, 48, 96, 192)  # configurations whose time a search gets


class Normalised(nn.Module):
    """Rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.norm(x))


class Linear(nn.Module):
    """A product with its bias and activation."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


class Convolution(nn.Module):
    """A convolution with its bias and activation."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


def tasks(target: str) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """On a GPU the sizes that models have, on a CPU those that tests have."""
    if target == "cuda":
        return {
            "row": (Normalised(4096), torch.empty(16384, 4096)),
            "product": (Linear(4096, 4096), torch.empty(4096, 4096)),
            "convolution": (Convolution(64, 128), torch.empty(64, 64, 56, 56)),
        }
    return {
        "row": (Normalised(1024), torch.empty(2048, 1024)),
        "product": (Linear(512, 512), torch.empty(512, 512)),
        "convolution": (Convolution(16, 32), torch.empty(4, 16, 56, 56)),
    }


def crew_for(name: str, device: Device, zygote: Zygote) -> Crew:
    model, x = tasks(device.target)[name]
    threads = device.cores if device.target == "cpu" else 1
    graph = capture(model, (x,))
    return Crew(graph, Recipe(device.target), device, zygote, DeviceLock(device), threads)


async def tune_tasks(device: Device, zygote: Zygote, names: list[str], seconds: float) -> None:
    for name in names:
        crew = crew_for(name, device, zygote)
        sessions: list[Session] = []
        tuned = await tune(crew, seconds, say=lambda line: print(f"  {line}", flush=True), watch=sessions.append)
        facts = {
            "task": name,
            "device": device.key,
            "tried": tuned.tried,
            "failed": tuned.failed,
            "restarts": tuned.restarts,
            "seconds": round(tuned.seconds, 1),
            "per_minute": round(60 * tuned.tried / tuned.seconds),
            "gain": round(tuned.expected_gain, 3),
            "spent_s": {phase: round(spent, 1) for phase, spent in sessions[0].spent_s.items()},
        }
        print(json.dumps(facts), flush=True)


async def record(device: Device, zygote: Zygote, names: list[str], seconds: float, out: Path) -> None:
    """Every configuration of each task's first kernel, or as many as the seconds allow, nearest to the default
    first."""
    found = []
    for name in names:
        crew = crew_for(name, device, zygote)
        subject = subjects(crew.graph, crew.recipe, crew.device)[0]
        space = KernelSpace(subject)
        session = Session(crew, {subject.name: subject}, {subject.name: space})
        samples: dict[tuple[tuple[str, int | str], ...], list[float]] = {}
        settings = everything(space, MOST)
        try:
            while settings and session.elapsed_s() < seconds:
                jobs = [Job(subject.name, setting) for setting in settings[: 4 * crew.compilers]]
                settings = settings[len(jobs) :]
                problems = await session.build(jobs)
                times = await session.run([job for job in jobs if job not in problems], SAMPLES, 1e9)
                for job in jobs:
                    ms = times.get(job, "")
                    samples[job.setting] = [] if isinstance(ms, str) else ms
            looks = sum(map(len, samples.values()))
            build_s = session.spent_s["build"] / crew.compilers / len(samples)
            sample_s = (session.spent_s["time"] + session.spent_s["load"]) / max(looks, 1)
        finally:
            await session.aclose()
        template = space.printed(space.present).template
        found.append(Recording(name, template, device.key, space.present, samples, build_s, sample_s))
        write_recordings(out, found)
        print(f"{name}: {len(samples)} recorded, {len(settings)} left, best {found[-1].best_ms:.4g} ms", flush=True)


def replay(recordings: list[Recording]) -> None:
    """How far from the best of all each policy ends: percent, the median over seeds, by the time that it had."""
    print(f"{'sweep':34} {'policy':22}" + " ".join(f"{count:>6}" for count in COUNTS))
    for item in recordings:
        what = f"{item.kernel}, {item.device.split(':')[0]}, {len(item.samples)} configurations"
        for name in POLICIES:
            lost = [statistics.median(lost_by(item, name, seed, count) for seed in range(SEEDS)) for count in COUNTS]
            print(f"{what:34} {name:22}" + " ".join(f"{one:5.1f}%" for one in lost))


def lost_by(recording: Recording, policy: str, seed: int, count: int) -> float:
    """Percent over the best time at the end of a search that has the time of so many configurations."""
    make, first = POLICIES[policy]
    space = RecordedSpace(recording)
    kernel = KernelSweep(recording.kernel, space, make(space, seed))
    one_s = recording.build_s + FIRST * recording.sample_s
    sweep = PlanSweep([kernel], RecordedBench(recording), count * one_s, BATCH, lambda line: None, first)
    asyncio.run(sweep.run())
    return 100 * (recording.median_ms(kernel.winner()[0]) / recording.best_ms - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tune", "record", "replay"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tasks", default="row,product,convolution")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("sweeps.jsonl"))
    asked = parser.parse_args()
    if asked.what == "replay":
        replay([item for path in asked.files for item in read_recordings(path)])
        return
    device = with_ceilings(describe(asked.target))
    threads = device.cores if device.target == "cpu" else 1
    zygote = Zygote.start(threads=threads, preload=("torch", "foundry.tools.tune.worker"))
    try:
        names = asked.tasks.split(",")
        if asked.what == "tune":
            asyncio.run(tune_tasks(device, zygote, names, asked.seconds))
        else:
            asyncio.run(record(device, zygote, names, asked.seconds, asked.out))
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
