"""A machine that answers from a landscape, and the real search on it.

The nodes, edges, experts, archive and databases are those of a run. Only LangGraph's own loop is replaced, by one that
walks the islands' nodes side by side: every island proposes, then every candidate is measured, so that no island knows
what was not measured yet when it thought. A search of 64 evaluations takes about a second.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

from landscapes import REPORTED, SOURCE, Landscape, place_of

from foundry.graph.island import NODES, TESTS, proposers, unless_stopped, ways
from foundry.graph.nodes.baseline import baseline
from foundry.graph.nodes.capture import capture
from foundry.graph.nodes.intake import intake
from foundry.graph.nodes.island.expert import ask
from foundry.graph.nodes.recall import recall
from foundry.graph.nodes.seed import seed
from foundry.graph.run.opening import Parts, create, open_services
from foundry.graph.run.request import EFFORTS, QUICK, RunLimits, SolveRequest, StrategyName
from foundry.graph.run.services import Services
from foundry.graph.search import briefing
from foundry.graph.search.islands import island_inputs
from foundry.graph.search.state import IslandState, RunState
from foundry.graph.solve import silent
from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Choice,
    Contest,
    ForeignName,
    Gate,
    Profile,
    Recipe,
    Resources,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler import moves as kernel_library
from foundry.knowledge.compiler.ir.kernels import KernelSummary
from foundry.knowledge.compiler.lower import lower
from foundry.knowledge.compiler.lowered import Lowered, Outline
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.index import ScanIndex
from foundry.knowledge.experience.journal import LessonJournal
from foundry.knowledge.experience.record import Credit, ExperienceRecord, Hit, Known, Query
from foundry.knowledge.experience.store import ExperienceStore
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.roofline import floors
from foundry.knowledge.task import Policy, Task
from foundry.knowledge.thought import Move
from foundry.tools.grade.host.roofline import profile
from foundry.tools.grade.host.workbench import BenchNotes, Intake, Workbench
from foundry.tools.profiling.gather import Seen
from foundry.tools.tune.tuner import TunedPlan

# Of the logarithm of a screen's speedup, as candidates that are the reference itself were timed on both machines
# (benchmarks/results/coverage-screen*.jsonl); a proof is three times as exact.
NOISE = {"cuda": 0.018, "cpu": 0.055}
PROOF = 1 / 3
REPLAYED = replace(QUICK, seeds=1, proofs=0, tune_s=0.0, plateau=10_000, floor_trusted=10_000, counted=0)


class RecordedLibrary:
    """The kernel library within what was recorded of a task: its structures, and the values that were swept."""

    def __init__(self, landscape: Landscape) -> None:
        self.landscape = landscape
        self.start: Recipe | None = None
        self.by_text: dict[str, Lowered] = {}
        self.profiles: dict[str, Profile] = {}  # at the recorded times
        self._known: dict[str, Lowered | str] = {}

    def seeds(self, graph: OpGraph, device: Device, unrounded: Any = None) -> tuple[Recipe, ...]:
        assert self.start is not None
        return (self.start,)

    def lower(self, graphs: Sequence[OpGraph], recipe: Recipe, *, task_source: str, device: Device) -> Lowered:
        digest = recipe.digest
        if digest not in self._known:
            try:
                self._known[digest] = self._lower(recipe)
            except CannotLower as error:
                self._known[digest] = str(error)
        found = self._known[digest]
        if isinstance(found, str):
            raise CannotLower(found)
        self._known[found.recipe.digest] = found
        self.by_text[found.source] = found
        return found

    def _lower(self, recipe: Recipe) -> Lowered:
        landscape = self.landscape
        found = self._with_recorded_defaults(
            lower([landscape.graph], recipe, task_source=SOURCE, device=landscape.device)
        )
        if not landscape.covers(found):
            raise CannotLower("this configuration was not recorded")
        kernels = []
        for kernel in found.kernels:
            kept = landscape.sweeps[place_of(kernel)].values
            tunables = [
                replace(item, values=tuple(value for value in item.values if value in kept[item.name]))
                for item in kernel.tunables
                if item.name in kept
            ]
            kernels.append(replace(kernel, tunables=tuple(item for item in tunables if len(item.values) > 1)))
        return replace(found, kernels=tuple(kernels))

    def _with_recorded_defaults(self, found: Lowered) -> Lowered:
        """With the nearest recorded number in place of each that was not swept: the library's defaults have changed
        since the times were recorded, and no other number than a default is ever asked for."""
        choices = {name: dict(values) for name, values in found.recipe.choices.items()}
        for kernel in found.kernels:
            sweep = self.landscape.sweeps.get(place_of(kernel))
            for name, values in sweep.values.items() if sweep else ():
                now = kernel.choices.get(name)
                numbers = [value for value in values if isinstance(value, int)]
                if isinstance(now, int) and numbers and now not in values:
                    nearest = min(numbers, key=lambda value: abs(math.log2(max(1, value) / max(1, now))))
                    choices.setdefault(kernel.name, {})[name] = nearest
        if choices == found.recipe.choices:
            return found
        recipe = replace(found.recipe, choices=choices)
        return lower([self.landscape.graph], recipe, task_source=SOURCE, device=self.landscape.device)

    def moves(self, lowered: Lowered) -> tuple[Move, ...]:
        return kernel_library.moves(lowered)

    def apply(self, recipe: Recipe, move: Move) -> Recipe:
        return kernel_library.apply(recipe, move)

    def outline(self, recipe: Recipe, graph: OpGraph, device: Device) -> Outline:
        found = self.lower([graph], recipe, task_source=SOURCE, device=device)
        return Outline(found.recipe, found.kernels)

    # ------------------------------------------------------------ what only the benchmark knows

    def made(self, recipe: Recipe) -> Lowered:
        return self.lower([self.landscape.graph], recipe, task_source=SOURCE, device=self.landscape.device)

    @cached_property
    def structures(self) -> list[Lowered]:
        target = self.landscape.device.target
        return [self.made(Recipe(target, *structure)) for structure in self.landscape.structures]

    @cached_property
    def best_ms(self) -> float:
        """The least time of any structure, each kernel by its best configuration."""
        sweeps = self.landscape.sweeps
        return min(
            sum(min(sweeps[place_of(kernel)].known.values()) for kernel in found.kernels) for found in self.structures
        )

    def draw(self, stream: random.Random, structure: Lowered) -> Recipe:
        """A random configuration of a structure."""
        landscape = self.landscape
        choices: dict[str, dict[str, Choice]] = {}
        for kernel in structure.kernels:
            choices[kernel.name] = dict(stream.choice(list(landscape.sweeps[place_of(kernel)].times)))
        return self.made(replace(structure.recipe, choices=choices)).recipe

    def draw_start(self, seed: int) -> Recipe:
        """Where a search begins: somewhere that runs, in any structure. Seed 0 is the library's own default."""
        if seed == 0:
            return self.structures[0].recipe
        stream = random.Random(f"{seed}:{self.landscape.task}:start")
        while True:
            found = self.draw(stream, stream.choice(self.structures))
            if self.landscape.ms(self.made(found)) is not None:
                return found


class RecordedWorkbench:
    """Implements Workbench on a landscape; what a screen says differs from the recorded time by its noise."""

    def __init__(self, library: RecordedLibrary, seed: int) -> None:
        self.device = library.landscape.device
        self.library = library
        self._seed = seed
        self._eager_ms = 2 * library.best_ms

    @property
    def notes(self) -> BenchNotes:
        return BenchNotes()

    async def intake(self) -> Intake:
        graph = self.library.landscape.graph
        return Intake([value.spec for value in graph.inputs], [], [graph], "")

    async def baseline(self) -> Baseline:
        return Baseline(self._eager_ms, 0.02, [])

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None: ...

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        return Contest()

    async def build(self, text: str) -> Build:
        lowered = self.library.by_text[text]
        if self.library.landscape.ms(lowered) is None:
            return Build(False, 0.0, first_error="error: this configuration did not build when it was recorded")
        reports = {f"foundry_{kernel.name}": self._report(kernel) for kernel in lowered.kernels}
        found = [report for report in reports.values() if report]
        if not found:
            return Build(True, 0.0)
        registers, spilled, shared = (int(max(report[name] for report in found)) for name in REPORTED[:3])
        lowest = min(report["occupancy"] for report in found)
        return Build(True, 0.0, resources=Resources(registers, spilled, shared, lowest, 16, kernels=reports))

    def _report(self, kernel: KernelSummary) -> dict[str, float]:
        known = self.library.landscape.sweeps[place_of(kernel)].report(kernel)
        return dict(zip(REPORTED, known, strict=True)) if known else {}

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        return Verdict("correct", stage, accuracy_class="ieee")

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        return Audit(True, policy, labels=self.library.by_text[text].labels)

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        lowered = self.library.by_text[text]
        ms = self.library.landscape.ms(lowered)
        assert ms is not None
        deviation = NOISE[self.device.target] * (1 if stage == "screen" else PROOF)
        stream = random.Random(f"{self._seed}:{stage}:{lowered.recipe.digest}")
        speedup = self._eager_ms / ms * math.exp(stream.gauss(0.0, deviation))
        interval = (speedup * math.exp(-1.96 * deviation), speedup * math.exp(1.96 * deviation))
        return Timing(stage, self._eager_ms / speedup, self._eager_ms, speedup, interval, 16, 0.02, 1.0)

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        assert lowered is not None
        known = self.library.profiles.get(lowered.recipe.digest)
        if known is None:
            graph, exact = self.library.landscape.graph, self.library.landscape.ms(lowered) or 0.0
            around = floors(self.device, graph, "fair", audit.labels)
            # of the file's text only the number of launches is read, which is that of the kernels
            timing = replace(timing, candidate_ms=exact, speedup=self._eager_ms / exact)
            made = profile("", build, audit, timing, self.device, graph, lowered, floors=around)
            known = self.library.profiles[lowered.recipe.digest] = made
        return known

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        raise CannotLower("a recorded machine is not tuned")

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        return []

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
        return Seen(problem="nothing runs here")

    async def aclose(self) -> None: ...


class QuietStore(ExperienceStore):
    """A store of which only what was measured is asked: what is told and changes no step is left out, which takes as
    long as the search."""

    def add(self, records: Iterable[ExperienceRecord]) -> int:
        return self._journal.append(records)

    def recall(self, query: Query, k: int = 8) -> list[Hit]:
        return []

    def credits(self, query: Query) -> list[Credit]:
        return []


class NoIndex(ScanIndex):
    """Finds nothing by its words."""

    def sync(self, journal: LessonJournal) -> int:
        return 0


class RecordedParts(Parts):
    """The package's own playbook over a recorded machine and library."""

    def __init__(self, library: RecordedLibrary, seed: int, store: Path | None) -> None:
        self._machine = RecordedWorkbench(library, seed)
        self._library = library
        self._store = store

    def task(self, request: SolveRequest) -> Task:
        return Task(self._library.landscape.task, request.task, SOURCE, "d" * 64)

    def device(self, request: SolveRequest) -> Device:
        return self._machine.device

    def library(self) -> RecordedLibrary:
        return self._library

    async def workbench(self, task: Task, device: Device, scratch: Path, request: SolveRequest) -> Workbench:
        return self._machine

    def brain(self, request: SolveRequest, thinking: Any, listener: Any) -> Any:
        from foundry.agents.playbook.brain import PlaybookBrain

        return PlaybookBrain(self._library)

    def store(self, request: SolveRequest) -> ExperienceStore | None:
        if self._store is None:
            return None
        journal = LessonJournal(self._store / "journal.sqlite")
        return (
            QuietStore(journal, NoIndex())
            if "credits" not in request.strategies
            else ExperienceStore(journal, ScanIndex())
        )


@dataclass
class Trail:
    """The candidates of a search in the order of their evaluation: how good each was thought to be, and its time; none
    of one that failed."""

    best_ms: float
    beliefs: list[float] = field(default_factory=list)
    ms: list[float | None] = field(default_factory=list)

    def curve(self, evaluations: int) -> list[float]:
        """After each evaluation the true speed of what was thought to be the best, 1 being the best that is known."""
        found, best, at = [], 0.0, 0.0
        for belief, ms in zip(self.beliefs, self.ms, strict=True):
            if ms is not None and belief > best:
                best, at = belief, self.best_ms / ms
            found.append(at)
        return (found + [at] * evaluations)[:evaluations]


async def run_search(
    library: RecordedLibrary,
    seed: int,
    evaluations: int,
    *,
    strategies: tuple[StrategyName, ...] = (),
    store: Path | None = None,
    learn: Path | None = None,
    islands: int | None = None,
    blind: bool = False,
) -> Trail:
    """The real search. `store`: the experience that it recalls, and adds to. `learn`: the store that it only writes.
    `blind`: no step knows what was measured."""
    folder = Path(tempfile.mkdtemp(prefix="foundry-search-", dir=memory()))
    limits = RunLimits(evaluations=evaluations, minutes=1e6)
    request = SolveRequest(
        library.landscape.task,
        effort="quick",
        seed=seed,
        limits=limits,
        learn=store is not None,
        runs=str(folder),
        rivals=(),
        strategies=strategies,
        islands=islands,
    )
    parts = RecordedParts(library, seed, store)
    kept = EFFORTS["quick"]
    EFFORTS["quick"] = REPLAYED
    try:
        run = create(request, parts)
        opened = await open_services(run, parts, silent)
        with patch.object(briefing, "known_kernels", _nothing) if blind else contextlib.nullcontext():
            await _walk(opened.services)
        trail = _trail(opened.services, library)
        await opened.close()
        run.close()
        return trail
    finally:
        EFFORTS["quick"] = kept
        shutil.rmtree(folder, ignore_errors=True)


def memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


async def _nothing(*_: Any) -> tuple[Known, ...]:
    return ()


async def _walk(services: Services) -> None:
    """The root's nodes up to the islands, then the islands' nodes in turns."""
    state: RunState = {}
    for node in (intake, capture, baseline, recall, seed):
        state.update(await node(state, services))  # type: ignore[typeddict-item]
    islands = [_Island(inputs) for inputs in island_inputs(state, services)]
    while islands:
        for island in islands:
            await island.go(services, until=(TESTS[0], "select"))
        for island in islands:
            if island.at == TESTS[0]:
                await island.go(services, until=("select",))
        islands = [island for island in islands if island.at != "leave"]


class _Island:
    """One island and the node that is next."""

    works = NODES | {name: ask(name) for name in proposers()}
    ways = ways()

    def __init__(self, state: IslandState) -> None:
        self.state, self.at = state, "select"

    async def go(self, services: Services, until: tuple[str, ...]) -> None:
        """At least one node on, to one of these or out."""
        await self._step(services)
        while self.at != "leave" and self.at not in until:
            await self._step(services)

    async def _step(self, services: Services) -> None:
        with services.log.at(self.state["island"], self.state["step"]):
            update = await self.works[self.at](self.state, services)
        self.state.update(update)  # type: ignore[typeddict-item]
        self.at = unless_stopped(self.ways[self.at][0])(self.state)


def _trail(services: Services, library: RecordedLibrary) -> Trail:
    rows = services.run.database.run("SELECT candidate, merit FROM evaluations WHERE stage = 'screen' ORDER BY rowid")
    trail = Trail(library.best_ms)
    for name, merit in rows:
        candidate = services.candidate(name)
        assert candidate.recipe is not None
        trail.beliefs.append(float(merit))
        trail.ms.append(library.landscape.ms(library.made(candidate.recipe)))
    return trail
