"""Measurements of a run: each asked of the workbench once, journalled, and shown in the trace as a tool span."""

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
COUNTED_S = 0.3  # seconds of repeated forwards before their kernels are counted


Facts = Callable[[Any], dict[str, object]]


@dataclass(frozen=True)
class _Journalled:
    """The journal's key, name, category and facts of one step of a candidate's path."""

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
    """The workbench's methods, each executed at most once for a text and stage, also if the run is resumed.

    A replay takes all answers from its recording and never uses the workbench.
    """

    def __init__(self, workbench: Workbench | None, journal: Journal, log: EventLog, policy: Policy) -> None:
        """Asks nothing. `workbench` is None in a replay."""
        self._workbench = workbench
        self._journal = journal
        self._log = log
        self._policy = policy
        self._answers: dict[str, Any] = {}  # decoded once
        self._aside: asyncio.Future[Contest] | None = None  # `rivals`, measured beside the search
        self._use: dict[str, float] = {}  # seconds of the device's lock, as noted last

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

        return await self._ask("intake", "intake", "run", Intake, lambda: self.workbench.intake(), facts=lambda _: {})

    async def baseline(self) -> Baseline:
        """Timing of the reference, measured once a run."""
        asked = _JOURNALLED["baseline"]
        return await self._ask(
            asked.key, asked.name, asked.category, Baseline, lambda: self.workbench.baseline(), facts=asked.facts
        )

    async def contest(self, text: str, rivals: Sequence[RivalName], foreign: ForeignName | None) -> Contest:
        """Times the winning kernel (none if `text` is "") in turns with other ways to run the reference."""

        async def hold() -> Contest:
            """Builds the kernel, if there is one, and times all sides."""
            build = await self.workbench.build(text) if text else None
            return await self.workbench.contest(text, build, rivals, foreign)

        return await self._ask(CONTEST, "contest", "time", Contest, hold, facts=_speeds)

    async def rivals(self) -> Contest:
        """Times the reference under torch.compile in turns with eager, without a kernel."""
        names: list[RivalName] = ["compile"]
        return await self._ask(
            RIVALS, "rivals", "time", Contest, lambda: self.workbench.contest("", None, names), facts=_speeds
        )

    def begin_rivals(self) -> None:
        """Begins `rivals` in the background, beside the search. A failure shows at the end of the run, when it is
        measured again."""
        if self._workbench is not None and self._aside is None:
            self._aside = asyncio.ensure_future(self.rivals())

    @property
    def knows_rivals(self) -> bool:
        """True if torch.compile's time is known already."""
        return self._journal.lookup(RIVALS) is not None

    async def stop(self) -> None:
        """Cancels the measurement beside the search."""
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
        """Adds a note to the trace with the seconds that the device's lock was used since the last call."""
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
        """The candidate's records up to step `upto`, or up to the step that it failed. Journalled measurements are not
        repeated."""
        from foundry.tools.grade.host.examine import examine

        digest = hashlib.sha256(text.encode()).hexdigest()

        async def ask(step: Step, shape: type[T], work: Callable[[Workbench], Awaitable[T]]) -> T:
            """Asks the workbench for one step, or takes the journalled answer."""
            asked = _JOURNALLED[step]
            key = asked.key.format(stage=stage, text=digest)
            name = asked.name.format(stage=stage)
            return await self._ask(key, name, asked.category, shape, lambda: work(self.workbench), facts=asked.facts)

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
        """Times a candidate in turns with another text, which is the baseline of this timing.

        Times of different moments do not compare if the machine has other work. It is no record of either.
        """
        one, two = (hashlib.sha256(item.encode()).hexdigest() for item in (text, other))

        async def take_turns() -> Timing:
            """Asks the workbench for a screening that takes turns with the other candidate."""
            return await self.workbench.time(text, build, "screen", beside=other)

        timed = _JOURNALLED["time"]
        return await self._ask(f"turns/{one}/{two}", "time in turns", "time", Timing, take_turns, facts=timed.facts)

    def may_count(self, text: str, most: int) -> bool:
        """True if the hardware's counters should be read for this text.

        That is so if they were not read for it, nor for `most` others, and no attempt has shown that they cannot be
        read.
        """
        known = self._journal.lookup(_counters_key(text)) is not None
        return not known and self._journal.lookup(NO_COUNTERS) is None and self._journal.count(COUNTERS) < most

    async def counted(self, text: str, evaluation: Evaluation, lowered: Lowered | None) -> Profile:
        """The candidate's profile with the hardware's counters of its kernels.

        If they cannot be read, notes the reason once in the run, and `may_count` is False from then on.
        """

        async def look() -> Profile:
            """Observes the candidate with counters and profiles it again."""
            assert evaluation.audit is not None and evaluation.timing is not None
            seen = await self.workbench.observe(text, evaluation.build, COUNTED_S, counted=True)
            found = await self.workbench.profile(text, evaluation.build, evaluation.audit, evaluation.timing, lowered)
            return replace(found, notes=(*found.notes, seen.problem) if seen.problem else seen.notes)

        found = await self._ask(
            _counters_key(text),
            "counters",
            "profile",
            Profile,
            look,
            facts=lambda it: {"rung": it.rung, "notes": it.notes},
        )
        if found.rung != "counters" and self._journal.lookup(NO_COUNTERS) is None:
            reason = found.notes[-1] if found.notes else "no kernel was seen"
            self._journal.plain(NO_COUNTERS, "measure", lambda: reason)
            self._log.note("note", "no counters", reason=reason)
        return found

    async def tune(self, recipe: Recipe, seconds: float, *, seed: int, hints: Mapping[str, float]) -> TunedPlan:
        """The tuner's best numbers for the recipe's structure, asked of the workbench once, journalled and shown in the
        trace."""
        from foundry.tools.tune.tuner import TunedPlan

        return await self._ask(
            f"tune/{recipe.digest}",
            "tune",
            "time",
            TunedPlan,
            lambda: self.workbench.tune(recipe, seconds, seed=seed, hints=hints),
            facts=lambda answer: {
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
            """Measures in a tool span and records the facts there."""
            with self._log.span("tool", name, category=category) as span:
                answer = await produce()
                span.data.update({key: value for key, value in facts(answer).items() if value is not None})
                return answer

        if key not in self._answers:
            self._answers[key] = await self._journal.record(key, "measure", shape, measured)
        found: T = self._answers[key]
        return found
