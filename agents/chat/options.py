"""A user's options of the chat model; kept with the request, so that a resumed run asks in the same way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from foundry.agents.ledger import LEAST_ANSWER_TOKENS
from foundry.knowledge.errors import UsageError

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
MOST_PARALLEL = 64
MOST_CALLS = 64  # tool calls in one step


@dataclass(frozen=True)
class ChatOptions:
    """None leaves a parameter to the endpoint. Raises UsageError for a value that makes no sense."""

    answer_tokens: int = 8192  # most tokens of one answer, reasoning among them
    request_s: float = 180.0  # most seconds of a request with its retries
    parallel: int = 4  # requests at once
    temperature: float | None = None
    reasoning_effort: ReasoningEffort | None = None
    price: tuple[float, float] | None = None  # dollars per million tokens of prompt and of answer
    key_env: str | None = None  # the environment variable that holds the endpoint's key
    tool_calls: int = 6  # most tool calls before an expert's answer; 0: none
    tool_tokens: int = 120_000  # tokens of one step after which an expert has to answer

    def __post_init__(self) -> None:
        """Raises UsageError for answer tokens, seconds, parallel calls, tool calls, temperature or price out of
        range."""
        if self.answer_tokens < LEAST_ANSWER_TOKENS:
            raise UsageError(
                f"{self.answer_tokens} answer tokens: no proposal fits into fewer than {LEAST_ANSWER_TOKENS}"
            )
        if not (math.isfinite(self.request_s) and self.request_s > 0):
            raise UsageError(f"a request of {self.request_s:g} s", "give a positive number of seconds")
        if not 1 <= self.parallel <= MOST_PARALLEL:
            raise UsageError(f"{self.parallel} parallel calls", f"a number from 1 to {MOST_PARALLEL}")
        if not 0 <= self.tool_calls <= MOST_CALLS:
            raise UsageError(f"{self.tool_calls} tool calls", f"a number from 0 to {MOST_CALLS}")
        if self.temperature is not None and not 0.0 <= self.temperature <= 2.0:
            raise UsageError(f"temperature {self.temperature:g}", "a number from 0 to 2")
        if self.price is not None and not all(math.isfinite(dollars) and dollars >= 0.0 for dollars in self.price):
            raise UsageError(f"price {self.price[0]:g},{self.price[1]:g}", "two numbers of dollars, none negative")


EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)


def price_in_words(text: str) -> tuple[float, float]:
    """ "2.5,15" as dollars per million tokens of prompt and of answer; raises UsageError."""
    try:
        prompt, answer = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"price {text!r}", "dollars per million tokens of prompt and of answer: 2.5,15 (0,0 is free)"
        ) from None
    return prompt, answer


@dataclass(frozen=True)
class TapeOptions:
    """The files of recorded requests and answers.

    `record` gets every request and answer. `replay` answers requests; `ask_missing` asks the model those that it lacks.
    """

    record: str | None = None
    replay: str | None = None
    ask_missing: bool = False

    @property
    def asks(self) -> bool:
        """True if a model may be asked at all."""
        return self.replay is None or self.ask_missing

    def __post_init__(self) -> None:
        """Raises UsageError if missing answers may be asked for and nothing is replayed."""
        if self.ask_missing and not self.replay:
            raise UsageError("nothing is replayed, so nothing can be missing", "name a file with --replay")
