"""Calls of one chat model within caps and a time limit, recorded or replayed.

A request is repeated in other words if the endpoint refuses a parameter. Sending it is langchain's task
(agents/chat/transport.py).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foundry.agents.chat.breaker import Pauses
from foundry.agents.chat.calls import ChatMessage, ModelReply, RawCall, bytes_of, declarations, rendered
from foundry.agents.chat.dialect import EndpointDialect, Refusal, adapt
from foundry.agents.chat.endpoint import Endpoint
from foundry.agents.chat.options import ChatOptions
from foundry.agents.chat.tape import Tape, TapedAnswer
from foundry.agents.chat.transport import CallFailed, Exchange, Heard, Transport, load_client
from foundry.agents.ledger import BudgetExhausted, ModelCost, ModelLedger, Reservation, TokenUsage
from foundry.agents.prices import Price, price_of

BYTES_PER_TOKEN = 4  # guess if an endpoint does not count; a true count needs tables from the network
MOST_TOKENS_PER_BYTE = 0.5  # most tokens per byte of prose or code; reserved until an endpoint has counted
MARGIN = 1.1  # factor on the most tokens per byte that it has counted
MARKS_BYTES = 32  # bytes that an endpoint puts around one message
LEAST_CALL_S = 120.0  # seconds for a call made when the run's time is over: the auditor's opinion
FIRST_WAIT_S = 0.5  # seconds before a garbled answer's request is repeated; then twice as long each time
NO_ACCESS = (401, 403, 404)  # HTTP's words for a wrong key, model or address


class Unreachable(Exception):
    """No usable reply within the limits.

    `hopeless`: asking again soon is pointless (no access, no such model). `lost`: the cost that a request may have had
    that was given up.
    """

    def __init__(self, problem: str, requests: int, *, hopeless: bool = False, lost: ModelCost | None = None) -> None:
        """Keeps the number of requests made, and the cost that they may have had."""
        super().__init__(problem)
        self.requests = requests
        self.lost = lost or ModelCost()
        self.hopeless = hopeless


class Skipped(Exception):
    """A recording knows that this request was not made: the endpoint was left alone."""


@dataclass(frozen=True)
class Patience:
    """Limits: how often to try one call, and when to leave a silent endpoint alone."""

    attempts: int = 4
    pauses: Pauses = field(default_factory=Pauses)


@dataclass(frozen=True)
class _Asked:
    """One request: its messages, and how it may be answered: by tool calls, or in the form of a schema.

    Not by both, because servers that constrain an answer let it call nothing.
    """

    messages: Sequence[ChatMessage]
    schema: Mapping[str, Any] | None
    tools: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages and of the declarations of the tools."""
        return sum(map(bytes_of, self.messages)) + sum(len(str(tool)) for tool in declarations(self.tools))

    @property
    def form_bytes(self) -> int:
        """Bytes that an endpoint may add to the messages: their marks and the form of the answer."""
        return MARKS_BYTES * len(self.messages) + (len(json.dumps(self.schema)) if self.schema is not None else 0)

    @property
    def optional(self) -> set[str]:
        """The parameters of this request that it can do without."""
        return {"tools"} if self.tools else {"response_format"} if self.schema is not None else set()


def _ignore_refusal(_words: str, _problem: str) -> None:
    """The default listener: ignores what the endpoint refuses."""


class ChatClient:
    """Requests to one model at one endpoint; several islands may use it at once.

    If the endpoint refuses a parameter, `learnt(the words for what is done instead, the refusal)` is called.
    """

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        ledger: ModelLedger,
        options: ChatOptions | None = None,
        limits: Patience | None = None,
        seed: int | None = None,
        tape: Tape | None = None,
        learnt: Callable[[str, str], None] = _ignore_refusal,
    ) -> None:
        """Looks up the price and guesses which parameters the endpoint takes; sends nothing."""
        self.model = model
        self.endpoint = endpoint
        self.options = options or ChatOptions()
        self.limits = limits or Patience()
        self.price: Price = price_of(model, self.options.price)
        self.ledger = ledger
        self.seed = seed
        self.tape = tape
        self._learnt = learnt
        self._transport = Transport(model, endpoint, self.options, self.limits.attempts - 1)
        self._dialect = EndpointDialect.of(is_openai=endpoint.is_openai, is_provider=bool(endpoint.provider))
        self._most_per_byte: float | None = None  # tokens of a prompt, as the endpoint has counted
        self._slots = asyncio.Semaphore(self.options.parallel)

    async def ask(
        self, messages: Sequence[ChatMessage], schema: Mapping[str, Any] | None, tools: tuple[str, ...] = ()
    ) -> ModelReply:
        """One reply of the model, or of a recording. With `tools`, by name, it may call them; else it is held to
        `schema`, if any.

        Records the answer or failure if there is a tape. Raises BudgetExhausted before a request that a cap forbids,
        Unreachable after the last attempt. Raises NotRecorded if only a recording answers and does not hold the
        request.
        """
        asked = _Asked(messages, schema, tools)
        if self.tape is None:
            return await self._ask(asked)
        words = self._as_recorded(asked)
        taped = self.tape.recall(words)
        if taped is not None:
            return self._replay_answer(taped)
        try:
            reply = await self._ask(asked)
        except Unreachable as error:
            self.tape.keep(words, TapedAnswer(failure=str(error), hopeless=error.hopeless), self.endpoint.key)
            raise
        except BudgetExhausted as error:
            self.tape.keep(words, TapedAnswer(budget=str(error)), self.endpoint.key)
            raise
        self.tape.keep(words, _to_taped(reply), self.endpoint.key)
        return reply

    @property
    def plays(self) -> bool:
        """True if a recording answers, which also knows which requests were not made."""
        return self.tape is not None and self.tape.options.replay is not None

    def note_skipped(
        self, messages: Sequence[ChatMessage], schema: Mapping[str, Any] | None, tools: tuple[str, ...]
    ) -> None:
        """Records a request that is not made because the endpoint is left alone for a while."""
        if self.tape is not None:
            words = self._as_recorded(_Asked(messages, schema, tools))
            self.tape.keep(words, TapedAnswer(skipped=True), self.endpoint.key)

    def _as_recorded(self, asked: _Asked) -> dict[str, Any]:
        """The request as a recording holds it: model, messages in words, schema, tools and parameters."""
        return {
            "model": self.model,
            "messages": rendered(asked.messages, self.options.tool_calls, native=False),
            "schema": asked.schema,
            "tools": list(asked.tools),
            **self._wanted(),
        }

    def _replay_answer(self, taped: TapedAnswer) -> ModelReply:
        """The recorded answer as a reply, its tokens counted but not capped; or raises what was raised when it was
        recorded."""
        if taped.budget:
            raise BudgetExhausted(taped.budget)
        if taped.skipped:
            raise Skipped("it was left alone then")
        if taped.failure:
            raise Unreachable(taped.failure, 1, hopeless=taped.hopeless)
        usage = TokenUsage(*taped.usage)
        dollars = self.ledger.count(usage, self.price)
        calls = tuple(RawCall(*call) for call in taped.calls)
        return ModelReply(taped.text, usage, dollars, taped.truncated, requests=1, calls=calls)

    async def _ask(self, asked: _Asked) -> ModelReply:
        """The endpoint's reply. Reserves the most that it may cost, once for all tries, and settles what it cost
        afterwards.

        A failed try costs nothing, unless it ended by the clock or by the size of the answer: then the reserved cost
        counts. Raises BudgetExhausted or Unreachable.
        """
        async with self._slots:
            load_client()
            limit_s = min(self.options.request_s, max(LEAST_CALL_S, self.ledger.left_s()))
            held = self.ledger.reserve(self._most_tokens(asked), self.options.answer_tokens, self.price)
            most = TokenUsage(held.prompt_tokens, held.answer_tokens, estimated=True)
            exchange, spent = Exchange(), None
            try:
                async with asyncio.timeout(limit_s):
                    heard = await self._ask_in_its_dialect(asked, held.answer_tokens, exchange)
                spent = used = self._tokens_used(asked, heard)
            except TimeoutError as error:
                problem = self._timeout_words(limit_s)
                if exchange.refused:  # the time ended in the wait before the next try
                    raise Unreachable(f"{problem}: HTTP {exchange.refused}", exchange.requests) from error
                spent = most  # the server was generating: count what it may bill
                raise Unreachable(problem, exchange.requests, lost=_cost_of(held)) from error
            except CallFailed as error:
                spent = most if exchange.is_endless else None
                raise self._unreachable(error, exchange, held) from error
            finally:
                dollars = self.ledger.settle(held, spent)
        return ModelReply(heard.text, used, dollars, heard.truncated, requests=exchange.requests, calls=heard.calls)

    async def _ask_in_its_dialect(self, asked: _Asked, answer_tokens: int, exchange: Exchange) -> Heard:
        """The reply; asks again in other words as long as the endpoint refuses a parameter. Raises CallFailed.

        Waits and asks again, too, if the body was no chat completion: routers say so that a model behind them is busy.
        """
        garbled = 0
        while True:
            dialect = self._dialect
            takes_tools = bool(asked.tools) and "tools" not in dialect.without
            takes_schema = not asked.tools and "response_format" not in dialect.without
            try:
                return await self._transport.ask(
                    rendered(asked.messages, self.options.tool_calls, native=takes_tools),
                    asked.tools if takes_tools else (),
                    asked.schema if takes_schema else None,
                    dialect.body(answer_tokens, self._wanted()),
                    exchange,
                )
            except CallFailed as error:
                if self._adapts_to(error, dialect, asked.optional):
                    continue
                garbled += 1
                if not error.is_garbled or exchange.is_endless or garbled >= self.limits.attempts:
                    raise
                await asyncio.sleep(FIRST_WAIT_S * 2.0 ** (garbled - 1))

    def _tokens_used(self, asked: _Asked, heard: Heard) -> TokenUsage:
        """Tokens of prompt and reply; guessed from bytes if the endpoint does not count them, else used for later
        reservations."""
        if (told := heard.usage) is not None:
            self._most_per_byte = max(self._most_per_byte or 0.0, told.prompt_tokens / max(1, asked.size_bytes))
            return told
        said = len(heard.text) + sum(len(call.arguments) for call in heard.calls)
        return TokenUsage(asked.size_bytes // BYTES_PER_TOKEN + 1, said // BYTES_PER_TOKEN + 1, estimated=True)

    def _timeout_words(self, limit_s: float) -> str:
        """The reason of a time-out in words: the run's end, or --request-seconds."""
        if limit_s < self.options.request_s:
            return f"no answer within {limit_s:.0f} s, and the run's time is over"
        return f"no answer within {limit_s:.0f} s (--request-seconds)"

    def _unreachable(self, error: CallFailed, exchange: Exchange, held: Reservation) -> Unreachable:
        """The failure in words as an Unreachable, with the reserved cost if the answer did not end."""
        if exchange.is_endless:
            return Unreachable("the answer did not end", exchange.requests, lost=_cost_of(held))
        problem = str(error)
        if self.endpoint.key is None and error.status == 401:
            problem = f"{self.endpoint.host} wants a key and none was given for it (--api-key-env NAME): {problem}"
        return Unreachable(problem, exchange.requests, hopeless=error.status in NO_ACCESS)

    def _most_tokens(self, asked: _Asked) -> int:
        """The most tokens that the endpoint may count for a prompt, reserved before it is sent so that caps hold."""
        if self._most_per_byte is None:
            return int((asked.size_bytes + asked.form_bytes) * MOST_TOKENS_PER_BYTE) + 1
        return int(asked.size_bytes * self._most_per_byte * MARGIN) + asked.form_bytes

    def _wanted(self) -> dict[str, Any]:
        """The optional parameters by name; None where the endpoint decides."""
        return {
            "seed": self.seed,
            "temperature": self.options.temperature,
            "reasoning_effort": self.options.reasoning_effort,
        }

    def _adapts_to(self, error: CallFailed, dialect: EndpointDialect, optional: set[str]) -> bool:
        """True if the endpoint refused a parameter that can be renamed or left out; changes the dialect, so the request
        is repeated."""
        if error.status is None:
            return False
        refusal = Refusal(error.status, error.parameter, str(error))
        offered = {name for name, value in self._wanted().items() if value is not None}
        found = adapt(dialect, refusal, offered | optional)
        if found is None:
            return False
        if self._dialect == dialect:  # else another call has learnt something since: try that first
            self._dialect, words = found
            self._learnt(words, refusal.text)
        return True


def _cost_of(held: Reservation) -> ModelCost:
    """The whole reservation as the cost of one call."""
    return ModelCost(1, held.prompt_tokens, held.answer_tokens, held.dollars)


def _to_taped(reply: ModelReply) -> TapedAnswer:
    """The reply as a tape holds it."""
    usage = reply.usage
    return TapedAnswer(
        text=reply.text,
        calls=[(call.id, call.name, call.arguments) for call in reply.calls],
        truncated=reply.truncated,
        usage=(usage.prompt_tokens, usage.answer_tokens, usage.cached_tokens, usage.estimated),
    )
