"""One request to an OpenAI-compatible server through langchain-openai, repeated within limits of time and tokens.

langchain-openai is imported when the first request is made, so that runs without a model do not pay for it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import ValidationError

from foundry.agents.chat.breaker import Pauses
from foundry.agents.chat.calls import ChatMessage, ModelReply, RawCall, bytes_of, declarations, rendered
from foundry.agents.chat.dialect import EndpointDialect, Refusal, adapt
from foundry.agents.chat.endpoint import Endpoint
from foundry.agents.chat.options import ChatOptions
from foundry.agents.chat.providers import ProviderFailed, ask_provider, open_provider
from foundry.agents.chat.tape import Tape, TapedAnswer
from foundry.agents.ledger import BudgetExhausted, ModelCost, ModelLedger, TokenUsage
from foundry.agents.prices import Price, price_of

BYTES_PER_TOKEN = 4  # where an endpoint does not count; counting properly needs tables from the network
MOST_TOKENS_PER_BYTE = 0.5  # that any tokenizer makes of prose and code; reserved until an endpoint has counted
MARGIN = 1.1  # over the most tokens a byte that it has counted
MARKS_BYTES = 32  # that stand around one message
LONGEST_RETRY_AFTER_S = 60.0
LEAST_REQUEST_S = 120.0  # of a request that is made when the run's time is over: the auditor's opinion
MOST_LISTED_BYTES = 8 << 20  # of an endpoint's list of models
ENDLESS_BYTES = 16  # an answer with more bytes than this for each allowed token does not end by itself


class Unreachable(Exception):
    """No usable reply within the limits. `hopeless`: asking again soon is pointless (no access, no such model). `lost`:
    what requests may have cost that were given up."""

    def __init__(self, problem: str, requests: int, *, hopeless: bool = False) -> None:
        super().__init__(problem)
        self.requests = requests
        self.lost = ModelCost()
        self.hopeless = hopeless


class Skipped(Exception):
    """A recording knows that this request was not made: the endpoint was left alone."""


@dataclass(frozen=True)
class Patience:
    """How often to try, and how long to wait. Seconds."""

    attempts: int = 4
    first_wait_s: float = 1.0
    patience_s: float = 300.0  # all attempts and waits of one call together
    pauses: Pauses = field(default_factory=Pauses)  # of an endpoint that stays silent


@dataclass(frozen=True)
class _Asked:
    """One request: what is said, and how it may be answered: by tool calls, or in the form of a schema, not by both,
    because servers that constrain an answer let it call nothing."""

    messages: Sequence[ChatMessage]
    schema: Mapping[str, Any] | None
    tools: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        return sum(map(bytes_of, self.messages)) + sum(len(str(tool)) for tool in declarations(self.tools))

    @property
    def form_bytes(self) -> int:
        """What an endpoint may add to that: each message's marks, the form of the answer."""
        return MARKS_BYTES * len(self.messages) + (len(json.dumps(self.schema)) if self.schema is not None else 0)

    @property
    def optional(self) -> set[str]:
        """The parameters of this request that it can do without."""
        return {"tools"} if self.tools else {"response_format"} if self.schema is not None else set()


@dataclass(frozen=True)
class _Heard:
    """A reply as the endpoint gave it; `usage` None where it does not tell."""

    text: str
    usage: TokenUsage | None
    truncated: bool
    calls: tuple[RawCall, ...] = ()


class _Overlong(Exception):
    """The body does not end."""


def _unheard(_words: str, _problem: str) -> None:
    """The default listener: ignores what the endpoint refuses."""


class ChatClient:
    """Requests to one model at one endpoint; several islands may use it at once. When the endpoint refuses a parameter,
    `learnt(what is done instead, the refusal)` is called."""

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
        learnt: Callable[[str, str], None] = _unheard,
    ) -> None:
        self.model = model
        self.endpoint = endpoint
        self.options = options or ChatOptions()
        self.limits = limits or Patience()
        self.price: Price = price_of(model, self.options.price)
        self.ledger = ledger
        self.seed = seed
        self.tape = tape
        self._learnt = learnt
        self._dialect = EndpointDialect.of(is_openai=endpoint.is_openai)
        self._most_per_byte: float | None = None  # tokens of a prompt, as the endpoint has counted
        self._slots = asyncio.Semaphore(self.options.parallel)

    async def ask(
        self, messages: Sequence[ChatMessage], schema: Mapping[str, Any] | None, tools: tuple[str, ...] = ()
    ) -> ModelReply:
        """One reply. With `tools`, by name, it may call them; else it is held to `schema`, if there is one. Raises
        BudgetExhausted before a request that a cap forbids, Unreachable after the last attempt, NotRecorded where only
        a recording answers and does not hold it."""
        asked = _Asked(messages, schema, tools)
        if self.tape is None:
            return await self._ask(asked)
        words = self._in_words(asked)
        taped = self.tape.recall(words)
        if taped is not None:
            return self._played(taped)
        try:
            reply = await self._ask(asked)
        except Unreachable as error:
            self.tape.keep(words, TapedAnswer(failure=str(error), hopeless=error.hopeless), self.endpoint.key)
            raise
        except BudgetExhausted as error:
            self.tape.keep(words, TapedAnswer(budget=str(error)), self.endpoint.key)
            raise
        self.tape.keep(words, _taped(reply), self.endpoint.key)
        return reply

    @property
    def plays(self) -> bool:
        """Whether a recording answers, which knows what was left unasked."""
        return self.tape is not None and self.tape.options.replay is not None

    def note_skipped(
        self, messages: Sequence[ChatMessage], schema: Mapping[str, Any] | None, tools: tuple[str, ...]
    ) -> None:
        """Records a request that is not made, because the endpoint is left alone for a while."""
        if self.tape is not None:
            words = self._in_words(_Asked(messages, schema, tools))
            self.tape.keep(words, TapedAnswer(skipped=True), self.endpoint.key)

    def _in_words(self, asked: _Asked) -> dict[str, Any]:
        """The request as a recording knows it."""
        return {
            "model": self.model,
            "messages": rendered(asked.messages, self.options.tool_calls, native=False),
            "schema": asked.schema,
            "tools": list(asked.tools),
            **self._wanted(),
        }

    def _played(self, taped: TapedAnswer) -> ModelReply:
        """A recorded answer. It counts as it did then; where a cap forbade the request then, it is forbidden again, and
        nowhere else: what is played costs nothing."""
        if taped.budget:
            raise BudgetExhausted(taped.budget)
        if taped.skipped:
            raise Skipped("it was left alone then")
        if taped.failure:
            raise Unreachable(taped.failure, 1, hopeless=taped.hopeless)
        usage = TokenUsage(*taped.usage)
        dollars = self.ledger.count(usage, self.price)
        calls = tuple(RawCall(*call) for call in taped.calls)
        return ModelReply(taped.text, usage, dollars, taped.truncated, 1, calls)

    async def _ask(self, asked: _Asked) -> ModelReply:
        """What the endpoint answers, and what attempts may have cost that were given up."""
        lost: list[ModelCost] = []
        try:
            return replace(await self._try(asked, lost), lost=sum(lost, ModelCost()))
        except Unreachable as error:
            error.lost = sum(lost, ModelCost())
            raise

    async def _try(self, asked: _Asked, lost: list[ModelCost]) -> ModelReply:
        """What the endpoint answers, tried until the patience is over."""
        async with self._slots:
            if not self.endpoint.provider:
                _load_client()
            deadline = time.monotonic() + min(
                max(self.limits.patience_s, self.options.request_s), max(LEAST_REQUEST_S, self.ledger.left_s())
            )
            requests = failures = 0
            while True:
                dialect = self._dialect
                requests += 1
                try:
                    return await self._once(asked, dialect, requests, lost)
                except ProviderFailed as error:
                    problem, wait_s = self._after(error, failures + 1, requests)
                except _openai().OpenAIError as error:
                    if self._learns(error, dialect, asked.optional):
                        continue  # the same request in other words
                    problem, wait_s = self._after(error, failures + 1, requests)
                except (TimeoutError, _Overlong) as error:
                    problem, wait_s = str(error), 0.0
                except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                    # what langchain-openai raises for a body that is no chat completion
                    problem = f"not a chat completion ({type(error).__name__}: {error})"
                    wait_s = self._wait_s(failures + 1)
                failures += 1
                if failures >= self.limits.attempts or time.monotonic() + wait_s > deadline:
                    raise Unreachable(problem, requests)
                await asyncio.sleep(wait_s)

    def _request_s(self) -> float:
        """How long a request may take: what the user allows, and where the search's time is over no more than is left
        for the end of the run, but for a least."""
        return min(self.options.request_s, max(LEAST_REQUEST_S, self.ledger.left_s()))

    def _too_late(self, limit_s: float) -> str:
        if limit_s < self.options.request_s:
            return f"no answer within {limit_s:.0f} s, and the run's time is over"
        return f"no answer within {limit_s:.0f} s (--request-seconds)"

    async def _once(self, asked: _Asked, dialect: EndpointDialect, requests: int, lost: list[ModelCost]) -> ModelReply:
        limit_s = self._request_s()
        held = self.ledger.reserve(self._most_tokens(asked), self.options.answer_tokens, self.price)
        used: TokenUsage | None = None
        try:
            async with asyncio.timeout(limit_s):
                heard = await self._invoke(asked, dialect, held.answer_tokens)
            told = heard.usage
            if told is not None:
                self._most_per_byte = max(self._most_per_byte or 0.0, told.prompt_tokens / max(1, asked.size_bytes))
            said = len(heard.text) + sum(len(call.arguments) for call in heard.calls)
            guess = (asked.size_bytes // BYTES_PER_TOKEN + 1, said // BYTES_PER_TOKEN + 1)
            used = told or TokenUsage(*guess, estimated=True)
        except (TimeoutError, _Overlong) as error:
            # the server was generating: count what it may bill
            used = TokenUsage(held.prompt_tokens, held.answer_tokens, estimated=True)
            lost.append(ModelCost(1, held.prompt_tokens, held.answer_tokens, held.dollars))
            if isinstance(error, TimeoutError):
                raise TimeoutError(self._too_late(limit_s)) from error
            raise
        finally:
            dollars = self.ledger.settle(held, used)
        return ModelReply(heard.text, used, dollars, heard.truncated, requests, heard.calls)

    def _most_tokens(self, asked: _Asked) -> int:
        """That the endpoint may count for a prompt: reserved before it is sent, so that caps hold."""
        if self._most_per_byte is None:
            return int((asked.size_bytes + asked.form_bytes) * MOST_TOKENS_PER_BYTE) + 1
        return int(asked.size_bytes * self._most_per_byte * MARGIN) + asked.form_bytes

    async def _invoke(self, asked: _Asked, dialect: EndpointDialect, answer_tokens: int) -> _Heard:
        from langsmith import tracing_context

        # prompts go to the endpoint that the user named and nowhere else: no tracer of the environment, none of a
        # graph that this call runs in
        quiet: dict[str, Any] = {"callbacks": []}
        takes_tools = "tools" not in dialect.without
        messages = rendered(asked.messages, self.options.tool_calls, native=bool(asked.tools) and takes_tools)
        with tracing_context(enabled=False, parent=False):
            if self.endpoint.provider:
                chat = open_provider(self.endpoint.provider, self.model, self.endpoint, self.options, answer_tokens)
                return _heard(await ask_provider(chat, messages, asked.tools, quiet))
            async with self._chat(dialect, answer_tokens) as chat:
                try:
                    if asked.tools and takes_tools:
                        calling = chat.bind(tools=declarations(asked.tools))
                        try:
                            raw = await calling.ainvoke(messages, config=quiet)
                        except ValidationError:  # calls whose arguments are JSON, but no object
                            return _Heard("", None, False)
                    elif asked.tools or asked.schema is None or "response_format" in dialect.without:
                        raw = await chat.ainvoke(messages, config=quiet)
                    else:
                        structured = chat.with_structured_output(
                            dict(asked.schema), method="json_schema", include_raw=True, strict=True
                        )
                        raw = (await structured.ainvoke(messages, config=quiet))["raw"]
                except _openai().LengthFinishReasonError as error:
                    completion = error.completion  # the client refuses to parse it; what came may still be of use
                    told = completion.usage
                    usage = TokenUsage(told.prompt_tokens, told.completion_tokens) if told else None
                    return _Heard(completion.choices[0].message.content or "", usage, True)
                except _openai().OpenAIError as error:
                    overlong = _cause(error, _Overlong)
                    if overlong is not None:
                        raise overlong from error
                    raise
        return _heard(raw)

    @asynccontextmanager
    async def _chat(self, dialect: EndpointDialect, answer_tokens: int) -> AsyncIterator[Any]:
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr

        guard = _guard(answer_tokens * ENDLESS_BYTES + (1 << 16))
        hooks = {"request": [_anonymous] if not self.endpoint.is_openai else [], "response": [guard]}
        async with _openai().DefaultAsyncHttpxClient(event_hooks=hooks, verify=_tls()) as http:
            yield ChatOpenAI(
                model=self.model,
                base_url=self.endpoint.url,  # both are given, so that nothing is taken from the environment
                api_key=SecretStr(self.endpoint.key or "none"),
                use_responses_api=dialect.api == "responses",  # langchain-openai would go by the model's name
                extra_body=dialect.body(answer_tokens, self._wanted()),  # in our words: it renames and drops some
                timeout=2 * self.options.request_s,  # the clock around the whole request is the one that counts
                max_retries=0,
                http_async_client=http,
            )

    def _wanted(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "temperature": self.options.temperature,
            "reasoning_effort": self.options.reasoning_effort,
        }

    def _learns(self, error: Exception, dialect: EndpointDialect, optional: set[str]) -> bool:
        """Whether the endpoint refused a parameter that can be changed or left out, so that the request is repeated."""
        status = getattr(error, "status_code", None)
        if not isinstance(status, int):
            return False
        refusal = Refusal(status, str(getattr(error, "param", None) or ""), _one_line(error))
        offered = {name for name, value in self._wanted().items() if value is not None}
        found = adapt(dialect, refusal, offered | optional)
        if found is None:
            return False
        if self._dialect == dialect:  # else another call has learnt something since: try that first
            self._dialect, words = found
            self._learnt(words, refusal.text)
        return True

    def _after(self, error: Exception, failures: int, requests: int) -> tuple[str, float]:
        """(problem in words, seconds to wait before the next attempt); raises Unreachable if there is no next
        attempt."""
        problem = _one_line(error)
        status = getattr(error, "status_code", None)
        if status in (401, 403, 404):
            if self.endpoint.key is None and status == 401:
                problem = f"{self.endpoint.host} wants a key and none was given for it (--api-key-env NAME): {problem}"
            raise Unreachable(problem, requests, hopeless=True) from error
        if status is not None and status < 500 and status not in (408, 409, 425, 429):
            raise Unreachable(problem, requests) from error
        headers = getattr(getattr(error, "response", None), "headers", {})
        return problem, self._wait_s(failures, headers.get("retry-after", ""))

    def _wait_s(self, failures: int, retry_after: str = "") -> float:
        """Doubling, or what the server asks for; seconds."""
        try:
            asked = float(retry_after)
        except ValueError:
            asked = 0.0
        doubling: float = self.limits.first_wait_s * 2.0 ** (failures - 1)
        return min(max(asked, doubling), LONGEST_RETRY_AFTER_S)


def _taped(reply: ModelReply) -> TapedAnswer:
    usage = reply.usage
    return TapedAnswer(
        text=reply.text,
        calls=[(call.id, call.name, call.arguments) for call in reply.calls],
        truncated=reply.truncated,
        usage=(usage.prompt_tokens, usage.answer_tokens, usage.cached_tokens, usage.estimated),
    )


@cache
def _load_client() -> None:
    """Takes seconds, the first time on a busy machine ten: none of the time that a request has."""
    for name in ("langchain_openai", "langsmith"):
        importlib.import_module(name)
    _tls()


def _openai() -> Any:
    return importlib.import_module("openai")


async def get_json(endpoint: Endpoint, path: str) -> Any:
    """What an endpoint tells below its URL; raises OSError or ValueError where it tells nothing."""
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    async with _openai().DefaultAsyncHttpxClient(
        event_hooks={"response": [_guard(MOST_LISTED_BYTES)]}, verify=_tls()
    ) as http:
        try:
            answer = await http.get(f"{endpoint.url.rstrip('/')}/{path}", headers=headers)
            return answer.raise_for_status().json()
        except (_httpx().HTTPError, _Overlong) as error:
            raise OSError(str(error)) from error


def _one_line(error: Exception) -> str:
    """What the endpoint said; the client's own text keeps it only where it is in OpenAI's form."""
    text, body = str(error), getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    if body and not (isinstance(message, str) and message):
        text = f"{text} - {body if isinstance(body, str) else json.dumps(body)}"
    return " ".join(text.split())[:300]


async def _anonymous(request: Any) -> None:
    """A request hook: the client adds OPENAI_ORG_ID and OPENAI_PROJECT_ID of the environment, OpenAI's affair only."""
    for name in ("openai-organization", "openai-project"):
        request.headers.pop(name, None)


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _heard(raw: Any) -> _Heard:
    return _Heard(str(raw.text), _usage(raw), _is_cut(raw), _calls(raw))


def _usage(raw: Any) -> TokenUsage | None:
    """The server's figures, None where it gives none."""
    told = raw.usage_metadata
    if not told:
        return None
    cached = (told.get("input_token_details") or {}).get("cache_read", 0) or 0
    return TokenUsage(int(told["input_tokens"]), int(told["output_tokens"]), int(cached))


def _calls(raw: Any) -> tuple[RawCall, ...]:
    """The tool calls of a reply, those with broken arguments too."""
    whole = [(it["id"], it["name"], json.dumps(it["args"])) for it in raw.tool_calls]
    broken = [(it["id"], it["name"], it["args"]) for it in raw.invalid_tool_calls]
    found = enumerate([*whole, *broken])
    return tuple(RawCall(str(id or f"call{number}"), str(name), str(given)) for number, (id, name, given) in found)


def _is_cut(raw: Any) -> bool:
    """Whether the token limit ended the answer; the Responses API says it in its own way."""
    told = raw.response_metadata
    reason = told.get("finish_reason") or (told.get("incomplete_details") or {}).get("reason")
    return str(reason or told.get("stop_reason")).lower() in ("length", "max_output_tokens", "max_tokens")


@cache
def _httpx() -> Any:
    """httpx or its successor httpx2, whichever this openai release is built on."""
    client = next(kind for kind in _openai().DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    return importlib.import_module(client.__module__.partition(".")[0])


@cache
def _tls() -> Any:
    """The trusted certificates: reading them takes 80 ms, which every request would pay again."""
    return _httpx().create_ssl_context()


def _guard(most_bytes: int) -> Any:
    """A response hook that ends a body of more than `most_bytes`: it would fill the memory before the time-out."""
    byte_stream: Any = _httpx().AsyncByteStream

    class Guarded(byte_stream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            received = 0
            async for part in self.stream:
                received += len(part)
                if received > most_bytes:
                    raise _Overlong(f"the answer did not end after {received} bytes")
                yield part

        async def aclose(self) -> None:
            await self.stream.aclose()

    async def guard(response: Any) -> None:
        response.stream = Guarded(response.stream)

    return guard
