"""Prices of chat models in dollars per million tokens: a dated table, because no API has them."""

from __future__ import annotations

import re
from dataclasses import dataclass

AS_OF = "2026-11-20"  # read from the model price list of GitHub's documentation (models-and-pricing.yml)

STEP_TOKENS = (7_000, 1_500)  # assumed tokens of a step's prompt and answer


@dataclass(frozen=True)
class Price:
    """Dollars per million tokens of prompt, of prompt read from the provider's cache, and of answer."""

    prompt: float
    cached: float
    answer: float
    known: bool = True

    @property
    def is_free(self) -> bool:
        """True if the price is known and 0 for prompts and answers."""
        return self.known and self.prompt == self.answer == 0.0

    def dollars(self, prompt_tokens: int, cached_tokens: int, answer_tokens: int) -> float:
        """`cached_tokens` are part of `prompt_tokens`."""
        fresh = prompt_tokens - cached_tokens
        return 1e-6 * (fresh * self.prompt + cached_tokens * self.cached + answer_tokens * self.answer)


PRICES: dict[str, Price] = {
    "gpt-5-mini": Price(0.25, 0.025, 2.0),
    "gpt-5.3-codex": Price(1.75, 0.175, 14.0),
    "gpt-5.4": Price(2.5, 0.25, 15.0),
    "gpt-5.4-mini": Price(0.75, 0.075, 4.5),
    "gpt-5.4-nano": Price(0.2, 0.02, 1.25),
    "gpt-5.5": Price(5.0, 0.5, 30.0),
    "gpt-5.6-luna": Price(0.2, 0.02, 1.2),
    "gpt-5.6-sol": Price(5.0, 0.5, 30.0),
    "gpt-5.6-terra": Price(2.0, 0.2, 12.0),
    "claude-haiku-4.5": Price(1.0, 0.1, 5.0),
    "claude-sonnet-4": Price(3.0, 0.3, 15.0),
    "claude-sonnet-4.5": Price(3.0, 0.3, 15.0),
    "claude-sonnet-4.6": Price(3.0, 0.3, 15.0),
    "claude-sonnet-5": Price(2.0, 0.2, 10.0),
    "claude-opus-4.8": Price(5.0, 0.5, 25.0),
    "claude-opus-5": Price(5.0, 0.5, 25.0),
    "claude-fable-5": Price(10.0, 1.0, 50.0),
    "gemini-3.1-pro": Price(2.0, 0.2, 12.0),
    "gemini-3.5-flash": Price(1.5, 0.15, 9.0),
    "gemini-3.7-flash": Price(0.75, 0.075, 3.75),
    "grok-4.6": Price(2.0, 0.5, 6.0),
    "kimi-k3": Price(3.0, 0.3, 15.0),
}
# nothing is made up: tokens are counted, and who wants dollars counted or capped says what they cost
UNKNOWN = Price(0.0, 0.0, 0.0, known=False)
_DATE = re.compile(r"[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest|preview)$")


def price_of(model: str, given: tuple[float, float] | None = None) -> Price:
    """The price that the user gave, or else the table's for the model's name.

    The table also applies to a server on this machine, because that may pass requests on to a paid one.
    """
    if given is not None:
        prompt, answer = given
        return Price(prompt, prompt, answer)
    name = _DATE.sub("", model.lower().rpartition("/")[2])
    dashed = {known.replace(".", "-"): price for known, price in PRICES.items()}
    return PRICES.get(name) or dashed.get(name) or UNKNOWN


def in_words(price: Price) -> str:
    """The price in words, for the line that introduces a model: dollars per million tokens, "free", or that it is
    unknown."""
    if not price.known:
        return "price unknown: tokens are counted, dollars are not (--price IN,OUT gives one)"
    if price.is_free:
        return "free"
    return f"${price.prompt:g} per million tokens of prompt, ${price.answer:g} of answer"
