"""The one interface behind which experts think: a playbook, or a chat model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from foundry.agents.brief import Brief
from foundry.agents.judgement import AuditEvidence
from foundry.agents.talk import ToolRequest
from foundry.knowledge.candidate import Judgement
from foundry.knowledge.thought import Diagnosis, ExpertName, Proposal

Purpose = Literal["propose", "judge", "answer", "rewrite"]
CallOutcome = Literal["answered", "repaired", "failed", "unreachable", "budget"]
NoticeName = Literal["model", "model unavailable", "model is back", "model refuses"]


@dataclass(frozen=True)
class Call:
    """The cost and the outcome of one call of a chat model, as the trace keeps them. The playbook makes no calls.

    `outcome`: answered at once; repaired by the one repair round; failed after it (a counted failed step);
    unreachable (the server gave no answer within the limits); budget (a cap forbade the call). After the last
    three the playbook took the step.
    """

    model: str
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
    sections: Mapping[str, int] = field(default_factory=dict)  # section of the prompt -> its tokens, roughly
    standing: int = 0  # tokens at its begin that are the same at every step of a run
    cut: Mapping[str, int] = field(default_factory=dict)  # characters that did not fit, by section
    system: str = ""  # the system prompt
    bad_answer: str = ""  # the first answer, where it could not be used, and what was said to it
    repair: str = ""
    variant: str = ""  # id of the prompt's variant; "" for the shipped prompt


@dataclass(frozen=True)
class Notice:
    """An event about a model that is not a call: who it is, that it stopped or started to answer, what its endpoint
    refuses."""

    name: NoticeName
    text: str
    facts: Mapping[str, float | bool | str] = field(default_factory=dict)


Listener = Callable[[Call | Notice], None]


class NoAnswer(Exception):
    """The model gave no usable answer. `retry_s`: seconds until it may be asked again; None if a cap forbids that."""

    def __init__(self, problem: str, retry_s: float | None) -> None:
        """`retry_s`: seconds after which another attempt may help; None if never."""
        super().__init__(problem)
        self.retry_s = retry_s


class Brain(Protocol):
    """The interface of the playbook and of chat models, through which experts diagnose, propose and judge.

    Every method may be awaited from several islands at once; only `propose` raises if the answer is unusable.
    """

    name: str  # "playbook" or the model's name

    async def diagnose(self, brief: Brief) -> Diagnosis:
        """The failure or the limiter of `brief.parent`, with evidence and one recommended action."""
        ...

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | ToolRequest | None:
        """The expert's next step, or None if it has nothing left to try; the caller then asks another expert. A request
        comes first where a model wants to call some of `brief.tools`: the caller asks again, with the answers in
        `brief.talk`. Raises NoAnswer if a model gave no answer and the playbook knows no step: the model may have one
        another time."""
        ...

    async def judge(self, evidence: AuditEvidence) -> Judgement | ToolRequest:
        """The auditor's opinion of a candidate whose records are all accepted; it may add a doubt, which vetoes it. A
        request comes first where a model wants to call some of `evidence.tools`."""
        ...

    async def answer(self, question: str, context: str) -> str:
        """A free question of the user, from the recorded trace in `context`; "" when this brain cannot."""
        ...
