"""One request to an OpenAI-compatible server through langchain-openai: patient within limits, never a surprise.

langchain-openai is imported when the first request is made, so that runs without a model do not pay for it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from foundry.agents.ledger import Ledger, Usage
from foundry.agents.prices import Price, price_of

CHARS_PER_TOKEN = 4  # counting properly needs tables from the network
LONGEST_RETRY_AFTER_S = 60.0
BYTES_PER_TOKEN = 16  # an answer with more bytes than this for each allowed token does not end by itself
Message = tuple[str, str]  # role ("system", "human", "ai"), text


class Unreachable(Exception):
    """No usable reply within the limits. `final`: asking again in this run is pointless (no access, no such model)."""

    def __init__(self, problem: str, requests: int, *, final: bool = False) -> None:
        super().__init__(problem)
        self.requests = requests
        self.final = final


@dataclass(frozen=True)
class Limits:
    """How long and how often to try. Seconds; tokens of one answer."""

    answer_tokens: int = 8192
    request_s: float = 180.0
    attempts: int = 4
    first_wait_s: float = 1.0
    patience_s: float = 300.0  # all attempts and waits of one call together
    parallel: int = 4


@dataclass(frozen=True)
class Reply:
    """`truncated`: the server stopped it at the token limit."""

    text: str
    usage: Usage
    dollars: float
    truncated: bool
    requests: int


class _Overlong(Exception):
    """The body does not end."""


class ChatClient:
    """Requests of one model; safe for several islands at once."""

    def __init__(
        self, model: str, base_url: str | None, *, ledger: Ledger, limits: Limits | None = None, seed: int | None = None
    ) -> None:
        self.model = model
        self.base_url = base_url
        self.price: Price = price_of(model, base_url)
        self.ledger = ledger
        self.limits = limits or Limits()
        self.seed = seed
        self._tokens_per_char = 1 / CHARS_PER_TOKEN  # grows with what the server reports, so that caps hold
        self._constrains = True  # until the server refuses a response format
        self._slots = asyncio.Semaphore(self.limits.parallel)

    async def ask(self, messages: Sequence[Message], schema: Mapping[str, Any] | None) -> Reply:
        """One reply. Raises BudgetExhausted before a request that a cap forbids, Unreachable after the last attempt."""
        deadline = time.monotonic() + self.limits.patience_s
        async with self._slots:
            problem = ""
            for attempt in range(1, self.limits.attempts + 1):
                try:
                    return await self._once(messages, schema if self._constrains else None, attempt)
                except _openai().OpenAIError as error:
                    problem, wait_s = self._after(error, attempt, constrained=schema is not None and self._constrains)
                except (TimeoutError, _Overlong) as error:
                    problem, wait_s = str(error) or f"no answer within {self.limits.request_s:.0f} s", 0.0
                except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                    # what langchain-openai raises for a body that is no chat completion
                    problem, wait_s = f"not a chat completion ({type(error).__name__}: {error})", self._wait_s(attempt)
                if attempt == self.limits.attempts or time.monotonic() + wait_s > deadline:
                    raise Unreachable(problem, attempt)
                await asyncio.sleep(wait_s)
        raise Unreachable("no attempt was allowed", 0)

    async def _once(self, messages: Sequence[Message], schema: Mapping[str, Any] | None, attempt: int) -> Reply:
        characters = sum(len(text) for _, text in messages)
        prompt_tokens = int(characters * self._tokens_per_char) + 1
        held = self.ledger.reserve(prompt_tokens, self.limits.answer_tokens, self.price)
        used: Usage | None = None
        try:
            async with asyncio.timeout(self.limits.request_s):
                text, told, finish_reason = await self._invoke(messages, schema, held.answer_tokens)
            if told is not None:
                self._tokens_per_char = min(1.0, max(self._tokens_per_char, told.prompt_tokens / max(1, characters)))
            used = told or Usage(prompt_tokens, len(text) // CHARS_PER_TOKEN + 1, estimated=True)
        except (TimeoutError, _Overlong):
            # the server was generating: count what it may bill
            used = Usage(held.prompt_tokens, held.answer_tokens, estimated=True)
            raise
        finally:
            dollars = self.ledger.settle(held, used)
        return Reply(text, used, dollars, finish_reason == "length", attempt)

    async def _invoke(
        self, messages: Sequence[Message], schema: Mapping[str, Any] | None, answer_tokens: int
    ) -> tuple[str, Usage | None, str]:
        """Text, usage if the server tells, and why it stopped."""
        async with self._chat(answer_tokens) as chat:
            try:
                if schema is None:
                    raw = await chat.ainvoke(list(messages))
                else:
                    structured = chat.with_structured_output(
                        dict(schema), method="json_schema", include_raw=True, strict=True
                    )
                    raw = (await structured.ainvoke(list(messages)))["raw"]
            except _openai().LengthFinishReasonError as error:
                completion = error.completion  # the client refuses to parse it; what came may still be of use
                told = completion.usage
                usage = Usage(told.prompt_tokens, told.completion_tokens) if told else None
                return completion.choices[0].message.content or "", usage, "length"
            except _openai().OpenAIError as error:
                overlong = _cause(error, _Overlong)
                if overlong is not None:
                    raise overlong from error
                raise
        return str(raw.text), _usage(raw), str(raw.response_metadata.get("finish_reason"))

    @asynccontextmanager
    async def _chat(self, answer_tokens: int) -> AsyncIterator[Any]:
        os.environ["LANGSMITH_TRACING"] = "false"  # prompts go to the endpoint the user named and nowhere else
        os.environ["LANGCHAIN_TRACING_V2"] = "false"
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr

        guard = _guard(answer_tokens * BYTES_PER_TOKEN + (1 << 16))
        async with _openai().DefaultAsyncHttpxClient(event_hooks={"response": [guard]}) as http:
            yield ChatOpenAI(
                model=self.model,
                base_url=self.base_url,
                api_key=SecretStr(os.environ.get("OPENAI_API_KEY") or "none"),
                max_completion_tokens=answer_tokens,
                # ChatOpenAI sends max_completion_tokens, which other servers ignore
                extra_body={"max_tokens": answer_tokens} if self.base_url else None,
                seed=self.seed,
                timeout=2 * self.limits.request_s,  # the clock around the whole request is the one that counts
                max_retries=0,
                http_async_client=http,
            )

    def _after(self, error: Exception, attempt: int, *, constrained: bool) -> tuple[str, float]:
        """The problem in words and how long to wait before the next attempt; raises Unreachable when there is none."""
        openai = _openai()
        problem = " ".join(str(error).split())[:300]
        status = getattr(error, "status_code", None)
        if constrained and status in (400, 422, 500, 501) and _is_about_format(problem):
            self._constrains = False  # the answer's form is also described in the prompt
            return problem, 0.0
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError | openai.NotFoundError):
            raise Unreachable(problem, attempt, final=True) from error
        if status is not None and status < 500 and status not in (408, 409, 425, 429):
            raise Unreachable(problem, attempt) from error
        headers = getattr(getattr(error, "response", None), "headers", {})
        return problem, self._wait_s(attempt, headers.get("retry-after", ""))

    def _wait_s(self, attempt: int, retry_after: str = "") -> float:
        """Doubling, or what the server asks for; seconds."""
        try:
            asked = float(retry_after)
        except ValueError:
            asked = 0.0
        doubling: float = self.limits.first_wait_s * 2.0 ** (attempt - 1)
        return min(max(asked, doubling), LONGEST_RETRY_AFTER_S)


def _openai() -> Any:
    return importlib.import_module("openai")


def _is_about_format(problem: str) -> bool:
    words = problem.lower()
    return any(word in words for word in ("response_format", "json_schema", "schema", "grammar", "structured"))


def _cause(error: BaseException | None, kind: type[BaseException]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _usage(raw: Any) -> Usage | None:
    """The server's figures, None where it gives none."""
    told = raw.usage_metadata
    if not told:
        return None
    cached = (told.get("input_token_details") or {}).get("cache_read", 0) or 0
    return Usage(int(told["input_tokens"]), int(told["output_tokens"]), int(cached))


def _guard(most_bytes: int) -> Any:
    """A response hook that ends a body of more than `most_bytes`: it would fill the memory before the time-out."""
    client = next(kind for kind in _openai().DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    # httpx or its successor httpx2, whichever this openai release is built on
    byte_stream: Any = importlib.import_module(client.__module__.partition(".")[0]).AsyncByteStream

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
