"""What a run with models may cost, before anything is asked: requests, tokens and dollars, from the first prompts."""

from __future__ import annotations

from dataclasses import dataclass

from foundry.agents.models.models import ModelSpec
from foundry.agents.prices import STEP_TOKENS, in_words

ANSWER_TOKENS = STEP_TOKENS[1]  # that a step is thought to take
RESULT_TOKENS = 700  # of a tool's answer


@dataclass(frozen=True)
class Range:
    """From steps that are answered at once to steps that make all their tool calls."""

    least: float
    most: float


@dataclass(frozen=True)
class CostEstimate:
    """What one model would take if every step were its own. `dollars` None: its price is not known."""

    model: str
    experts: tuple[str, ...]
    requests: Range
    tokens: Range
    dollars: Range | None
    price: str

    @property
    def words(self) -> str:
        dollars = f"${self.dollars.least:.2f} to ${self.dollars.most:.2f}" if self.dollars else "price unknown"
        requests = f"{self.requests.least:,.0f} to {self.requests.most:,.0f} requests"
        tokens = f"{self.tokens.least:,.0f} to {self.tokens.most:,.0f} tokens"
        return f"{self.model} ({', '.join(self.experts)}): {requests}, {tokens}, {dollars}"


def estimate(spec: ModelSpec, experts: tuple[str, ...], *, prompt_tokens: int, steps: int, judged: int) -> CostEstimate:
    """For `steps` proposals and `judged` finalists, if this model made all of them."""
    calls = spec.options.tool_calls
    prompts, answers = _step_tokens(prompt_tokens, calls, spec.options.tool_tokens)
    least = (steps + judged, (steps + judged) * prompt_tokens, (steps + judged) * ANSWER_TOKENS)
    most = ((steps + judged) * (1 + calls), (steps + judged) * prompts, (steps + judged) * answers)
    dollars = [spec.price.dollars(prompt, 0, answer) for _, prompt, answer in (least, most)]
    return CostEstimate(
        spec.name,
        experts,
        Range(least[0], most[0]),
        Range(least[1] + least[2], most[1] + most[2]),
        Range(*dollars) if spec.price.known else None,
        in_words(spec.price),
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
