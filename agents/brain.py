"""The one interface behind which experts think: a playbook, or a chat model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from foundry.agents.brief import Brief
from foundry.agents.judgement import AuditEvidence
from foundry.knowledge.candidate import Judgement
from foundry.knowledge.thought import Diagnosis, ExpertName, Proposal

Purpose = Literal["diagnose", "propose", "judge", "answer"]
CallOutcome = Literal["answered", "repaired", "failed", "unreachable", "budget"]
NoticeName = Literal["model", "model unavailable", "model is back", "model refuses"]


@dataclass(frozen=True)
class Call:
    """What one thought cost and how it ended; the trace keeps them. A playbook's thoughts cost nothing and make none.

    `outcome`: answered at once; repaired by the one repair round; failed after it (a counted failed step);
    unreachable (the server gave no answer within the limits); budget (a cap forbade the call). After the last
    three the playbook took the step.
    """

    step: str
    expert: str
    purpose: Purpose
    outcome: CallOutcome
    detail: str  # what went wrong, "" when nothing did
    requests: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float
    seconds: float
    prompt: str
    answer: str


@dataclass(frozen=True)
class Notice:
    """What the trace keeps of a model besides its calls: who it is, that it stopped or began again to answer, what its
    endpoint refuses."""

    name: NoticeName
    text: str
    facts: Mapping[str, float | bool | str] = field(default_factory=dict)


Listener = Callable[[Call | Notice], None]


class NoAnswer(Exception):
    """The model gave no usable answer. `retry_s`: when it may be asked again (0.0: at once), None when a cap forbids
    that."""

    def __init__(self, problem: str, retry_s: float | None) -> None:
        super().__init__(problem)
        self.retry_s = retry_s


class Brain(Protocol):
    """Every method is safe to await from several islands at once, and only `propose` raises for a bad thought."""

    name: str  # "playbook" or the model's name

    async def diagnose(self, brief: Brief) -> Diagnosis:
        """What broke or limits `brief.parent`, with evidence and one recommended action."""
        ...

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | None:
        """The expert's next step; None when it has nothing untried left, so that the caller asks another expert.
        Raises NoAnswer when a model failed to answer and nobody else knows a step: then something may be left."""
        ...

    async def judge(self, evidence: AuditEvidence) -> Judgement:
        """The auditor's opinion of a candidate that the ruling on its records accepts; it may add a doubt."""
        ...

    async def answer(self, question: str, context: str) -> str:
        """A free question of the user, from the recorded trace in `context`; "" when this brain cannot."""
        ...
