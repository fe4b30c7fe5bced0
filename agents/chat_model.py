"""The chat-model brain: the same experts, thinking with an OpenAI-compatible model.

The playbook stays behind it. It classifies measurements (that needs no model), lists the legal moves, and takes every
step that the model fails: after one repair round, an exhausted budget or a server that does not answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pydantic import BaseModel

from foundry.agents.answers import (
    AnswerError,
    DiagnosisAnswer,
    JudgementAnswer,
    ProposalAnswer,
    parse,
    schema_of,
)
from foundry.agents.auditor import AuditEvidence, Judgement
from foundry.agents.brain import Call, CallOutcome, Listener, Purpose
from foundry.agents.brief import Brief
from foundry.agents.chat_client import ChatClient, Limits, Message, Reply, Unreachable
from foundry.agents.chat_proposal import Menu, proposal_of
from foundry.agents.chat_words import diagnose_prompt, judge_prompt, step_prompt
from foundry.agents.expert import experts
from foundry.agents.ledger import BudgetExhausted, Ledger
from foundry.agents.playbook import PlaybookBrain
from foundry.agents.prompt import render, template
from foundry.knowledge.errors import UsageError
from foundry.knowledge.thought import Diagnosis, ExpertName, Proposal

GIVE_UP_AFTER = 3  # calls in a row without any reply: the rest of the run is the playbook's
REPAIR_CHARS = 8000  # of a bad answer that the repair round shows again

Answer = TypeVar("Answer", bound=BaseModel)
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Asked:
    """Who asks what: for the trace."""

    step: str
    expert: str
    purpose: Purpose
    prompt: str


class ChatModelBrain:
    """Implements Brain. `listener` is told of every call, and when a cap forbids them. Raises UsageError without any
    access to a model."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        ledger: Ledger,
        fallback: PlaybookBrain | None = None,
        limits: Limits | None = None,
        seed: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        if not (base_url or any(os.environ.get(name) for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"))):
            raise UsageError(f"no access to the model {model}", "set OPENAI_API_KEY, or name a server with --base-url")
        self.name = model
        self.ledger = ledger
        self.fallback = fallback or PlaybookBrain()
        self.client = ChatClient(model, base_url, ledger=ledger, limits=limits, seed=seed)
        self.listener = listener
        self._silent = 0  # calls in a row without a reply
        self._is_broke = False  # the caps' end has been told
        self._gone = ""  # why the model is not asked any more

    async def diagnose(self, brief: Brief) -> Diagnosis:
        """Limiters are classified from numbers; only failures of files that a model or a user wrote need reading."""
        found = await self.fallback.diagnose(brief)
        if found.failure is None or brief.lowered is not None:
            return found
        asked = _Asked(brief.step, "diagnostician", "diagnose", diagnose_prompt(brief, found))
        answer = await self._ask(asked, DiagnosisAnswer, lambda answer: answer)
        if answer is None:
            return found
        evidence = f"{found.evidence}; {answer.cause}"
        return replace(found, evidence=evidence, action=answer.action, kernel=answer.kernel)

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | None:
        """The model's step; the playbook's when the model has none."""
        diagnosis = brief.diagnosis or await self.fallback.diagnose(brief)
        menu = Menu(brief, diagnosis, experts()[expert], self.fallback.library)
        asked = _Asked(brief.step, expert, "propose", step_prompt(brief, diagnosis, menu.moves))
        proposal = await self._ask(asked, ProposalAnswer, lambda answer: proposal_of(answer, menu, self.name))
        return proposal or await self.fallback.propose(expert, brief)

    async def judge(self, evidence: AuditEvidence) -> Judgement:
        """The model may add a doubt to the playbook's judgement, not take one away."""
        numbers = await self.fallback.judge(evidence)
        if numbers.doubt or any(not gate.passed for gate in evidence.audit.gates):
            return numbers
        candidate = evidence.evaluation.candidate.id
        asked = _Asked(candidate, "auditor", "judge", judge_prompt(evidence, numbers.text))
        answer = await self._ask(asked, JudgementAnswer, _reasoned)
        if answer is None:
            return numbers
        doubt = f"{self.name}: {answer.reason}" if answer.doubt else ""
        return Judgement(f"{numbers.text} {self.name}: {answer.judgement}", doubt)

    async def answer(self, question: str, context: str) -> str:
        """Plain text; "" when the model gives none."""
        prompt = render("question", {"question": question, "context": context})
        asked = _Asked("chat", "diagnostician", "answer", prompt)
        return await self._ask(asked, None, lambda text: text) or ""

    async def _ask(self, asked: _Asked, kind: type[Answer] | None, use: Callable[..., Result]) -> Result | None:
        """The checked answer, after at most one repair round; None when the playbook must take over."""
        if self._gone:
            return None
        system = template(experts()[asked.expert].prompt)
        messages: list[Message] = [("system", system), ("human", asked.prompt)]
        started, replies, problem = time.monotonic(), [], ""
        try:
            for _ in range(2):
                reply = await self.client.ask(messages, schema_of(kind) if kind else None)
                replies.append(reply)
                self._silent, self._is_broke = 0, False
                try:
                    result = use(_read(reply, kind))
                    self._tell(asked, replies, started, "repaired" if problem else "answered", problem)
                    return result
                except AnswerError as error:
                    problem = str(error)
                messages += [("ai", reply.text[:REPAIR_CHARS]), ("human", render("repair", {"problem": problem}))]
            self._fail(asked, replies, started, "failed", problem)
        except BudgetExhausted as error:
            if replies or not self._is_broke:  # once is enough: every later step would say the same
                self._tell(asked, replies, started, "budget", str(error))
            self._is_broke = True
        except Unreachable as error:
            self._lose(error)
            self._fail(asked, replies, started, "unreachable", str(error), requests=error.requests)
        return None

    def _lose(self, error: Unreachable) -> None:
        self._silent += 1
        if error.final or self._silent >= GIVE_UP_AFTER:
            self._gone = str(error)

    def _fail(
        self,
        asked: _Asked,
        replies: Sequence[Reply],
        started: float,
        outcome: CallOutcome,
        problem: str,
        *,
        requests: int = 0,
    ) -> None:
        self.ledger.count_failed_step()
        if self._gone:
            problem += "; the model is not asked again in this run"
        self._tell(asked, replies, started, outcome, problem, requests=requests)

    def _tell(
        self,
        asked: _Asked,
        replies: Sequence[Reply],
        started: float,
        outcome: CallOutcome,
        detail: str,
        *,
        requests: int = 0,
    ) -> None:
        if self.listener is None:
            return
        self.listener(
            Call(
                step=asked.step,
                expert=asked.expert,
                purpose=asked.purpose,
                outcome=outcome,
                detail=detail,
                requests=requests + sum(reply.requests for reply in replies),
                prompt_tokens=sum(reply.usage.prompt_tokens for reply in replies),
                completion_tokens=sum(reply.usage.answer_tokens for reply in replies),
                dollars=sum(reply.dollars for reply in replies),
                seconds=time.monotonic() - started,
                prompt=asked.prompt,
                answer=replies[-1].text if replies else "",
            )
        )


def _read(reply: Reply, kind: type[Answer] | None) -> Answer | str:
    """The reply as what was asked for; raises AnswerError."""
    if kind is None:
        if not reply.text.strip():
            raise AnswerError("the answer is empty")
        return reply.text.strip()
    try:
        return parse(reply.text, kind)
    except AnswerError as error:
        if reply.truncated:
            raise AnswerError(f"it was cut off after {reply.usage.answer_tokens} tokens: be brief ({error})") from error
        raise


def _reasoned(answer: JudgementAnswer) -> JudgementAnswer:
    if answer.doubt and not answer.reason.strip():
        raise AnswerError("a doubt needs its reason")
    return answer
