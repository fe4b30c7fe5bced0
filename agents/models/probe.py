"""Probes the capabilities of a model's endpoint by two tiny requests and its list of models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from foundry.agents.chat.answers import AnswerError, documents, parse, schema_of
from foundry.agents.chat.calls import ModelReply
from foundry.agents.chat.client import ChatClient, Patience, Unreachable
from foundry.agents.chat.transport import get_json, load_client
from foundry.agents.ledger import ModelLedger
from foundry.agents.models.models import ModelSpec
from foundry.agents.prices import STEP_TOKENS, in_words
from foundry.tools.machine.doctor import Capability

ANSWER_TOKENS = 1024  # reasoning counts among them
LISTING_S = 10.0
MOST_PROMPT_TOKENS = 13_000
PROMPTS = f"most prompts have 5,000 to {MOST_PROMPT_TOKENS:,} tokens"
TELLING_TOKENS = 32  # tokens; shorter answers are too short to measure a rate
TOOL = "history"
CALL = "This is a test of your interface. Call the tool `history` now, without arguments, and say nothing else."
FILL = 'This is a test of your interface. Answer with the JSON object {"ready": true} and nothing else.'
# how servers tell a model's context length: OpenRouter, vLLM, LM Studio, others; llama.cpp in a table of its own
LENGTHS = ("context_length", "max_model_len", "max_context_length", "context_window", "n_ctx", "n_ctx_train")


class Ready(BaseModel):
    """The form of the second request's answer."""

    model_config = ConfigDict(extra="forbid")

    ready: bool = Field(description="true")


@dataclass
class _Look:
    """A probe under way: the client, the parameters that were refused, the replies and their seconds."""

    client: ChatClient
    refused: list[str] = field(default_factory=list)
    replies: list[ModelReply] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    async def ask(self, text: str, schema: Mapping[str, Any] | None, tools: tuple[str, ...] = ()) -> ModelReply:
        """Asks the endpoint once and notes reply and seconds."""
        load_client()  # takes seconds, once, that are none of the endpoint's
        started = time.monotonic()
        reply = await self.client.ask([("human", text)], schema, tools)
        self.seconds.append(time.monotonic() - started)
        self.replies.append(reply)
        return reply


async def probe(spec: ModelSpec) -> list[Capability]:
    """Findings about a model's endpoint from two tiny requests: answers, tool calls, structured output, tokens,
    context, price.

    An endpoint that does not answer is one finding. Raises UsageError without any access to the model.
    """
    options = replace(spec.options, answer_tokens=ANSWER_TOKENS)
    refused: list[str] = []
    client = ChatClient(
        spec.model,
        spec.endpoint,
        ledger=ModelLedger(),
        options=options,
        limits=Patience(attempts=1),
        seed=0,
        learnt=lambda words, _: refused.append(words),
    )
    look = _Look(client, refused)
    try:
        called = await look.ask(CALL, None, (TOOL,))
        filled = await look.ask(FILL, schema_of(Ready))
    except Unreachable as error:
        return [
            Capability(f"model {spec.name}", "missing", f"no answer from {spec.endpoint.host}: {error}", needed=True)
        ]
    return [
        _answers(spec, look),
        *_speed(spec, look),
        _tools(called, look),
        _form(filled, look),
        _usage(look.replies),
        await _context(spec),
        _price(spec, look.replies),
    ]


def _answers(spec: ModelSpec, look: _Look) -> Capability:
    """The finding that the endpoint answers, with seconds and the parameters that it refused."""
    shortest, longest = min(look.seconds), max(look.seconds)
    text = f"{spec.endpoint.host} answers two tiny requests after {shortest:.2f} and {longest:.2f} s"
    left_out = f"; {', '.join(look.refused)}" if look.refused else ""
    return Capability(f"model {spec.name}", "ok", text + left_out, needed=True)


def _speed(spec: ModelSpec, look: _Look) -> list[Capability]:
    """Compares the time of a step's answer, at the slowest rate seen, with a request's time limit.

    Empty if all answers were too short to measure a rate. The time of a full prompt stays unknown: these are tiny.
    """
    pairs = zip(look.replies, look.seconds, strict=True)
    said = [(reply.usage.answer_tokens, took) for reply, took in pairs if not reply.usage.estimated]
    rates = [tokens / max(took, 1e-3) for tokens, took in said if tokens >= TELLING_TOKENS]
    if not rates:
        return []
    rate, limit_s = min(rates), spec.options.request_s
    step_s = STEP_TOKENS[1] / max(rate, 0.1)
    text = f"about {rate:.2g} tokens of answer a second: one of {STEP_TOKENS[1]:,} takes {step_s:.0f} s"
    if step_s <= limit_s:
        return [Capability("speed", "ok", text)]
    text += f", and a prompt's {STEP_TOKENS[0]:,} take more; a request is given up after {limit_s:g} s"
    return [Capability("speed", "limited", text, f"--request-seconds {2 * step_s:.0f}, or --answer-tokens below")]


def _tools(reply: ModelReply, look: _Look) -> Capability:
    """The finding about tool calls: native, in words, or not made."""
    if any("tools" in words for words in look.refused):
        return Capability("tool calls", "limited", "the endpoint refuses tools: they are called in words")
    if any(call.name == TOOL for call in reply.calls):
        return Capability("tool calls", "ok", "native")
    in_words = any(document.get("tool") == TOOL for document in documents(reply.text))
    why = "it calls in words" if in_words else "it was asked to call one and did not"
    return Capability("tool calls", "limited", f"the endpoint takes tools; {why}", "--tool-calls 0 does without")


def _form(reply: ModelReply, look: _Look) -> Capability:
    """The finding about structured output: kept to a schema, asked for in words, or not JSON."""
    if any("response_format" in words for words in look.refused):
        return Capability(
            "structured output", "limited", "the endpoint refuses a schema: answers are asked for in words"
        )
    is_words = bool(look.client.endpoint.provider)  # a provider's own interface is sent no schema
    try:
        parse(reply.text, Ready)
    except AnswerError as error:
        found = "it answers no JSON" if is_words else "it takes a schema and does not keep to it"
        return Capability("structured output", "limited", f"{found}: {error}")
    how = "answers are JSON where they are asked for in words" if is_words else "answers keep to a JSON schema"
    return Capability("structured output", "ok", how)


def _usage(replies: Sequence[ModelReply]) -> Capability:
    """The finding about token counts: the endpoint's, or estimates."""
    prompt = sum(reply.usage.prompt_tokens for reply in replies)
    answer = sum(reply.usage.answer_tokens for reply in replies)
    if any(reply.usage.estimated for reply in replies):
        text = "the endpoint does not count tokens: four bytes are taken as one, and caps are kept by that"
        return Capability("usage", "limited", text)
    return Capability("usage", "ok", f"the endpoint counts tokens: {prompt} of prompt and {answer} of answer here")


async def _context(spec: ModelSpec) -> Capability:
    """The model's context length in tokens, from the endpoint's list of models; "limited" if unknown or shorter than
    prompts."""
    try:
        listed = await asyncio.wait_for(get_json(spec.endpoint, "models"), LISTING_S)
    except (OSError, ValueError, TimeoutError):
        listed = None
    rows = listed.get("data") if isinstance(listed, dict) else None
    models = [it for it in rows or () if isinstance(it, dict)]
    alone = models[0] if len(models) == 1 else {}  # a server of one model may list it by its file's name
    row = next((it for it in models if it.get("id") == spec.model), alone)
    meta = row.get("meta")
    told = {**(meta if isinstance(meta, dict) else {}), **row}
    found = next((told[name] for name in LENGTHS if isinstance(told.get(name), int)), None)
    if found is None:
        return Capability("context length", "limited", f"not told; {PROMPTS}")
    text = f"{found:,} tokens, as the endpoint's list of models says"
    if found < MOST_PROMPT_TOKENS:
        return Capability("context length", "limited", f"{text}; {PROMPTS}, and answers come on top")
    return Capability("context length", "ok", text)


def _price(spec: ModelSpec, replies: Sequence[ModelReply]) -> Capability:
    """The finding about the price, with what the probe and a usual step cost."""
    price = spec.price
    if not price.known:
        return Capability("price", "limited", "unknown: tokens are counted, dollars are not", "--price IN,OUT")
    here, step = sum(reply.dollars for reply in replies), price.dollars(STEP_TOKENS[0], 0, STEP_TOKENS[1])
    size = f"{STEP_TOKENS[0]:,} + {STEP_TOKENS[1]:,} tokens"
    costs = "" if price.is_free else f"; this look cost ${here:.5f}, a step of {size} ${step:.4f}"
    return Capability("price", "ok", in_words(price) + costs)
