"""What the auditor is shown of a candidate, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.knowledge.candidate import Audit, Evaluation
from foundry.knowledge.device import Device
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task


@dataclass(frozen=True)
class AuditEvidence:
    """What is known of a candidate when it is judged. `audit` holds the executable gates' results; `floor_ms` is the
    roofline floor of the graph as rewritten, at the fastest arithmetic that the policy allows; None where there are
    no ceilings."""

    task: Task
    device: Device
    evaluation: Evaluation
    audit: Audit
    text: str  # the candidate's file
    lowered: Lowered | None = None
    floor_ms: float | None = None
    graphs: tuple[OpGraph, ...] = ()  # of the task's cases, none when it could not be captured


@dataclass(frozen=True)
class Judgement:
    """`doubt` is a reason to veto, "" when there is none."""

    text: str
    doubt: str = ""
