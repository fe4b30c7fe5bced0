"""Every measurement of a run: asked of the workbench once, journalled, and shown in the trace as a tool span."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from foundry.graph.run.events import EventLog, Span, ToolCategory
from foundry.graph.run.journal import Journal
from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Candidate,
    Coordinates,
    Evaluation,
    Profile,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.task import Policy

if TYPE_CHECKING:
    from foundry.tools.grade.workbench import Intake, Workbench

T = TypeVar("T")


@dataclass(frozen=True)
class Profiled:
    """What the workbench's `profile` returns, as one record for the journal."""

    profile: Profile
    coordinates: Coordinates


class Measurements:
    """The same questions as the workbench's, answered at most once per text and stage, in this run or the resumed
    one. A replay answers them all from its recording and never touches the workbench."""

    def __init__(self, workbench: Workbench | None, journal: Journal, log: EventLog, policy: Policy) -> None:
        self._workbench = workbench
        self._journal = journal
        self._log = log
        self._policy = policy
        self._answers: dict[str, Any] = {}  # decoded once

    @property
    def machine(self) -> Workbench | None:
        """The workbench behind, None in a replay."""
        return self._workbench

    @property
    def workbench(self) -> Workbench:
        if self._workbench is None:
            raise AssertionError("a replay has no machine to ask")
        return self._workbench

    async def intake(self) -> Intake:
        """Inputs, outputs and graphs of the task; raises TaskError."""
        from foundry.tools.grade.workbench import Intake

        return await self._ask("intake", "intake", "run", Intake, lambda: self.workbench.intake(), lambda _: None)

    async def baseline(self) -> Baseline:
        return await self._ask(
            "baseline",
            "baseline",
            "time",
            Baseline,
            lambda: self.workbench.baseline(),
            lambda answer: {"eager_ms": answer.eager_ms},
        )

    async def compile_baseline(self, baseline: Baseline) -> Baseline:
        return await self._ask(
            "compile_baseline",
            "torch.compile",
            "compile",
            Baseline,
            lambda: self.workbench.compile_baseline(baseline),
            lambda answer: {"compile_ms": answer.compile_ms, "compile_speedup": answer.compile_speedup},
        )

    def seeds(self) -> dict[str, int]:
        """The seeds that the grader drew so far, by purpose; later candidates overwrite those of earlier ones."""
        from foundry.tools.grade.workbench import LocalWorkbench

        machine = self._workbench
        return dict(machine.notes.seeds) if isinstance(machine, LocalWorkbench) else {}

    def isolation(self) -> list[str]:
        """The system's means that are active around candidates on this machine."""
        from foundry.tools.grade.workbench import LocalWorkbench

        machine = self._workbench
        return list(machine.notes.isolation) if isinstance(machine, LocalWorkbench) else []

    async def build(self, text: str) -> Build:
        return await self._ask(
            f"build/{_digest(text)}",
            "build",
            "compile",
            Build,
            lambda: self.workbench.build(text),
            lambda answer: {
                "ok": answer.ok,
                "cached": answer.cached,
                "busy_s": answer.seconds,
                "error": answer.first_error,
            },
        )

    async def verify(self, text: str, stage: Stage) -> Verdict:
        build = await self.build(text)
        return await self._ask(
            f"verify/{stage}/{_digest(text)}",
            f"verify {stage}",
            "run",
            Verdict,
            lambda: self.workbench.verify(text, build, stage),
            lambda answer: {"outcome": answer.outcome, "busy_s": answer.seconds, "evidence": answer.evidence},
        )

    async def audit(self, text: str, stage: Stage) -> Audit:
        build, verdict = await self.build(text), await self.verify(text, stage)
        return await self._ask(
            f"audit/{stage}/{_digest(text)}",
            "audit",
            "run",
            Audit,
            lambda: self.workbench.audit(text, build, verdict, self._policy),
            lambda answer: {"clean": answer.clean, "failed": [gate.gate for gate in answer.gates if not gate.passed]},
        )

    async def time(self, text: str, stage: Stage, incumbent_ms: float | None = None) -> Timing:
        build = await self.build(text)
        return await self._ask(
            f"time/{stage}/{_digest(text)}",
            f"time {stage}",
            "time",
            Timing,
            lambda: self.workbench.time(text, build, stage, incumbent_ms=incumbent_ms),
            lambda answer: {
                "speedup": answer.speedup,
                "pairs": answer.pairs,
                "busy_s": answer.seconds,
                "problem": answer.problem,
            },
        )

    async def profile(self, text: str, stage: Stage, lowered: Lowered | None) -> Profiled:
        build, timing = await self.build(text), await self.time(text, stage)

        async def ask() -> Profiled:
            return Profiled(*await self.workbench.profile(text, build, timing, lowered))

        return await self._ask(
            f"profile/{_digest(text)}",
            "profile",
            "profile",
            Profiled,
            ask,
            lambda answer: {"rung": answer.profile.rung, "fraction_of_floor": answer.profile.fraction_of_floor},
        )

    async def evaluation(self, candidate: Candidate, text: str, stage: Stage, lowered: Lowered | None) -> Evaluation:
        """The candidate's path up to where it fails, from the journal where a node has asked before."""
        build = await self.build(text)
        if not build.ok:
            return Evaluation(candidate, build)
        verdict = await self.verify(text, stage)
        if not verdict.correct:
            return Evaluation(candidate, build, verdict)
        audit = await self.audit(text, stage)
        if not audit.clean:
            return Evaluation(candidate, build, verdict, audit)
        timing = await self.time(text, stage)
        if timing.problem:
            return Evaluation(candidate, build, verdict, audit, timing)
        profiled = await self.profile(text, stage, lowered)
        return Evaluation(candidate, build, verdict, audit, timing, profiled.profile, profiled.coordinates)

    async def _ask(
        self,
        key: str,
        name: str,
        category: ToolCategory,
        shape: type[T],
        produce: Callable[[], Awaitable[T]],
        facts: Callable[[T], dict[str, object] | None],
    ) -> T:
        async def measured() -> T:
            with self._log.span("tool", name, category=category) as span:
                answer = await produce()
                _note_facts(span, facts(answer))
                return answer

        if key not in self._answers:
            self._answers[key] = await self._journal.record(key, "measure", shape, measured)
        found: T = self._answers[key]
        return found


def _note_facts(span: Span, facts: dict[str, object] | None) -> None:
    span.data.update({name: value for name, value in (facts or {}).items() if value is not None})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
