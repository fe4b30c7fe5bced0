"""Every measurement of a run: asked of the workbench once, journalled, and shown in the trace as a tool span."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from foundry.graph.run.events import DEVICE_LOCK, EventLog, ToolCategory
from foundry.graph.run.journal import Journal
from foundry.knowledge.candidate import (
    Baseline,
    Build,
    Candidate,
    Contest,
    Evaluation,
    ForeignName,
    Profile,
    Recipe,
    RivalName,
    Stage,
    Timing,
)
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.task import Policy

if TYPE_CHECKING:
    from foundry.tools.grade.host.examine import Judge, Step
    from foundry.tools.grade.host.workbench import Intake, Workbench
    from foundry.tools.tune.tuner import TunedPlan

T = TypeVar("T")
CONTEST, RIVALS = "contest", "rivals"  # keys of the journal
COUNTERS, NO_COUNTERS = "counters/", "no counters"  # keys of the journal
COUNTED_S = 0.3  # that forward is called again and again before its kernels are counted


Facts = Callable[[Any], dict[str, object]]


@dataclass(frozen=True)
class _Journalled:
    """How one step of a candidate's path is journalled and shown in the trace."""

    key: str
    name: str
    category: ToolCategory
    facts: Facts


_JOURNALLED: dict[Step, _Journalled] = {
    "build": _Journalled(
        "build/{text}",
        "build",
        "compile",
        lambda it: {"ok": it.ok, "cached": it.cached, "busy_s": it.seconds, "error": it.first_error},
    ),
    "baseline": _Journalled("baseline", "baseline", "time", lambda it: {"eager_ms": it.eager_ms}),
    "verify": _Journalled(
        "verify/{stage}/{text}",
        "verify {stage}",
        "run",
        lambda it: {"outcome": it.outcome, "busy_s": it.seconds, "evidence": it.evidence},
    ),
    "audit": _Journalled(
        "audit/{stage}/{text}",
        "audit",
        "run",
        lambda it: {"clean": it.clean, "failed": [gate.gate for gate in it.gates if not gate.passed]},
    ),
    "time": _Journalled(
        "time/{stage}/{text}",
        "time {stage}",
        "time",
        lambda it: {"speedup": it.speedup, "pairs": it.pairs, "busy_s": it.seconds, "problem": it.problem},
    ),
    "profile": _Journalled(
        "profile/{stage}/{text}",
        "profile",
        "profile",
        lambda it: {"rung": it.rung, "fraction_of_floor": it.fraction_of_floor},
    ),
}


def _speeds(found: Contest) -> dict[str, object]:
    """Each baseline's speed against eager, or its problem, by name."""
    return {one.name: one.problem or f"{one.over_baseline:.3g}x" for one in found.rivals}


def _counters_key(text: str) -> str:
    """The journal's key for the hardware counters of a text."""
    return COUNTERS + hashlib.sha256(text.encode()).hexdigest()


class Measurements:
    """The workbench's methods, each executed at most once for a text and stage, also when the run is resumed. A replay
    takes all answers from its recording and never uses the workbench."""

    def __init__(self, workbench: Workbench | None, journal: Journal, log: EventLog, policy: Policy) -> None:
        self._workbench = workbench
        self._journal = journal
        self._log = log
        self._policy = policy
        self._answers: dict[str, Any] = {}  # decoded once
        self._aside: asyncio.Future[Contest] | None = None  # the rivals, while kernels are searched
        self._use: dict[str, float] = {}  # of the device's lock, as noted last

    @property
    def machine(self) -> Workbench | None:
        """The workbench behind, None in a replay."""
        return self._workbench

    @property
    def workbench(self) -> Workbench:
        """The workbench; AssertionError in a replay, which has none."""
        if self._workbench is None:
            raise AssertionError("a replay has no machine to ask")
        return self._workbench

    async def intake(self) -> Intake:
        """Inputs, outputs and graphs of the task; raises TaskError."""
        from foundry.tools.grade.host.workbench import Intake

        return await self._ask("intake", "intake", "run", Intake, lambda: self.workbench.intake(), lambda _: {})

    async def baseline(self) -> Baseline:
        """Timing of the reference, measured once a run."""
        asked = _JOURNALLED["baseline"]
        return await self._ask(
            asked.key, asked.name, asked.category, Baseline, lambda: self.workbench.baseline(), asked.facts
        )

    async def contest(self, text: str, rivals: Sequence[RivalName], foreign: ForeignName | None) -> Contest:
        """The kernel that won, none where `text` is "", beside other ways to run the reference."""

        async def hold() -> Contest:
            build = await self.workbench.build(text) if text else None
            return await self.workbench.contest(text, build, rivals, foreign)

        return await self._ask(CONTEST, "contest", "time", Contest, hold, _speeds)

    async def rivals(self) -> Contest:
        """What torch.compile makes of the reference, in turns with eager: known while kernels are searched."""
        names: list[RivalName] = ["compile"]
        return await self._ask(
            RIVALS, "rivals", "time", Contest, lambda: self.workbench.contest("", None, names), _speeds
        )

    def begin_rivals(self) -> None:
        """Measures the rivals beside the search. What fails is measured at the end of the run, and said there."""
        if self._workbench is not None and self._aside is None:
            self._aside = asyncio.ensure_future(self.rivals())

    @property
    def knows_rivals(self) -> bool:
        """True if the baselines beside the search are measured."""
        return self._journal.lookup(RIVALS) is not None

    async def stop(self) -> None:
        """Ends what is measured beside the search."""
        if self._aside is not None:
            self._aside.cancel()
            await asyncio.gather(self._aside, return_exceptions=True)

    def seeds(self) -> dict[str, int]:
        """The seeds that the grader drew so far, by purpose; later candidates overwrite those of earlier ones."""
        return dict(self._workbench.notes.seeds) if self._workbench else {}

    def isolation(self) -> list[str]:
        """The system's means that are active around candidates on this machine."""
        return list(self._workbench.notes.isolation) if self._workbench else []

    def note_lock(self) -> None:
        """Shows in the trace how the device's lock was used since this was last called."""
        if self._workbench is None:
            return
        use = asdict(self._workbench.notes.lock)
        more = {name: round(seconds - self._use.get(name, 0.0), 3) for name, seconds in use.items()}
        self._use = use
        if any(more.values()):
            self._log.note("note", DEVICE_LOCK, **more)

    async def examine(
        self,
        candidate: Candidate,
        text: str,
        stage: Stage,
        *,
        upto: Step = "profile",
        lowered: Lowered | None = None,
        incumbent_ms: float | None = None,
        judge: Judge | None = None,
    ) -> Evaluation:
        """The candidate's records up to step `upto`, or up to the step that it failed. What was measured before is
        taken from the journal."""
        from foundry.tools.grade.host.examine import examine

        digest = hashlib.sha256(text.encode()).hexdigest()

        async def ask(step: Step, shape: type[T], work: Callable[[Workbench], Awaitable[T]]) -> T:
            asked = _JOURNALLED[step]
            key = asked.key.format(stage=stage, text=digest)
            name = asked.name.format(stage=stage)
            return await self._ask(key, name, asked.category, shape, lambda: work(self.workbench), asked.facts)

        return await examine(
            candidate,
            text,
            stage,
            self._policy,
            ask,
            upto=upto,
            lowered=lowered,
            incumbent_ms=incumbent_ms,
            judge=judge,
        )

    async def time_beside(self, text: str, build: Build, other: str) -> Timing:
        """A candidate and another text timed in turns; the other is the baseline of this timing. Times of different
        moments do not compare where the machine has other work. It is no record of either."""
        one, two = (hashlib.sha256(item.encode()).hexdigest() for item in (text, other))

        async def take_turns() -> Timing:
            return await self.workbench.time(text, build, "screen", beside=other)

        timed = _JOURNALLED["time"]
        return await self._ask(f"turns/{one}/{two}", "time in turns", "time", Timing, take_turns, timed.facts)

    def may_count(self, text: str, most: int) -> bool:
        """Whether the hardware's counters are to be read for this text: they can be here as far as is known, were not
        read for it, and not for `most` others."""
        known = self._journal.lookup(_counters_key(text)) is not None
        return not known and self._journal.lookup(NO_COUNTERS) is None and self._journal.count(COUNTERS) < most

    async def counted(self, text: str, evaluation: Evaluation, lowered: Lowered | None) -> Profile:
        """The profile of a candidate with what the hardware counts of its kernels. Where it counts nothing, the reason
        is said once in a run, and nobody asks again."""

        async def look() -> Profile:
            assert evaluation.audit is not None and evaluation.timing is not None
            seen = await self.workbench.observe(text, evaluation.build, COUNTED_S, counted=True)
            found = await self.workbench.profile(text, evaluation.build, evaluation.audit, evaluation.timing, lowered)
            return replace(found, notes=(*found.notes, seen.problem) if seen.problem else seen.notes)

        found = await self._ask(
            _counters_key(text), "counters", "profile", Profile, look, lambda it: {"rung": it.rung, "notes": it.notes}
        )
        if found.rung != "counters" and self._journal.lookup(NO_COUNTERS) is None:
            reason = found.notes[-1] if found.notes else "no kernel was seen"
            self._journal.plain(NO_COUNTERS, "measure", lambda: reason)
            self._log.note("note", "no counters", reason=reason)
        return found

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        """What the tuner makes of a structure."""
        from foundry.tools.tune.tuner import TunedPlan

        return await self._ask(
            f"tune/{recipe.digest}",
            "tune",
            "time",
            TunedPlan,
            lambda: self.workbench.tune(recipe, seconds, seed=seed, hints=hints),
            lambda answer: {
                "tried": answer.tried,
                "failed": answer.failed,
                "restarts": answer.restarts,
                "busy_s": answer.seconds,
                "expected_gain": answer.expected_gain,
            },
        )

    async def _ask(
        self,
        key: str,
        name: str,
        category: ToolCategory,
        shape: type[T],
        produce: Callable[[], Awaitable[T]],
        facts: Facts,
    ) -> T:
        """The answer under a key: from memory, from the journal, or else measured by `produce` in a span and
        journalled."""

        async def measured() -> T:
            with self._log.span("tool", name, category=category) as span:
                answer = await produce()
                span.data.update({key: value for key, value in facts(answer).items() if value is not None})
                return answer

        if key not in self._answers:
            self._answers[key] = await self._journal.record(key, "measure", shape, measured)
        found: T = self._answers[key]
        return found
