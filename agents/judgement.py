"""What the auditor is shown of a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.ruling import Ruling
from foundry.knowledge.task import Task


@dataclass(frozen=True)
class AuditEvidence:
    """What is known of a candidate when it is judged; `ruling` is the one on the records alone."""

    task: Task
    evaluation: Evaluation
    ruling: Ruling
    text: str  # the candidate's file
    graphs: tuple[OpGraph, ...] = ()  # of the task's cases, none when it could not be captured
