"""Estimates requests, tokens and dollars of a run with chat models from its first prompts, before any request."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.agents.models.models import ModelSpec
from foundry.agents.prices import STEP_TOKENS, in_words

ANSWER_TOKENS = STEP_TOKENS[1]  # assumed tokens of a step's answer
RESULT_TOKENS = 700  # assumed tokens of a tool's result


@dataclass(frozen=True)
class Range:
    """An estimate from `least` (no step makes tool calls) to `most` (each step makes all of its tool calls)."""

    least: float
    most: float


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a run if one model answered every step; `dollars` is None if its price is unknown."""

    model: str
    experts: tuple[str, ...]
    requests: Range
    tokens: Range
    dollars: Range | None
    price: str

    @property
    def words(self) -> str:
        """The estimate as one line: model, experts, requests, tokens, dollars."""
        dollars = f"${self.dollars.least:.2f} to ${self.dollars.most:.2f}" if self.dollars else "price unknown"
        requests = f"{self.requests.least:,.0f} to {self.requests.most:,.0f} requests"
        tokens = f"{self.tokens.least:,.0f} to {self.tokens.most:,.0f} tokens"
        return f"{self.model} ({', '.join(self.experts)}): {requests}, {tokens}, {dollars}"


def estimate(spec: ModelSpec, experts: tuple[str, ...], *, prompt_tokens: int, steps: int, judged: int) -> CostEstimate:
    """The cost of `steps` proposals and `judged` finalists if this model made all of them."""
    calls = spec.options.tool_calls
    prompts, answers = _step_tokens(prompt_tokens, calls, spec.options.tool_tokens)
    least = (steps + judged, (steps + judged) * prompt_tokens, (steps + judged) * ANSWER_TOKENS)
    most = ((steps + judged) * (1 + calls), (steps + judged) * prompts, (steps + judged) * answers)
    dollars = [spec.price.dollars(prompt, 0, answer) for _, prompt, answer in (least, most)]
    return CostEstimate(
        model=spec.name,
        experts=experts,
        requests=Range(least[0], most[0]),
        tokens=Range(least[1] + least[2], most[1] + most[2]),
        dollars=Range(*dollars) if spec.price.known else None,
        price=in_words(spec.price),
    )


def _step_tokens(prompt_tokens: int, calls: int, cap: int) -> tuple[int, int]:
    """(tokens of prompts, tokens of answers) of a step that makes all its calls, each after the ones before it, as far
    as the step's cap lets it."""
    prompts, answers = prompt_tokens, ANSWER_TOKENS
    size = prompt_tokens
    for _ in range(calls):
        size += ANSWER_TOKENS + RESULT_TOKENS
        if prompts + answers + size > cap:
            break
        prompts, answers = prompts + size, answers + ANSWER_TOKENS
    return prompts, answers
