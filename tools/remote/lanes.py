"""One run on several GPUs of a host: each has a workbench in a process of its own. Free of torch.

One comparison happens on one GPU: a candidate, the eager reference that it is timed against, its audit. So speedups
of different GPUs can be compared, because each was measured on its own. The final proofs are made on the first GPU,
and so is the baseline comparison of the winner with torch.compile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Contest,
    ForeignName,
    Gate,
    Profile,
    Recipe,
    RivalName,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import TargetName
from foundry.knowledge.task import Policy, Task
from foundry.tools.grade.host.workbench import BenchNotes, Intake, Workbench
from foundry.tools.machine.lock import LockUse
from foundry.tools.profiling.gather import Seen
from foundry.tools.remote.client import RemoteWorkbench
from foundry.tools.tune.tuner import TunedPlan


class GpuLanes:
    """A workbench made of several. The first is home: it describes the task, and makes the final proofs."""

    def __init__(self, lanes: Sequence[Workbench]) -> None:
        """Takes opened workbenches; asks nothing yet."""
        self.device = lanes[0].device
        self._lanes = list(lanes)
        self._home = lanes[0]
        self._chosen: dict[str, int] = {}  # lane by a text's digest: measurements of one text stay comparable
        self._busy: list[set[str]] = [set() for _ in lanes]  # texts under evaluation
        self._begun: list[asyncio.Task[Baseline]] = []

    @property
    def notes(self) -> BenchNotes:
        """Notes of home, where finalists are proven, with the use of the locks of all lanes."""
        home = self._home.notes
        uses = [lane.notes.lock for lane in self._lanes]
        total = LockUse(*(sum(getattr(use, one.name) for use in uses) for one in fields(LockUse)))
        return BenchNotes(home.isolation, home.seeds, total)

    async def intake(self) -> Intake:
        """Home's intake. The other lanes start their baselines too, each on its own GPU, before they get a
        candidate."""
        if not self._begun:
            self._begun = [asyncio.ensure_future(lane.baseline()) for lane in self._lanes[1:]]
        return await self._home.intake()

    async def baseline(self) -> Baseline:
        """The baseline as the first GPU's workbench measures it."""
        return await self._home.baseline()

    async def expect_contest(self, rivals: Sequence[RivalName]) -> None:
        """Tells the first GPU's workbench which baselines will be compared."""
        await self._home.expect_contest(rivals)

    async def contest(
        self, text: str, build: Build | None, rivals: Sequence[RivalName], foreign: ForeignName | None = None
    ) -> Contest:
        """The baseline comparison, made on the home lane."""
        return await self._home.contest(text, build, rivals, foreign)

    async def build(self, text: str) -> Build:
        """Compiles a text on its lane; frees the lane if that fails."""
        async with self._at(text) as lane:
            built = await lane.build(text)
            self._release(text, is_over=not built.ok)
            return built

    async def verify(self, text: str, build: Build, stage: Stage) -> Verdict:
        """Checks a candidate on its lane (a final one at home); frees the lane if it is incorrect."""
        async with self._at(text, stage) as lane:
            verdict = await lane.verify(text, build, stage)
            self._release(text, is_over=not verdict.correct)
            return verdict

    async def audit(self, text: str, build: Build, verdict: Verdict, policy: Policy) -> Audit:
        """Audits a candidate on its lane; frees the lane if it is not clean."""
        async with self._at(text, verdict.stage) as lane:
            audit = await lane.audit(text, build, verdict, policy)
            self._release(text, is_over=not audit.clean)
            return audit

    async def time(
        self, text: str, build: Build, stage: Stage, *, incumbent_ms: float | None = None, beside: str = ""
    ) -> Timing:
        """Times a candidate on its lane; frees the lane if it could not be timed."""
        async with self._at(text, stage) as lane:
            timing = await lane.time(text, build, stage, incumbent_ms=incumbent_ms, beside=beside)
            self._release(text, is_over=bool(timing.problem))
            return timing

    async def profile(self, text: str, build: Build, audit: Audit, timing: Timing, lowered: Lowered | None) -> Profile:
        """Profiles a candidate on its lane and frees the lane."""
        async with self._at(text, timing.stage) as lane:
            found = await lane.profile(text, build, audit, timing, lowered)
            self._release(text, is_over=True)
            return found

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        """Tunes a recipe on its lane and frees the lane."""
        async with self._at(recipe.digest) as lane:
            tuned = await lane.tune(recipe, seconds, seed=seed, hints=hints)
            self._release(recipe.digest, is_over=True)
            return tuned

    async def observe(self, text: str, build: Build, seconds: float, *, counted: bool = False) -> Seen:
        """Observes the candidate on the first GPU's workbench."""
        return await self._home.observe(text, build, seconds, counted=counted)

    async def sanitize(self, text: str, build: Build) -> list[Gate]:
        """Runs the sanitizer's gates on the first GPU's workbench."""
        return await self._home.sanitize(text, build)

    async def aclose(self) -> None:
        """Cancels the baselines under way and closes all lanes."""
        for begun in self._begun:
            begun.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)
        await asyncio.gather(*(lane.aclose() for lane in self._lanes))

    # ------------------------------------------------------------ claims

    @contextlib.asynccontextmanager
    async def _at(self, text: str, stage: Stage = "screen") -> AsyncIterator[Workbench]:
        """Yields the lane of a text: home for a final proof, else the lane that has it, or the least busy one."""
        if stage == "final":
            yield self._home
            return
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest not in self._chosen:
            self._chosen[digest] = min(range(len(self._lanes)), key=lambda number: len(self._busy[number]))
        number = self._chosen[digest]
        self._busy[number].add(digest)
        try:
            yield self._lanes[number]
        except BaseException:
            self._busy[number].discard(digest)
            raise

    def _release(self, text: str, *, is_over: bool) -> None:
        """Frees the text's lane once its evaluation is over."""
        if is_over:
            digest = hashlib.sha256(text.encode()).hexdigest()
            for texts in self._busy:
                texts.discard(digest)


async def open_lanes(task: Task, target: TargetName, places: Sequence[Mapping[str, str]], *, seed: int) -> GpuLanes:
    """A lane for each place. Raises FoundryError.

    A place is what is special in the environment of a lane's process: the GPU that it sees. Each lane has its share
    of the host's cores, so that its compilers leave the other lanes' cores alone.
    """
    count = len(places)
    opening = [
        asyncio.ensure_future(RemoteWorkbench.open(task, target, seed=seed, place=place, share=(number, count)))
        for number, place in enumerate(places)
    ]
    try:
        return GpuLanes(await asyncio.gather(*opening))
    except BaseException:
        await asyncio.wait(opening)
        await asyncio.gather(*(one.result().aclose() for one in opening if not one.cancelled() and not one.exception()))
        raise
