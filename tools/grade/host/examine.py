"""The one path of a candidate: build -> verify -> audit -> time -> profile -> judge. Free of torch.

`foundry verify` and the search's nodes walk it; each asks the machine in its own way, through one hook.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, Protocol, TypeVar

from foundry.knowledge.candidate import (
    Audit,
    Baseline,
    Build,
    Candidate,
    Evaluation,
    Judgement,
    Profile,
    Stage,
    Timing,
    Verdict,
)
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.ruling import objection
from foundry.knowledge.task import Policy
from foundry.tools.grade.host.workbench import Workbench

Step = Literal["build", "baseline", "verify", "audit", "time", "profile"]
Judge = Callable[[Evaluation], Awaitable[Judgement]]
Record = TypeVar("Record")


class Ask(Protocol):
    """Gets one record of the path: measured now, or from a journal that has it already."""

    async def __call__(self, step: Step, shape: type[Record], work: Callable[[Workbench], Awaitable[Record]]) -> Record:
        """The record of this step, of type `shape`: one that is known already, or the result of `work`."""
        ...


async def examine(
    candidate: Candidate,
    text: str,
    stage: Stage,
    policy: Policy,
    ask: Ask,
    *,
    upto: Step = "profile",
    lowered: Lowered | None = None,
    incumbent_ms: float | None = None,
    judge: Judge | None = None,
) -> Evaluation:
    """Walks the path and returns all records. It ends at the first record that speaks against the candidate, after step
    `upto`, or at its end. `judge` comes last, and only if nothing speaks against the candidate. Raises TaskError.

    For a task that proves nothing (Baseline.degenerate) the candidate is only built.
    """
    build = await ask("build", Build, lambda bench: bench.build(text))
    known = Evaluation(candidate, build)
    if upto == "build" or objection(known):
        return known
    baseline = await ask("baseline", Baseline, lambda bench: bench.baseline())
    if upto == "baseline" or baseline.degenerate:
        return known
    verdict = await ask("verify", Verdict, lambda bench: bench.verify(text, build, stage))
    known = Evaluation(candidate, build, verdict)
    if upto == "verify" or objection(known):
        return known
    audit = await ask("audit", Audit, lambda bench: bench.audit(text, build, verdict, policy))
    known = Evaluation(candidate, build, verdict, audit)
    if upto == "audit" or objection(known):
        return known
    timing = await ask("time", Timing, lambda bench: bench.time(text, build, stage, incumbent_ms=incumbent_ms))
    known = Evaluation(candidate, build, verdict, audit, timing)
    if upto == "time" or timing.problem:
        return known
    profile = await ask("profile", Profile, lambda bench: bench.profile(text, build, audit, timing, lowered))
    known = replace(known, profile=profile)
    if judge is None or objection(known):
        return known
    return replace(known, judgement=await judge(known))
