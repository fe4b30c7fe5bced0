"""Tasks whose kernels are timed in every configuration once, so that searches are compared without a device.

python benchmarks/landscapes.py plan --target cuda                          # what would be recorded
python benchmarks/landscapes.py record --target cuda --seconds 80 --out FILE   # on the device
python benchmarks/landscapes.py build --target cpu                             # fills the cache, nothing is timed
python benchmarks/landscapes.py record --target cpu --seconds 900 --out FILE   # passes over all tasks, the least counts

A landscape holds one task: the structures that a step or two lead to, the kernels of each, and times of each kernel's
configurations, taken by the tuner's worker. A candidate's time is the sum of its kernels' times. Tunables with many
values keep a few of them, so that a space can be recorded whole. The cores of a CPU have other work: there each
configuration is timed in passes that lie minutes apart, so that a burst meets no configuration in all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from landscape_tasks import tasks

from foundry.knowledge.candidate import Choice, Recipe
from foundry.knowledge.codec import decode, encode
from foundry.knowledge.compiler import moves as kernel_library
from foundry.knowledge.compiler.ir.kernels import KernelSummary
from foundry.knowledge.compiler.lower import lower, seeds
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.opgraph import OpGraph
from foundry.tools.machine.ceilings import with_ceilings
from foundry.tools.machine.device import describe
from foundry.tools.machine.lock import DeviceLock
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.cuda.build import CudaTarget
from foundry.tools.task.capture import capture
from foundry.tools.tune.alone import Subject, subjects
from foundry.tools.tune.session import COMPILE_S, Crew, Session
from foundry.tools.tune.space import KernelSpace, Setting, setting_of
from foundry.tools.tune.sweep import Job

SEED = 7
VALUES = 3  # of a tunable, at most, those of words all
STRUCTURES = {"cuda": 2, "cpu": 3}  # of a task
MOST = {"cuda": 140, "cpu": 24}  # configurations of a kernel
SAMPLES, PASSES = {"cuda": 6, "cpu": 3}, {"cuda": 1, "cpu": 12}
OWN_CACHE = 32 << 20  # bytes
CLOSE = 1.6  # times the best: what is taken again in a later pass
KEPT = 2  # of the times of all passes
BATCH, AT_ONCE = 16, 6  # configurations of one kernel at a time; kernels at a time
REPORTED = ("registers", "spill_bytes", "shared_bytes", "threads", "blocks", "occupancy")
SOURCE = "class Model: ...\n"  # a candidate's file holds the task's text; nothing here runs it


def thinned(values: Sequence[Choice], default: Choice, target: str) -> tuple[Choice, ...]:
    """Of many numbers the default and others evenly; of words, on a CPU, where a product has eight tiles, those that
    the library names first, and elsewhere all."""
    if len(values) <= VALUES:
        return tuple(values)
    if not all(isinstance(value, int) for value in values):
        return tuple(values[:VALUES] if target == "cpu" else values)
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
    return [first, *sorted(others, key=lambda item: len(item.kernels))[: STRUCTURES[device.target] - 1]]


class ThinnedSpace(KernelSpace):
    """A kernel's space with fewer values of each tunable. On a CPU only so many tunables vary, drawn by the kernel's
    place, that the space is recorded whole: where holes are, a step of one number often leads into one."""

    def __init__(self, subject: Subject, place: str, target: str) -> None:
        super().__init__(subject)
        self.kept: dict[str, tuple[Choice, ...]] = {}
        self._target = target
        self._fixed: set[str] = set()
        if target == "cpu":
            self._fix(place)

    def _fix(self, place: str) -> None:
        size, values = 1, self.values(self.present)
        for name in random.Random(f"{SEED}:{place}").sample(sorted(values), len(values)):
            if size * len(values[name]) > MOST[self._target]:
                self._fixed.add(name)
                self.kept.pop(name)
            else:
                size *= len(values[name])

    def values(self, setting: Setting) -> Mapping[str, Sequence[Choice]]:
        found = {}
        for name, values in super().values(setting).items():
            if name in self._fixed:
                continue
            if name not in self.kept:
                self.kept[name] = thinned(values, dict(self.present).get(name, values[0]), self._target)
            found[name] = tuple(value for value in values if value in self.kept[name])
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
    graph = capture(*tasks(device.target)[name])
    found = structures_of(graph, device)
    landscape = Landscape(name, device, graph, tuple((item.materialised, item.rewrites_applied) for item in found))
    surveys: list[Survey] = []
    known: set[str] = set()
    for made in found:
        recipe = Recipe(device.target, made.materialised, made.rewrites_applied)
        by_name = {subject.name: subject for subject in subjects(graph, recipe, device)}
        fresh = [kernel for kernel in made.kernels if place_of(kernel) not in known]
        spaces = {kernel.name: ThinnedSpace(by_name[kernel.name], place_of(kernel), device.target) for kernel in fresh}
        session = None
        if machine is not None and fresh:
            threads = device.cores if device.target == "cpu" else 1
            crew = Crew(graph, recipe, device, machine[0], machine[1], threads)
            session = Session(crew, by_name, dict(spaces))
        for kernel in fresh:
            known.add(place_of(kernel))
            space = spaces[kernel.name]
            settings = settings_of(space, MOST[device.target])
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
    _take_over(out, found)
    queue = iter(
        (item, batch)
        for _ in range(PASSES[device.target])
        for item in surveys
        for batch in _batches(_promising(item.settings, item.landscape.sweeps[item.place]))
    )

    async def work() -> None:
        while time.monotonic() - began < seconds and (one := next(queue, None)):
            await _measure(*one, began + seconds)

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


def _take_over(out: Path, found: Sequence[Landscape]) -> None:
    """What an earlier recording left in this file."""
    before = {item.task: item for item in read_landscapes(out)} if out.exists() else {}
    for item in found:
        for place, sweep in item.sweeps.items():
            known = before[item.task].sweeps.get(place) if item.task in before else None
            sweep.times |= known.times if known else {}
            sweep.reports |= known.reports if known else {}


def _promising(settings: Sequence[Setting], sweep: Sweep) -> list[Setting]:
    """The present one, which the others are checked with, those that were not timed yet, and those that may be the
    best: how slow the others are needs no second look."""
    best = min((min(times) for times in sweep.times.values() if times), default=math.inf)
    present, *others = settings
    kept = (one for one in others if min(sweep.times.get(one, [0.0]), default=math.inf) < CLOSE * best)
    return [present, *kept]


def _batches(settings: Sequence[Setting]) -> list[Sequence[Setting]]:
    return [settings[start : start + BATCH] for start in range(0, len(settings), BATCH)]


async def _measure(item: Survey, settings: Sequence[Setting], deadline: float) -> None:
    assert item.session is not None
    jobs = [Job(item.name, setting) for setting in settings]
    sweep = item.landscape.sweeps[item.place]
    problems = await item.session.build(jobs)
    ready = [job for job in jobs if job not in problems]
    found = await item.session.run(ready, SAMPLES[item.landscape.device.target], max(deadline - time.monotonic(), 1.0))
    for job in jobs:
        answer = found.get(job, []) if job in ready else problems[job]
        if answer or job not in ready:
            taken = [] if isinstance(answer, str) else answer
            sweep.times[job.setting] = _kept([*sweep.times.get(job.setting, []), *taken], item.landscape.device)
            sweep.reports[job.setting] = await asyncio.to_thread(_report, item, job.setting)


def _kept(times: list[float], device: Device) -> list[float]:
    """All of a GPU's, the least of a CPU's."""
    return sorted(times)[:KEPT] if device.target == "cpu" else times


async def fill_cache(device: Device, zygote: Zygote, names: Sequence[str]) -> None:
    """Builds what would be recorded."""
    for name in names:
        surveys = survey(name, device, (zygote, DeviceLock(device)))
        for item in surveys:
            assert item.session is not None
            problems = await item.session.build([Job(item.name, setting) for setting in item.settings])
            print(f"{name}: {item.name} {len(item.settings)}, {len(problems)} failed", flush=True)
        for session in {id(item.session): item.session for item in surveys}.values():
            assert session is not None
            await session.aclose()


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


def machine(target: TargetName) -> Device:
    """This machine. Of a CPU's last cache others have their part; emptying all of it takes ten times as long as a
    call."""
    device = describe(target)
    return replace(device, cache_bytes=min(device.cache_bytes, OWN_CACHE)) if target == "cpu" else device


def shown(device: Device, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        surveys = survey(name, device, None)
        sizes = [f"{item.place.split(':')[0]} {len(item.settings)}" for item in surveys]
        yield f"{name}: {len(surveys[0].landscape.structures)} structures; {', '.join(sizes)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plan", "build", "record"))
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--seconds", type=float, default=80.0)
    parser.add_argument("--out", type=Path, default=Path("landscapes.jsonl"))
    asked = parser.parse_args()
    names = asked.tasks.split(",") if asked.tasks else list(tasks(asked.target))
    if asked.what == "plan":
        for line in shown(machine(asked.target), names):
            print(line, flush=True)
        return
    device = with_ceilings(machine(asked.target))
    threads = device.cores if device.target == "cpu" else 1
    zygote = Zygote.start(threads=threads, preload=("torch", "foundry.tools.tune.worker"))
    try:
        if asked.what == "build":
            asyncio.run(fill_cache(device, zygote, names))
        else:
            asyncio.run(record(device, zygote, names, asked.seconds, asked.out))
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
