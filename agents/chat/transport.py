"""One call of a chat model through langchain.

`init_chat_model` opens it, its class repeats what a busy or broken server refused, `bind_tools` and
`with_structured_output` give a request its form.

Our part stands around it: a key goes to its own host only, no tracer hears the messages, a body without end is dropped.
langchain is imported when the first request is made, so that runs without a model do not pay for it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import SecretStr, ValidationError

from foundry.agents.chat.calls import RawCall, declarations
from foundry.agents.chat.endpoint import Endpoint
from foundry.agents.chat.options import ChatOptions
from foundry.agents.ledger import TokenUsage
from foundry.knowledge.errors import MissingTool, UsageError

ENDLESS_BYTES = 16  # an answer with more bytes than this for each allowed token does not end by itself
MOST_LISTED_BYTES = 8 << 20  # most bytes of an endpoint's list of models
MOST_PROBLEM_CHARS = 300  # characters kept of an error message


class CallFailed(Exception):
    """No answer after all retries.

    `status`: HTTP's, None if there is none. `parameter`: the one that the endpoint names in its error, or "".
    `is_garbled`: it answered, and not with a chat completion.
    """

    def __init__(self, error: Exception) -> None:
        """Reads status, parameter and message from an exception of whichever client."""
        self.is_garbled = isinstance(error, ValueError | TypeError | KeyError | AttributeError | IndexError)
        told = (
            f"not a chat completion ({type(error).__name__}: {error})" if self.is_garbled else _endpoint_message(error)
        )
        super().__init__(" ".join((told or type(error).__name__).split())[:MOST_PROBLEM_CHARS])
        status = getattr(error, "status_code", getattr(getattr(error, "response", None), "status_code", None))
        self.status = status if isinstance(status, int) else None
        self.parameter = str(getattr(error, "param", None) or "")


@dataclass(frozen=True)
class Heard:
    """A reply as the endpoint gave it; `usage` is None if it does not tell."""

    text: str
    usage: TokenUsage | None
    truncated: bool
    calls: tuple[RawCall, ...] = ()


@dataclass
class Exchange:
    """The state of a call: requests sent so far, the HTTP status of the last one if refused (else 0), and whether an
    answer did not end."""

    requests: int = 0
    refused: int = 0
    is_endless: bool = False


@dataclass(frozen=True)
class Transport:
    """Calls of one model. `retries`: repetitions of a request that a busy or broken server refused."""

    model: str
    endpoint: Endpoint
    options: ChatOptions
    retries: int

    async def ask(
        self,
        messages: Sequence[Any],
        tools: tuple[str, ...],
        schema: Mapping[str, Any] | None,
        body: Mapping[str, Any],
        exchange: Exchange,
    ) -> Heard:
        """One reply; `tools` are those that it may call, by name. Raises CallFailed.

        `body`: parameters in the endpoint's own words. Counts requests in `exchange`.
        """
        from langsmith import tracing_context

        # prompts go to the endpoint that the user named and nowhere else: no tracer of the environment, none of a
        # graph that this call runs in
        with tracing_context(enabled=False, parent=False):
            async with self._open(body, exchange) as chat:
                calling = chat
                if tools:
                    calling = chat.bind_tools(declarations(tools))
                elif schema is not None:
                    form = {"method": "json_schema", "include_raw": True, "strict": True}
                    calling = chat.with_structured_output(dict(schema), **form)
                return await _answer(calling, messages)

    def check(self) -> None:
        """Opens the provider's model and asks nothing. Raises UsageError without access, MissingTool without its
        package."""
        _open_provider(self, {"max_tokens": self.options.answer_tokens})

    @asynccontextmanager
    async def _open(self, body: Mapping[str, Any], exchange: Exchange) -> AsyncIterator[Any]:
        """A context manager with langchain's model for one call. Counts its requests, strips OpenAI's headers for other
        hosts."""
        if self.endpoint.provider:
            exchange.requests += 1  # those that its package repeats are not told
            yield _open_provider(self, body)
            return

        async def prepare(request: Any) -> None:
            """Request hook: counts the request and removes headers about an account at OpenAI for other hosts."""
            exchange.requests += 1
            exchange.refused = 0
            if not self.endpoint.is_openai:  # the client adds what the environment says of an account at OpenAI
                for name in ("openai-organization", "openai-project"):
                    request.headers.pop(name, None)

        most_bytes = self.options.answer_tokens * ENDLESS_BYTES + (1 << 16)
        hooks = {"request": [prepare], "response": [_guard(most_bytes, exchange)]}
        async with _openai().DefaultAsyncHttpxClient(event_hooks=hooks, verify=_tls()) as http:
            yield _init_chat_model(
                self,
                "openai",
                base_url=self.endpoint.url,  # both are given, so that nothing is taken from the environment
                api_key=SecretStr(self.endpoint.key or "none"),
                use_responses_api="max_output_tokens" in body,  # langchain-openai would go by the model's name
                extra_body=dict(body),  # in our words: it renames and drops some
                http_async_client=http,
            )


def _init_chat_model(transport: Transport, provider: str, **more: Any) -> Any:
    """langchain's model with the transport's model name and retries and twice its time limit; address and key come in
    `more`."""
    from langchain.chat_models import init_chat_model

    clock_s = 2 * transport.options.request_s  # the clock around the whole call is the one that counts
    return init_chat_model(
        transport.model, model_provider=provider, timeout=clock_s, max_retries=transport.retries, **more
    )


def _open_provider(transport: Transport, body: Mapping[str, Any]) -> Any:
    """langchain's model of a provider with an interface of its own. Raises UsageError, MissingTool."""
    endpoint, model = transport.endpoint, transport.model
    said = {"base_url": endpoint.url or None, "api_key": endpoint.key, **body}
    given = {name: value for name, value in said.items() if value is not None}
    try:
        return _init_chat_model(transport, endpoint.provider, **given)
    except ImportError as error:
        package = f"langchain-{endpoint.provider.split('_')[0]}"
        raise MissingTool(f"the provider {endpoint.provider} needs {package}", f"pip install {package}") from error
    except Exception as error:  # each class has its own way to say that a key is missing
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"no access to {model} of {endpoint.provider}: {why[:200]}", "see --api-key-env") from error


async def _answer(calling: Any, messages: Sequence[Any]) -> Heard:
    """The reply of langchain's model, as it is or beside its parsed form. Raises CallFailed."""
    try:
        raw = await calling.ainvoke(messages, config={"callbacks": []})
    except ValidationError:  # langchain refuses calls whose arguments are JSON, but no object
        return Heard("", None, False)
    except Exception as error:  # classes of packages that are not known here, and what a body that is no answer raises
        if (cut := getattr(error, "completion", None)) is not None:  # the client refuses to parse what was cut off
            usage = cut.usage and TokenUsage(cut.usage.prompt_tokens, cut.usage.completion_tokens)
            return Heard(cut.choices[0].message.content or "", usage, True)
        raise CallFailed(error) from error
    message = raw["raw"] if isinstance(raw, dict) else raw
    return Heard(str(message.text), _usage(message), _is_cut(message), _calls(message))


def _usage(message: Any) -> TokenUsage | None:
    """The server's count of tokens; None if it gives none."""
    told = message.usage_metadata
    if not told:
        return None
    cached = (told.get("input_token_details") or {}).get("cache_read", 0) or 0
    return TokenUsage(int(told["input_tokens"]), int(told["output_tokens"]), int(cached))


def _calls(message: Any) -> tuple[RawCall, ...]:
    """The tool calls of a reply, those with broken arguments too; a call without an id gets one."""
    whole = [(it["id"], it["name"], json.dumps(it["args"])) for it in message.tool_calls]
    broken = [(it["id"], it["name"], it["args"]) for it in message.invalid_tool_calls]
    found = enumerate([*whole, *broken])
    return tuple(RawCall(str(id or f"call{number}"), str(name), str(given)) for number, (id, name, given) in found)


def _is_cut(message: Any) -> bool:
    """True if the token limit ended the answer; the Responses API says it in its own way."""
    told = message.response_metadata
    reason = told.get("finish_reason") or (told.get("incomplete_details") or {}).get("reason")
    return str(reason or told.get("stop_reason")).lower() in ("length", "max_output_tokens", "max_tokens")


@cache
def load_client() -> None:
    """Imports the client once: seconds, on a busy machine ten. A request's time limit does not include it."""
    for name in ("langchain.chat_models", "langchain_openai", "langsmith"):
        importlib.import_module(name)
    _tls()


async def get_json(endpoint: Endpoint, path: str) -> Any:
    """The JSON that an endpoint answers at a path below its URL. Raises OSError or ValueError if there is none."""
    headers = {"authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
    async with _openai().DefaultAsyncHttpxClient(
        event_hooks={"response": [_guard(MOST_LISTED_BYTES, Exchange())]}, verify=_tls()
    ) as http:
        try:
            answer = await http.get(f"{endpoint.url.rstrip('/')}/{path}", headers=headers)
            return answer.raise_for_status().json()
        except _httpx().HTTPError as error:
            raise OSError(str(error)) from error


def _endpoint_message(error: Exception) -> str:
    """The endpoint's own error message; the client's text keeps it only if it is in OpenAI's form."""
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    if body and not (isinstance(message, str) and message):
        return f"{error} - {body if isinstance(body, str) else json.dumps(body)}"
    cause = str(error.__cause__ or "")
    return f"{error} {cause}" if cause and cause not in str(error) else str(error)


def _openai() -> Any:
    """The package `openai`, imported when it is first needed."""
    return importlib.import_module("openai")


@cache
def _httpx() -> Any:
    """httpx or its successor httpx2, whichever this openai release is built on."""
    client = next(kind for kind in _openai().DefaultAsyncHttpxClient.__mro__ if kind.__name__ == "AsyncClient")
    return importlib.import_module(client.__module__.partition(".")[0])


@cache
def _tls() -> Any:
    """The trusted certificates: reading them takes 80 ms, which every request would pay again."""
    return _httpx().create_ssl_context()


def _guard(most_bytes: int, exchange: Exchange) -> Any:
    """A response hook that cuts a body of more than `most_bytes`: it would fill the memory before the time-out."""
    byte_stream: Any = _httpx().AsyncByteStream

    class Guarded(byte_stream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            """Wraps a response's stream."""
            self.stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            """Yields the body's parts and stops after `most_bytes`, noting in the exchange that it did not end."""
            received = 0
            async for part in self.stream:
                received += len(part)
                if received > most_bytes:
                    exchange.is_endless = True
                    return
                yield part

        async def aclose(self) -> None:
            """Closes the wrapped stream."""
            await self.stream.aclose()

    async def guard(response: Any) -> None:
        """Response hook: notes a refused status and wraps the body."""
        exchange.refused = response.status_code if response.status_code >= 400 else 0
        response.stream = Guarded(response.stream)

    return guard
