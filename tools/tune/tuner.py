"""`tune`: takes a recipe, returns the same structure with faster values of its tunables and each kernel's sweep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foundry.knowledge.candidate import Choice, Recipe
from foundry.tools.tune.alone import Subject, subjects
from foundry.tools.tune.policies import Evolution
from foundry.tools.tune.session import Crew, Session
from foundry.tools.tune.space import KernelSpace, Setting
from foundry.tools.tune.sweep import Ended, KernelSweep, PlanSweep

BATCH, GPU_BATCH = 4, 2  # new configurations a round, for each core
LATE_SHARE, LATE_S = 0.25, 1.0  # a sweep that has not ended by itself so long after its seconds is ended
WAITED_SHARE = 2.0  # longest wait for the device, as a multiple of the sweep's seconds
GLANCE_S = 0.02  # seconds; shortest time between two checks of the clock
HINTS = 6  # settings of earlier runs that are tried first, one by one and all together


@dataclass(frozen=True)
class TunedKernel:
    """The result of one kernel's sweep; times are 0 if the present configuration did not run.

    `alike` are the kernels of the plan that differ from it in names only.
    """

    kernel: str
    template: str
    choices: dict[str, Choice]
    present_ms: float
    best_ms: float
    floor_ms: float | None  # roofline floor for the arithmetic in use
    tried: int
    failed: int
    ended: Ended
    alike: tuple[str, ...] = ()


@dataclass(frozen=True)
class TunedPlan:
    """`recipe` is the structure with the best values found, unchanged if nothing is clearly faster."""

    recipe: Recipe
    kernels: tuple[TunedKernel, ...]
    tried: int
    failed: int
    restarts: int
    seconds: float
    log: tuple[str, ...] = ()  # one line a round, then the best

    @property
    def expected_gain(self) -> float:
        """The present kernels' time over the best ones', each kernel timed alone."""
        present = sum(item.present_ms * (1 + len(item.alike)) for item in self.kernels)
        best = sum(item.best_ms * (1 + len(item.alike)) for item in self.kernels)
        return present / best if best > 0 else 1.0


async def tune(
    crew: Crew,
    seconds: float,
    *,
    seed: int = 0,
    hints: Mapping[str, float] | None = None,
    say: Callable[[str], None] = lambda line: None,
    watch: Callable[[Session], None] = lambda session: None,
) -> TunedPlan:
    """Sweeps every kernel of the recipe for about `seconds`, and returns the best found. Raises CannotLower.

    It takes at most a third more and a few seconds. Waiting for the device does not count, up to twice the seconds.
    `hints`: the lift that earlier runs saw of a setting, by a move's key.
    """
    groups = _alike(subjects(crew.graph, crew.recipe, crew.device))
    spaces = {first.name: KernelSpace(first) for first, _ in groups}
    lines: list[str] = []

    def hear(line: str) -> None:
        """Keeps a line of the log and passes it on."""
        lines.append(line)
        say(line)

    sweeps = [_sweep_of(first, spaces[first.name], 1 + len(others), seed, hints or {}) for first, others in groups]
    latest_s = seconds + LATE_SHARE * seconds + LATE_S
    found_by_name = {first.name: first for first, _ in groups}
    session = Session(crew, found_by_name, spaces, latest_s, WAITED_SHARE * seconds)
    batch = BATCH if crew.device.traits.uses_host_cores else GPU_BATCH
    plan = PlanSweep(sweeps, session, seconds, batch * crew.compilers, hear)
    try:
        watch(session)
        if not await _ends(asyncio.gather(session.open(), plan.run()), session):
            waited = f"{session.waited_s:.1f} s of waiting for others"
            hear(f"ended after {session.elapsed_s():.1f} s and {waited}: its processes or the device took too long")
    finally:
        await session.aclose()
    took_s = session.elapsed_s()
    found = [_result(one, first, others) for one, (first, others) in zip(sweeps, groups, strict=True)]
    for line in _closing_lines(found, sweeps):
        hear(line)
    return TunedPlan(
        recipe=_recipe(crew.recipe, found),
        kernels=tuple(found),
        tried=sum(one.tried for one in sweeps),
        failed=sum(len(one.problems) for one in sweeps),
        restarts=session.restarts,
        seconds=took_s,
        log=tuple(lines),
    )


async def _ends(work: asyncio.Future[Any], session: Session) -> bool:
    """True if the work ends by itself in the session's time; else it is cancelled."""
    try:
        while not work.done():
            left_s = session.left_s()
            if left_s <= 0:
                return False
            await asyncio.wait([work], timeout=max(GLANCE_S, left_s))
        work.result()
        return True
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()  # marks the error as seen: asyncio would print it otherwise


def _alike(found: Sequence[Subject]) -> list[tuple[Subject, list[Subject]]]:
    """Groups kernels that differ in names only: (first, the others)."""
    groups: dict[str, tuple[Subject, list[Subject]]] = {}
    for subject in found:
        groups.setdefault(subject.signature(), (subject, []))[1].append(subject)
    return [(first, others[1:]) for first, others in groups.values()]


def _sweep_of(subject: Subject, space: KernelSpace, weight: int, seed: int, hints: Mapping[str, float]) -> KernelSweep:
    """A sweep of one kernel by evolution, starting from settings that earlier runs or the template suggest."""
    printed = space.printed(space.present)
    floor_ms = subject.floor_ms(printed)
    if floor_ms is not None and subject.device.ceilings is not None:
        floor_ms = max(floor_ms, subject.device.ceilings.launch_ms)
    policy = Evolution(space, seed, starts_from(space, printed.template, hints))
    return KernelSweep(subject.name, space, policy, floor_ms, weight=weight)


def starts_from(space: KernelSpace, template: str, hints: Mapping[str, float]) -> list[Setting]:
    """Settings that helped kernels of this template before: all together, then one by one, the best first."""
    found: list[tuple[float, str, Choice]] = []
    for name, values in space.values(space.present).items():
        known = [(hints.get(f"{template}:set:{name}={value}", 0.0), name, value) for value in values]
        found += sorted((item for item in known if item[0] > 1.0), key=lambda item: -item[0])[:1]
    best = sorted(found, key=lambda item: -item[0])[:HINTS]
    wanted = [{name: value for _, name, value in best}] if len(best) > 1 else []
    wanted += [{name: value} for _, name, value in best]
    starts = [space.legal({**dict(space.present), **choices}) for choices in wanted]
    return [setting for setting in dict.fromkeys(starts) if setting is not None]


def _result(sweep: KernelSweep, subject: Subject, others: Sequence[Subject]) -> TunedKernel:
    """The sweep's winner as a record, with the kernels that are alike and get the same numbers."""
    setting, best_ms, present_ms = sweep.winner()
    return TunedKernel(
        kernel=sweep.name,
        template=subject.print(subject.present).template,
        choices=dict(setting),
        present_ms=present_ms,
        best_ms=best_ms,
        floor_ms=sweep.floor_ms,
        tried=sweep.tried,
        failed=len(sweep.problems),
        ended=sweep.ended or "time",
        alike=tuple(other.name for other in others),
    )


def _recipe(recipe: Recipe, found: Sequence[TunedKernel]) -> Recipe:
    """The recipe with the choices of each kernel that became faster, also for kernels alike."""
    choices = {name: dict(values) for name, values in recipe.choices.items()}
    for item in found:
        if item.best_ms < item.present_ms:
            choices |= {name: dict(item.choices) for name in (item.kernel, *item.alike)}
    return replace(recipe, choices=choices)


def _problems(sweeps: Sequence[KernelSweep]) -> tuple[str, ...]:
    """The most frequent problems with their counts."""
    counts: dict[str, int] = {}
    for one in sweeps:
        for problem in one.problems.values():
            counts[problem] = counts.get(problem, 0) + 1
    return tuple(f"{count} x {said}" for said, count in sorted(counts.items(), key=lambda item: -item[1])[:8])


def _closing_lines(found: Sequence[TunedKernel], sweeps: Sequence[KernelSweep]) -> list[str]:
    """A line for each kernel, what went wrong, then the best choices of all as one line of JSON that can be pasted."""
    lines = [
        f"{item.kernel} ({item.template}): {item.present_ms:.4g} -> {item.best_ms:.4g} ms, "
        f"{item.present_ms / item.best_ms:.2f}x, {item.tried} tried, {item.failed} failed, ended by {item.ended}"
        for item in found
        if item.best_ms > 0
    ]
    lines += [f"problem: {problem}" for problem in _problems(sweeps)]
    best = {name: item.choices for item in found for name in (item.kernel, *item.alike)}
    return [*lines, f"best: {json.dumps(best, sort_keys=True)}"]
