"""The evidence about a candidate that the auditor gets."""

from __future__ import annotations

from dataclasses import dataclass, field

from foundry.agents.talk import Talk
from foundry.knowledge.candidate import Evaluation
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.ruling import Ruling
from foundry.knowledge.task import Task


@dataclass(frozen=True)
class AuditEvidence:
    """The records of a candidate that is judged; `ruling` is the one on the records alone."""

    task: Task
    evaluation: Evaluation
    ruling: Ruling
    text: str  # the candidate's file
    graphs: tuple[OpGraph, ...] = ()  # one for each case of the task; empty if it could not be captured
    tools: tuple[str, ...] = ()  # those that the auditor may call; only a chat model does
    talk: Talk = field(default_factory=Talk)  # what it has asked and heard about this candidate
