"""Tasks whose kernels are timed in every configuration once, so that searches are compared without a device.

python benchmarks/landscapes.py plan --target cuda                          # what would be recorded
python benchmarks/landscapes.py record --target cuda --seconds 80 --out FILE   # on the device

A landscape holds one task: the structures that a step or two lead to, the kernels of each, and times of each kernel's
configurations, taken by the tuner's worker. A candidate's time is the sum of its kernels' times. Tunables with many
values keep a few of them, so that a space can be recorded whole.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library import moves as kernel_library
from foundry.knowledge.library.ir.kernels import KernelSummary
from foundry.knowledge.library.lower import lower, seeds
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.ceilings import with_ceilings
from foundry.tools.machine.device import describe
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.cuda import CudaTarget
from foundry.tools.task.capture import capture
from foundry.tools.tune.alone import Subject, subjects
from foundry.tools.tune.session import COMPILE_S, Crew, Session
from foundry.tools.tune.space import KernelSpace, Setting, setting_of
from foundry.tools.tune.sweep import Job

SEED = 7
VALUES = 3  # of a tunable, at most, those of words all
STRUCTURES = 2  # of a task
MOST = 140  # configurations of a kernel
SAMPLES = 6
BATCH, AT_ONCE = 16, 6  # configurations of one kernel at a time; kernels at a time
REPORTED = ("registers", "spill_bytes", "shared_bytes", "threads", "blocks", "occupancy")
SOURCE = "class Model: ...\n"  # a candidate's file holds the task's text; nothing here runs it


class Rows(nn.Module):
    """Something over the last dimension, and a little around it."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind, self.norm = kind, nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "layer_norm_gelu":
            return torch.nn.functional.gelu(self.norm(x))
        if self.kind == "rms_norm":
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) + x
        if self.kind == "log_softmax":
            return torch.log_softmax(x, dim=-1)
        return torch.softmax(x * 0.5, dim=-1)


class Product(nn.Module):
    """A product with its bias and an activation."""

    def __init__(self, width: int, out: int, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(width, out), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.linear(x)
        return torch.relu(found) if self.kind == "relu" else torch.nn.functional.gelu(found) * 0.5


class Convolution(nn.Module):
    """A convolution with its bias and an activation."""

    def __init__(self, channels: int, out: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, out, size, padding=size // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.conv(x))


class Chain(nn.Module):
    """Pointwise work."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "long":
            return torch.nn.functional.gelu(x) * torch.sigmoid(x) + torch.tanh(x)
        return torch.nn.functional.silu(x) + 1.0


class Columns(nn.Module):
    """A reduction over another dimension than the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).amax(dim=1)


Made = tuple[nn.Module, torch.Tensor]


def tasks(target: str) -> dict[str, Made]:
    """On a GPU the sizes that models have, on a CPU such as fit its caches. Neighbours in this list are relatives."""
    if target == "cuda":
        return {
            "layer_norm_gelu": (Rows("layer_norm_gelu", 4096), torch.empty(8192, 4096)),
            "rms_norm": (Rows("rms_norm", 1024), torch.empty(16384, 1024)),
            "softmax": (Rows("softmax", 2048), torch.empty(8192, 2048)),
            "log_softmax": (Rows("log_softmax", 8192), torch.empty(2048, 8192)),
            "product_square": (Product(2048, 2048, "relu"), torch.empty(2048, 2048)),
            "product_flat": (Product(4096, 1024, "gelu"), torch.empty(512, 4096)),
            "product_deep": (Product(8192, 512, "relu"), torch.empty(1024, 8192)),
            "product_wide": (Product(1024, 4096, "gelu"), torch.empty(4096, 1024)),
            "convolution_early": (Convolution(64, 128, 3), torch.empty(16, 64, 56, 56)),
            "convolution_late": (Convolution(256, 256, 3), torch.empty(16, 256, 14, 14)),
            "chain_long": (Chain("long"), torch.empty(4096, 4096)),
            "chain_short": (Chain("short"), torch.empty(1024, 1000)),
            "columns_largest": (Columns(), torch.empty(16, 2048, 512)),
        }
    return {
        "layer_norm_gelu": (Rows("layer_norm_gelu", 1024), torch.empty(1024, 1024)),
        "rms_norm": (Rows("rms_norm", 512), torch.empty(1024, 512)),
        "softmax": (Rows("softmax", 512), torch.empty(2048, 512)),
        "log_softmax": (Rows("log_softmax", 4096), torch.empty(256, 4096)),
        "product_square": (Product(256, 256, "relu"), torch.empty(256, 256)),
        "product_flat": (Product(512, 256, "gelu"), torch.empty(64, 512)),
        "chain_long": (Chain("long"), torch.empty(512, 1024)),
        "chain_short": (Chain("short"), torch.empty(1024, 1000)),
    }


def thinned(values: Sequence[Choice], default: Choice) -> tuple[Choice, ...]:
    """All words; of many numbers the default and others evenly."""
    if len(values) <= VALUES or not all(isinstance(value, int) for value in values):
        return tuple(values)
    at = list(values).index(default) if default in values else 0
    kept = {at} | {round(step * (len(values) - 1) / (VALUES - 1)) for step in range(VALUES)}
    far = sorted(kept - {at}, key=lambda place: abs(place - at))
    return tuple(values[place] for place in sorted([at, *far[-(VALUES - 1) :]]))


@dataclass
class Sweep:
    """One kernel's configurations: the values of each tunable that were recorded, and times in ms; none where a
    configuration failed."""

    values: Mapping[str, tuple[Choice, ...]]
    times: dict[Setting, list[float]] = field(default_factory=dict)
    reports: dict[Setting, list[float]] = field(default_factory=dict)  # the compiler's, by REPORTED

    @cached_property
    def known(self) -> dict[Setting, float]:
        return {setting: min(found) for setting, found in self.times.items() if found}

    @cached_property
    def names(self) -> set[str]:
        return {name for setting in self.times for name, _ in setting}

    def setting(self, kernel: KernelSummary) -> Setting | None:
        """The kernel's configuration as it was recorded, None where it was not. A number that the library knows only
        since must have its default."""
        defaults = {item.name: item.default for item in kernel.tunables}
        new = {name: value for name, value in kernel.choices.items() if name not in self.names}
        if any(defaults.get(name, value) != value for name, value in new.items()):
            return None
        found = setting_of({name: value for name, value in kernel.choices.items() if name in self.names})
        return found if found in self.times else None

    def report(self, kernel: KernelSummary) -> list[float]:
        """What the compiler said of a configuration."""
        setting = self.setting(kernel)
        return self.reports.get(setting, []) if setting else []


def place_of(kernel: KernelSummary) -> str:
    """Names a kernel among all of a task's structures."""
    return f"{kernel.template}:{','.join(kernel.ops)}:{kernel.traffic_bytes}"


@dataclass
class Landscape:
    """A task and the times of its kernels. `structures`: materialised values and rewrites of each that was recorded."""

    task: str
    device: Device
    graph: OpGraph
    structures: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    sweeps: dict[str, Sweep] = field(default_factory=dict)  # by place

    def ms(self, lowered: Lowered) -> float | None:
        """How long a candidate takes, None when a kernel of it cannot be built."""
        found = [self.kernel_ms(kernel) for kernel in lowered.kernels]
        return None if any(ms is None for ms in found) else sum(ms for ms in found if ms is not None)

    def kernel_ms(self, kernel: KernelSummary) -> float | None:
        sweep = self.sweeps[place_of(kernel)]
        setting = sweep.setting(kernel)
        return sweep.known.get(setting) if setting else None

    def covers(self, lowered: Lowered) -> bool:
        """Whether this configuration of all kernels was recorded."""
        sweeps = [(self.sweeps.get(place_of(kernel)), kernel) for kernel in lowered.kernels]
        return all(sweep is not None and sweep.setting(kernel) is not None for sweep, kernel in sweeps)


def neighbours_of(graph: OpGraph, recipe: Recipe, device: Device) -> list[Recipe]:
    """The recipe, and those that one change of structure leads to."""
    found = lower([graph], recipe, task_source=SOURCE, device=device)
    steps = [move for move in kernel_library.moves(found) if move.kind != "set"]
    bare = Recipe(recipe.target, found.materialised, found.rewrites_applied)
    return [bare, *(kernel_library.apply(bare, move) for move in steps)]


def structures_of(graph: OpGraph, device: Device) -> list[Lowered]:
    """The library's first structure and a few around it, those of few kernels first."""
    found: dict[str, Lowered] = {}
    for recipe in neighbours_of(graph, seeds(graph, device)[0], device):
        try:
            made = lower([graph], recipe, task_source=SOURCE, device=device)
        except CannotLower:
            continue
        found.setdefault(made.structure, made)
    first, *others = found.values()
    return [first, *sorted(others, key=lambda item: len(item.kernels))[: STRUCTURES - 1]]


class ThinnedSpace(KernelSpace):
    """A kernel's space with fewer values of each tunable."""

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.kept: dict[str, tuple[Choice, ...]] = {}

    def values(self, setting: Setting) -> Mapping[str, Sequence[Choice]]:
        found = {}
        for name, values in super().values(setting).items():
            kept = self.kept.setdefault(name, thinned(values, dict(self.present).get(name, values[0])))
            found[name] = tuple(value for value in values if value in kept)
        return {name: values for name, values in found.items() if values}


def settings_of(space: ThinnedSpace, most: int) -> list[Setting]:
    """All configurations of a space in a random order, the present one first; of large spaces a part."""
    found = {space.present: None}
    queue = [space.present]
    while queue and len(found) < 8 * most:
        here = queue.pop(0)
        for name, values in space.values(here).items():
            for value in values:
                other = space.legal({**dict(here), name: value})
                if other is not None and other not in found:
                    found[other] = None
                    queue.append(other)
    others = list(found)[1:]
    random.Random(SEED).shuffle(others)
    return [space.present, *others[: most - 1]]


@dataclass
class Survey:
    """What is to be recorded of one kernel, and the machine of its structure."""

    landscape: Landscape
    place: str
    name: str
    subject: Subject
    space: ThinnedSpace
    settings: list[Setting]
    session: Session | None


def survey(name: str, device: Device, machine: tuple[Zygote, DeviceLock] | None) -> list[Survey]:
    """The kernels of a task's structures, each once; `machine` runs them, if they are to be run."""
    model, x = tasks(device.target)[name]
    graph = capture(model, (x,))
    found = structures_of(graph, device)
    landscape = Landscape(name, device, graph, tuple((item.materialised, item.rewrites_applied) for item in found))
    surveys: list[Survey] = []
    known: set[str] = set()
    for made in found:
        recipe = Recipe(device.target, made.materialised, made.rewrites_applied)
        by_name = {subject.name: subject for subject in subjects(graph, recipe, device)}
        fresh = [kernel for kernel in made.kernels if place_of(kernel) not in known]
        spaces = {kernel.name: ThinnedSpace(by_name[kernel.name]) for kernel in fresh}
        session = None
        if machine is not None and fresh:
            threads = device.cores if device.target == "cpu" else 1
            crew = Crew(graph, recipe, device, machine[0], machine[1], threads)
            session = Session(crew, by_name, dict(spaces))
        for kernel in fresh:
            known.add(place_of(kernel))
            space = spaces[kernel.name]
            settings = settings_of(space, MOST)
            item = Survey(landscape, place_of(kernel), kernel.name, by_name[kernel.name], space, settings, session)
            landscape.sweeps[item.place] = Sweep(space.kept)
            surveys.append(item)
    return surveys


async def record(device: Device, zygote: Zygote, names: Sequence[str], seconds: float, out: Path) -> None:
    """Task after task until the time is over; some configurations are built while others are timed."""
    began, lock = time.monotonic(), DeviceLock(device)
    surveys = [item for name in names for item in survey(name, device, (zygote, lock))]
    found = list({item.landscape.task: item.landscape for item in surveys}.values())
    print(f"{len(surveys)} kernels, {sum(len(item.settings) for item in surveys)} configurations", flush=True)
    queue = [(item, batch) for item in surveys for batch in _batches(item.settings)]

    async def work() -> None:
        while queue and time.monotonic() - began < seconds:
            await _measure(*queue.pop(0), began + seconds)

    async def tell() -> None:
        while True:
            await asyncio.sleep(10)
            write_landscapes(out, found)
            done = sum(len(sweep.times) for item in found for sweep in item.sweeps.values())
            print(f"{done} recorded at {time.monotonic() - began:.0f} s", flush=True)

    telling = asyncio.ensure_future(tell())
    await asyncio.gather(*(work() for _ in range(AT_ONCE if device.target == "cuda" else 1)))
    telling.cancel()
    write_landscapes(out, found)
    for item in found:
        times = [taken for sweep in item.sweeps.values() for taken in sweep.times.values()]
        known = sum(map(bool, times))
        print(f"{item.task}: {known} recorded, {len(times) - known} failed", flush=True)
    for session in {id(item.session): item.session for item in surveys}.values():
        if session is not None:
            await session.aclose()


def _batches(settings: Sequence[Setting]) -> list[Sequence[Setting]]:
    return [settings[start : start + BATCH] for start in range(0, len(settings), BATCH)]


async def _measure(item: Survey, settings: Sequence[Setting], deadline: float) -> None:
    assert item.session is not None
    jobs = [Job(item.name, setting) for setting in settings]
    sweep = item.landscape.sweeps[item.place]
    problems = await item.session.build(jobs)
    ready = [job for job in jobs if job not in problems]
    found = await item.session.run(ready, SAMPLES, max(deadline - time.monotonic(), 1.0))
    for job in jobs:
        answer = found.get(job, []) if job in ready else problems[job]
        if answer or job not in ready:
            sweep.times[job.setting] = [] if isinstance(answer, str) else answer
            sweep.reports[job.setting] = await asyncio.to_thread(_report, item, job.setting)


def _report(item: Survey, setting: Setting) -> list[float]:
    """What the compiler says a configuration uses, by REPORTED; the build is in the cache."""
    target = CudaTarget(item.landscape.device, compile_s=COMPILE_S, disassembles=False)
    if item.landscape.device.target != "cuda":
        return []
    resources = target.build(item.subject.file(item.space.printed(setting))).resources
    report = next(iter(resources.kernels.values()), {})
    return [float(report.get(name, 0.0)) for name in REPORTED]


def write_landscapes(path: Path, found: Sequence[Landscape]) -> None:
    """One line a task, one a kernel, then the configurations: values in the order of the kernel's names, and times."""
    lines = []
    for item in found:
        head = {"task": item.task, "device": encode(item.device), "structures": item.structures}
        lines.append(json.dumps({**head, "graph": encode(item.graph)}))
        for place, sweep in item.sweeps.items():
            names = sorted({name for setting in sweep.times for name, _ in setting})
            lines.append(json.dumps({"place": place, "names": names, "values": sweep.values}))
            for setting, times in sweep.times.items():
                known = dict(setting)
                row = [known.get(name) for name in names]
                taken = [float(f"{ms:.4g}") for ms in times]
                lines.append(json.dumps([row, taken, sweep.reports.get(setting, [])], separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_landscapes(path: Path) -> list[Landscape]:
    """Raises ValueError for a file that is none."""
    found: list[Landscape] = []
    sweep = Sweep({})
    names: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        if isinstance(item, list):
            known = {name: value for name, value in zip(names, item[0], strict=True) if value is not None}
            sweep.times[setting_of(known)], sweep.reports[setting_of(known)] = item[1], item[2]
        elif "task" in item:
            structures = tuple((tuple(values), tuple(rewrites)) for values, rewrites in item["structures"])
            graph, device = decode(OpGraph, item["graph"]), decode(Device, item["device"])
            found.append(Landscape(item["task"], device, graph, structures))
        else:
            names = item["names"]
            sweep = Sweep({name: tuple(values) for name, values in item["values"].items()})
            found[-1].sweeps[item["place"]] = sweep
    return found


def shown(device: Device, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        surveys = survey(name, device, None)
        sizes = [f"{item.place.split(':')[0]} {len(item.settings)}" for item in surveys]
        yield f"{name}: {len(surveys[0].landscape.structures)} structures; {', '.join(sizes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plan", "record"))
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--out", type=Path, default=Path("landscapes.jsonl"))
    asked = parser.parse_args()
    names = asked.tasks.split(",") if asked.tasks else list(tasks(asked.target))
    if asked.what == "plan":
        for line in shown(describe(asked.target), names):
            print(line, flush=True)
        return
    device = with_ceilings(describe(asked.target))
    threads = device.cores if device.target == "cpu" else 1
    zygote = Zygote.start(threads=threads, preload=("torch", "foundry.tools.tune.worker"))
    try:
        asyncio.run(record(device, zygote, names, asked.seconds, asked.out))
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
