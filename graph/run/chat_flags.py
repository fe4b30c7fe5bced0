"""The options of `foundry agent solve` that are about the chat model."""

from __future__ import annotations

from typing import Annotated

import typer

from foundry.agents.chat.options import EFFORTS, MOST_CALLS, MOST_PARALLEL, ChatOptions, ReasoningEffort, price_in_words
from foundry.agents.ledger import LEAST_ANSWER_TOKENS
from foundry.knowledge.errors import UsageError

DEFAULT = ChatOptions()

ModelFlag = Annotated[str | None, typer.Option(help="Chat model for the experts; default: the playbook.")]
BaseUrlFlag = Annotated[str | None, typer.Option(help="OpenAI-compatible endpoint of the model; default: OpenAI's.")]
KeyFlag = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        metavar="NAME",
        help="Environment variable with the endpoint's key. OPENAI_API_KEY goes to OpenAI by itself, nowhere else.",
    ),
]
PriceFlag = Annotated[
    str | None,
    typer.Option(metavar="IN,OUT", help="Dollars per million tokens of prompt and of answer; default: a table."),
]
AnswerTokensFlag = Annotated[
    int | None,
    typer.Option(
        min=LEAST_ANSWER_TOKENS,
        help=f"Most tokens of one answer, the model's reasoning among them; default: {DEFAULT.answer_tokens}.",
    ),
]
RequestSecondsFlag = Annotated[
    float | None,
    typer.Option(
        "--request-seconds",
        min=0.01,
        help=f"A request is given up after this many seconds; default: {DEFAULT.request_s:g}.",
    ),
]
ParallelFlag = Annotated[
    int | None,
    typer.Option("--parallel-calls", min=1, max=MOST_PARALLEL, help=f"Requests at once; default: {DEFAULT.parallel}."),
]
TemperatureFlag = Annotated[
    float | None, typer.Option(min=0.0, max=2.0, help="Sampling temperature; default: the endpoint's.")
]
ReasoningFlag = Annotated[
    str | None, typer.Option("--reasoning-effort", help=f"{', '.join(EFFORTS)}; default: the endpoint's.")
]
ToolCallsFlag = Annotated[
    int | None,
    typer.Option(
        "--tool-calls",
        min=0,
        max=MOST_CALLS,
        help=f"Tools that an expert may call before it answers; 0: none; default: {DEFAULT.tool_calls}.",
    ),
]


def chat_options(
    model: str | None,
    base_url: str | None,
    key_env: str | None,
    price: str | None,
    answer_tokens: int | None,
    request_s: float | None,
    parallel: int | None,
    temperature: float | None,
    reasoning_effort: str | None,
    tool_calls: int | None,
) -> ChatOptions:
    """What the flags say. Raises UsageError for a value that makes no sense, and where no model is asked for."""
    given = {
        "--base-url": base_url,
        "--api-key-env": key_env,
        "--price": price,
        "--answer-tokens": answer_tokens,
        "--request-seconds": request_s,
        "--parallel-calls": parallel,
        "--temperature": temperature,
        "--reasoning-effort": reasoning_effort,
        "--tool-calls": tool_calls,
    }
    named = [name for name, value in given.items() if value is not None]
    if named and not model:
        raise UsageError(f"{named[0]} is about a chat model, but none is asked for", "add --model NAME")
    return ChatOptions(
        answer_tokens or DEFAULT.answer_tokens,
        request_s or DEFAULT.request_s,
        parallel or DEFAULT.parallel,
        temperature,
        _effort(reasoning_effort),
        None if price is None else price_in_words(price),
        key_env,
        DEFAULT.tool_calls if tool_calls is None else tool_calls,
    )


def _effort(word: str | None) -> ReasoningEffort | None:
    found = next((effort for effort in EFFORTS if effort == word), None)
    if word is not None and found is None:
        raise UsageError(f"--reasoning-effort {word}", f"one of {', '.join(EFFORTS)}")
    return found
