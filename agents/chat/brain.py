"""The chat-model brain: the same experts, thinking with an OpenAI-compatible model.

The playbook stays behind it. It classifies measurements (that needs no model), lists the legal moves, and takes every
step that the model fails: after one repair round, an exhausted budget or a server that does not answer. A server that
stays silent is left alone for a while and then tried again; no outage lasts for the rest of the run.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from foundry.agents.brain import Call, CallOutcome, Listener, NoAnswer, Notice, NoticeName, Purpose
from foundry.agents.brief import Brief
from foundry.agents.chat.answers import AnswerError, JudgementAnswer, ProposalAnswer, parse, schema_of
from foundry.agents.chat.breaker import Breaker, Pauses, Permit
from foundry.agents.chat.calls import ChatMessage, Drafting, ModelReply, read_request, said_since, tools_words
from foundry.agents.chat.client import ChatClient, Patience, Skipped, Unreachable
from foundry.agents.chat.endpoint import OPENAI_URL, Endpoint, endpoint_of
from foundry.agents.chat.options import ChatOptions
from foundry.agents.chat.proposal import Drafted, Menu, drafted, file_of, proposal_of
from foundry.agents.chat.tape import Tape
from foundry.agents.expert import experts
from foundry.agents.judgement import AuditEvidence
from foundry.agents.ledger import BudgetExhausted, ModelCost, ModelLedger
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.agents.prices import in_words
from foundry.agents.prompt import PromptText, render, template, with_sections
from foundry.agents.prompt_text.messages import judge_prompt, seen_by_auditor, step_prompt
from foundry.agents.prompt_text.sections import Prompt, tokens
from foundry.agents.talk import Talk, ToolRequest
from foundry.agents.tuning import tuning_step
from foundry.knowledge.candidate import Judgement
from foundry.knowledge.thought import Diagnosis, ExpertName, Proposal

LEAST_QUOTE = 8  # characters that a doubt quotes: fewer stand in any file
REPAIR_CHARS = 40_000  # characters of a bad answer that the repair round shows again: a kernel in full
_AGAIN = "Answer again with one JSON object and nothing else, with the same fields, this problem solved."
_AGAIN_WITH_CODE = (
    'Answer again in full, as "Your answer" says: the JSON head, then the code in its fence, this problem solved.'
)

AnswerT = TypeVar("AnswerT", bound=BaseModel)
ResultT = TypeVar("ResultT")


@dataclass
class _Heard:
    """The model's replies to one request, and what was said to a first reply that could not be used."""

    replies: list[ModelReply] = field(default_factory=list)
    repair: str = ""


@dataclass(frozen=True)
class _Request:
    """A request: the asking expert and step, and its prompt. `tools`: those that it may call at all; `talk`: earlier
    calls."""

    step: str
    expert: str
    purpose: Purpose
    prompt: Prompt
    tools: tuple[str, ...] = ()
    talk: Talk = field(default_factory=Talk)
    text: PromptText = field(default_factory=PromptText)  # variant of the expert's prompt


class ChatModelBrain:
    """Implements Brain with a chat model.

    `listener` is told of every call, of outages, and when a cap forbids calls. Raises UsageError without any access to
    a model.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        name: str = "",
        provider: str | None = None,
        ledger: ModelLedger,
        fallback: PlaybookBrain | None = None,
        options: ChatOptions | None = None,
        limits: Patience | None = None,
        seed: int | None = None,
        tape: Tape | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Finds the endpoint and its key and opens a client; asks nothing. Raises UsageError."""
        options, limits = options or ChatOptions(), limits or Patience()
        self.name = name or model  # what the user calls it
        self.ledger = ledger
        self.fallback = fallback or PlaybookBrain()
        asks = tape is None or tape.options.asks
        endpoint = Endpoint(base_url or OPENAI_URL, None, provider or "")  # a recording answers: no model is asked
        if asks:
            endpoint = endpoint_of(model, base_url, options.key_env, provider)
        self.client = ChatClient(
            model,
            endpoint,
            ledger=ledger,
            options=options,
            limits=limits,
            seed=seed,
            tape=tape,
            learnt=self._report_refusal,
        )
        self.listener = listener
        self.breaker = Breaker(limits.pauses)
        self._is_broke = False  # the caps' end has been told

    @property
    def introduction(self) -> Notice:
        """A notice that names the model, its endpoint's host and its price."""
        price, host = self.client.price, self.client.endpoint.host
        who = self.name if self.name == self.client.model else f"{self.name} ({self.client.model})"
        text = f"{who} at {host}, {in_words(price)}"
        return Notice("model", text, {"model": self.name, "endpoint": host, "priced": price.known})

    async def diagnose(self, brief: Brief) -> Diagnosis:
        """The playbook's diagnosis, from numbers; no model is asked.

        A failure is read by the diagnostician that repairs it, in the same request: a question about the cause before
        would pay for the same evidence twice.
        """
        return await self.fallback.diagnose(brief)

    async def propose(self, expert: ExpertName, brief: Brief) -> Proposal | ToolRequest | None:
        """The model's proposal or tool calls; the playbook's proposal if the model gives none.

        If only numbers are to be tuned, it proposes the tuner without asking. Raises NoAnswer if the playbook has none
        either, or if the search's time is over: the parent is not exhausted, the model may have a step another time.
        """
        diagnosis = brief.diagnosis or await self.fallback.diagnose(brief)
        if diagnosis.failure is None and not brief.talk.turns and (sweep := tuning_step(expert, brief)):
            return sweep  # numbers are the tuner's: no model is asked for them
        menu = Menu(brief, diagnosis, experts()[expert], self.fallback.library)
        request = _Request(
            brief.step,
            expert,
            "propose",
            step_prompt(brief, diagnosis, menu.moves),
            tools=brief.tools if self.client.options.tool_calls else (),
            talk=brief.talk,
            text=brief.prompt,
        )

        def read(reply: ModelReply, may_call: bool) -> Proposal | ToolRequest:
            """The tool calls or the proposal in a reply; raises AnswerError."""
            called = self._called(reply, may_call, request, partial(drafted, menu=menu))
            return called or proposal_of(_parsed(reply, ProposalAnswer), menu, self.name)

        try:
            return await self._ask(request, ProposalAnswer, read)
        except NoAnswer as lack:
            if math.isfinite(self.ledger.left_s()):
                raise  # the search's time is over: the playbook's step would be evaluated, or swept, after the end
            step = await self.fallback.propose(expert, brief)
            if step is None and lack.retry_s is not None:
                raise
            return step

    async def judge(self, evidence: AuditEvidence) -> Judgement | ToolRequest:
        """The model's judgement of a candidate that the records accept, or its tool calls; the playbook's if it gives
        none.

        It may add a doubt, which must be proven by a quote; it cannot take one away.
        """
        if not evidence.ruling.accepted:
            return Judgement()
        name, tools = evidence.evaluation.candidate.id, evidence.tools if self.client.options.tool_calls else ()
        request = _Request(name, "auditor", "judge", Prompt(judge_prompt(evidence)), tools=tools, talk=evidence.talk)

        def read(reply: ModelReply, may_call: bool) -> JudgementAnswer | ToolRequest:
            """The tool calls or the judgement in a reply; raises AnswerError."""
            file = partial(_file_beside, text=evidence.text)
            called = self._called(reply, may_call, request, file)
            return called or _require_evidence(_parsed(reply, JudgementAnswer), evidence)

        try:
            answer = await self._ask(request, JudgementAnswer, read)
        except NoAnswer:
            return await self.fallback.judge(evidence)
        if isinstance(answer, ToolRequest):
            return answer
        doubt = f"{self.name}: {answer.reason}" if answer.doubt else ""
        return Judgement(f"{self.name}: {answer.judgement}", doubt)

    async def answer(self, question: str, context: str) -> str:
        """The model's answer in plain text to a user's question, given `context`; "" if it gives none."""
        prompt = render("question", {"question": question, "context": context})
        request = _Request("chat", "diagnostician", "answer", Prompt(prompt))
        try:
            return await self._ask(request, None, lambda reply, _: _plain_text(reply))
        except NoAnswer:
            return ""

    async def fill(
        self, expert: ExpertName, prompt: Prompt, form: type[AnswerT], refuse: Callable[[AnswerT], str]
    ) -> AnswerT | None:
        """A form that the model fills in as the editor of an expert's prompt; None if it gives none that is accepted.

        `refuse` returns the reason why an answer cannot be used, "" if it can.
        """

        def read(reply: ModelReply, _: bool) -> AnswerT:
            """The form in a reply; raises AnswerError if it cannot be read or `refuse` objects."""
            found = _parsed(reply, form)
            if problem := refuse(found):
                raise AnswerError(problem)
            return found

        try:
            return await self._ask(_Request("prompts", expert, "rewrite", prompt), form, read)
        except NoAnswer:
            return None

    def _called(self, reply: ModelReply, may_call: bool, request: _Request, draft: Drafting) -> ToolRequest | None:
        """The tool calls of a reply, or None. Raises AnswerError if it makes some and may not."""
        left = self.client.options.tool_calls - len(request.talk.calls)
        called = read_request(reply, request.tools, left, draft) if request.tools else None
        if called is not None and not may_call:
            raise AnswerError("it calls a tool, and no call is left")
        return called

    async def _ask(
        self, request: _Request, kind: type[BaseModel] | None, read: Callable[[ModelReply, bool], ResultT]
    ) -> ResultT:
        """The result of `read` for the model's reply, after at most one repair round. Raises NoAnswer.

        Reports the call and its outcome to the listener, and keeps the breaker, which leaves a silent endpoint alone,
        up to date.
        """
        permit = "call" if self.client.plays else self.breaker.permit()
        if permit is None:
            messages, offered = self._first_messages(request)
            self.client.note_skipped(messages, _form_of(kind), offered)
            raise NoAnswer(f"{self.name} is unavailable", self.breaker.retry_s)
        started = time.monotonic()
        heard = _Heard()
        try:
            return await self._ask_and_check(request, kind, read, heard)
        except BudgetExhausted as error:
            self.breaker.note_abandoned(permit)
            if heard.replies or not self._is_broke:  # once is enough: every later step would say the same
                self._report_call(request, heard, started, "budget", str(error))
            self._is_broke = True
            raise NoAnswer(str(error), None) from error
        except Skipped as error:
            raise NoAnswer(f"{self.name} is unavailable", Pauses().first_s) from error
        except Unreachable as error:
            self.ledger.count_failed_step()
            self._report_call(
                request, heard, started, "unreachable", str(error), requests=error.requests, lost=error.lost
            )
            self._report_outage(error, permit)
            raise NoAnswer(str(error), self.breaker.retry_s) from error
        except asyncio.CancelledError:
            self.breaker.note_abandoned(permit)
            raise

    async def _ask_and_check(
        self,
        request: _Request,
        kind: type[BaseModel] | None,
        read: Callable[[ModelReply, bool], ResultT],
        heard: _Heard,
    ) -> ResultT:
        """Asks; if `read` refuses the reply, asks once more with what was wrong. Every reply joins `heard`.

        The second reply must be an answer: no tools are offered then. Raises NoAnswer if it cannot be used either.
        """
        messages, offered = self._first_messages(request)
        schema = _form_of(kind)
        started, problem = time.monotonic(), ""
        for _ in range(2):
            reply = await self.client.ask(messages, schema, offered)
            heard.replies.append(reply)
            self._is_broke = False
            self._report_return()
            try:
                result = read(reply, bool(offered))
                told = f"calls {', '.join(_names(result))}" if isinstance(result, ToolRequest) else problem
                self._report_call(request, heard, started, "repaired" if problem else "answered", told)
                return result
            except AnswerError as error:
                problem = str(error)
            form = _AGAIN if schema is not None else _AGAIN_WITH_CODE
            heard.repair = heard.repair or render("repair", {"problem": problem, "form": form})
            messages += [("ai", reply.text[:REPAIR_CHARS]), ("human", heard.repair)]
            offered = ()
        self.ledger.count_failed_step()
        self._report_call(request, heard, started, "failed", problem)
        raise NoAnswer(problem, 0.0)

    def _first_messages(self, request: _Request) -> tuple[list[ChatMessage], tuple[str, ...]]:
        """The messages of a request and the tools that may still be called. Demands the answer once calls or tokens are
        used up."""
        options, talk = self.client.options, request.talk
        messages: list[ChatMessage] = [("system", self._system(request)), ("human", request.prompt.text), *talk.turns]
        last = talk.turns[-1].request.tokens if talk.turns else 0
        if len(talk.calls) >= options.tool_calls:
            reason = f"{options.tool_calls} were made"
        elif talk.tokens + last > options.tool_tokens:  # each turn costs more than the one before
            reason = f"{talk.tokens} of {options.tool_tokens} tokens are spent"
        else:
            return messages, request.tools
        if request.tools:
            messages.append(("human", render("demand", {"reason": reason})))
        return messages, ()

    def _system(self, request: _Request) -> str:
        """The system message: the editor's for a rewrite, else the expert's with its tools."""
        if request.purpose == "rewrite":
            return template("editor")
        options, proposes = self.client.options, request.purpose == "propose"
        return system_words(request.expert, request.tools, options, proposes=proposes, text=request.text)

    def _report_outage(self, error: Unreachable, permit: Permit) -> None:
        """Counts a failure; when a pause begins, tells the listener how long the model has been silent and when it is
        next tried."""
        if not self.breaker.note_failure(permit, hopeless=error.hopeless):
            return
        lasted_s, retry_s = self.breaker.lasted_s, self.breaker.retry_s
        text = f"{self.name} has not answered for {lasted_s:.0f} s; the next try is in {retry_s:.0f} s: {error}"
        self._notice("model unavailable", text, {"since": time.time() - lasted_s, "retry_s": retry_s})

    def _report_return(self) -> None:
        """Counts an answer; tells the listener that the model is back, if it was away."""
        lasted_s, skipped = self.breaker.lasted_s, self.breaker.skipped
        if self.breaker.note_answer():
            text = f"{self.name} answers again after {lasted_s:.0f} s; {skipped} calls were not made meanwhile"
            self._notice("model is back", text, {"lasted_s": lasted_s, "skipped": skipped})

    def _report_refusal(self, words: str, refusal: str) -> None:
        """Sends the listener a notice that the model refuses, with its words and the reason."""
        self._notice("model refuses", f"{words}: {refusal}", {})

    def _notice(self, name: NoticeName, text: str, facts: Mapping[str, float | bool | str]) -> None:
        """Passes a notice to the listener, if there is one."""
        if self.listener is not None:
            self.listener(Notice(name, text, facts))

    def _report_call(
        self,
        request: _Request,
        heard: _Heard,
        started: float,
        outcome: CallOutcome,
        detail: str,
        *,
        requests: int = 0,
        lost: ModelCost | None = None,
    ) -> None:
        """Tells the listener of one call: its texts, tokens, dollars, seconds and outcome."""
        if self.listener is None:
            return
        replies = heard.replies
        lost = lost or ModelCost()
        self.listener(
            Call(
                model=self.name,
                step=request.step,
                expert=request.expert,
                purpose=request.purpose,
                outcome=outcome,
                detail=detail,
                requests=requests + sum(reply.requests for reply in replies),
                prompt_tokens=lost.prompt_tokens + sum(reply.usage.prompt_tokens for reply in replies),
                completion_tokens=lost.answer_tokens + sum(reply.usage.answer_tokens for reply in replies),
                dollars=lost.dollars + sum(reply.dollars for reply in replies),
                seconds=time.monotonic() - started,
                prompt=said_since(request.talk, self.client.options.tool_calls) or request.prompt.text,
                sections=request.prompt.sizes,
                standing=tokens(request.prompt.standing),
                cut=request.prompt.cut,
                answer=_reply_text(replies[-1]) if replies else "",
                system=self._system(request),
                bad_answer=_reply_text(replies[0]) if len(replies) > 1 else "",
                repair=heard.repair if len(replies) > 1 else "",
                variant=request.text.variant,
            )
        )


def _form_of(kind: type[BaseModel] | None) -> dict[str, Any] | None:
    """The JSON schema that an answer is held to; None for text, and for proposals.

    Code in a JSON string costs a model a third more tokens and many mistakes, so proposals are held to none.
    """
    return schema_of(kind) if kind and kind is not ProposalAnswer else None


def system_words(
    expert: ExpertName,
    tools: Sequence[str],
    options: ChatOptions,
    *,
    proposes: bool,
    text: PromptText | None = None,
) -> str:
    """The system message of an expert: its prompt, as shipped or a variant of it, and the tools that it may call."""
    system = with_sections(experts()[expert].prompt, text or PromptText())
    if tools and options.tool_calls:
        system += "\n\n" + tools_words(tools, options.tool_calls, proposes=proposes)
    return system


def _file_beside(answer: ProposalAnswer, text: str) -> Drafted:
    """The whole file that an auditor's tool call means, made from the candidate's `text`."""
    return Drafted(file_of(answer.source, answer.edits, text))


def _names(request: ToolRequest) -> list[str]:
    """Names of the tools that the request calls."""
    return [call.name for call in request.calls]


def _reply_text(reply: ModelReply) -> str:
    """A reply's text and its tool calls, as one text for the trace."""
    return "\n".join([*([reply.text] if reply.text else []), *(f"{it.name} {it.arguments}" for it in reply.calls)])


def _plain_text(reply: ModelReply) -> str:
    """The reply's text; raises AnswerError for none."""
    if not reply.text.strip():
        raise AnswerError("the answer is empty")
    return reply.text.strip()


def _parsed(reply: ModelReply, kind: type[AnswerT]) -> AnswerT:
    """The reply read as `kind`. Raises AnswerError, which says so if the reply was cut off."""
    try:
        return parse(reply.text, kind)
    except AnswerError as error:
        if reply.truncated:
            raise AnswerError(f"it was cut off after {reply.usage.answer_tokens} tokens: be brief ({error})") from error
        raise


def _require_evidence(answer: JudgementAnswer, evidence: AuditEvidence) -> JudgementAnswer:
    """The judgement, unless its doubt lacks a reason or a quote of the evidence: then raises AnswerError.

    A doubt vetoes, and nothing overrides it. A weak model doubts at random.
    """
    if not answer.doubt:
        return answer
    if not answer.reason.strip():
        raise AnswerError("a doubt needs its reason")
    quote = _in_one_line(answer.quote)
    if len(quote) < LEAST_QUOTE or not any(quote in _in_one_line(text) for text in seen_by_auditor(evidence)):
        raise AnswerError(
            "a doubt vetoes, so `quote` must hold what shows it, word for word: a line of the candidate's file, words "
            f"of a gate or of a tool's answer, at least {LEAST_QUOTE} characters"
        )
    return answer


def _in_one_line(text: str) -> str:
    """The text with all white space, line breaks too, as single spaces."""
    return " ".join(text.split())
