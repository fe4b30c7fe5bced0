"""What calls of a chat model have cost, and the caps that forbid further ones. Shared by all islands of a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from foundry.agents.prices import Price

LEAST_ANSWER_TOKENS = 256  # no proposal fits into less


class BudgetExhausted(Exception):
    """A cap forbids the next request; the search goes on with the playbook."""


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one request. `estimated`: the server did not say, so four characters count as one token."""

    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True)
class ModelCost:
    """Totals so far; the graph keeps them with its state and restores them on resume."""

    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    dollars: float = 0.0
    failed_steps: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens


@dataclass(frozen=True)
class Reservation:
    """The most that a request may use. It counts as spent until the request is settled, so that islands together cannot
    exceed a cap."""

    prompt_tokens: int
    answer_tokens: int
    price: Price

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    @property
    def dollars(self) -> float:
        return self.price.dollars(self.prompt_tokens, 0, self.answer_tokens)


@dataclass
class ModelLedger:
    """Caps are None where there is none. Thread-safe."""

    max_tokens: int | None = None
    max_dollars: float | None = None
    max_calls: int | None = None
    spent: ModelCost = field(default_factory=ModelCost)
    _held: list[Reservation] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def reserve(self, prompt_tokens: int, answer_tokens: int, price: Price) -> Reservation:
        """Reserves tokens and dollars for one request, its answer cut to what the caps leave; raises
        BudgetExhausted."""
        with self._lock:
            room = min(answer_tokens, self._token_room(prompt_tokens), self._dollar_room(prompt_tokens, price))
            if room < min(answer_tokens, LEAST_ANSWER_TOKENS) or not self._has_call():
                raise BudgetExhausted(self._why())
            reservation = Reservation(prompt_tokens, room, price)
            self._held.append(reservation)
            return reservation

    def settle(self, reservation: Reservation, usage: TokenUsage | None) -> float:
        """Books what a request used (None: nothing) and returns its dollars."""
        with self._lock:
            self._held.remove(reservation)
            return self.count(usage, reservation.price) if usage is not None else 0.0

    def count(self, usage: TokenUsage, price: Price) -> float:
        """Books a request and returns its dollars."""
        dollars = price.dollars(usage.prompt_tokens, usage.cached_tokens, usage.answer_tokens)
        with self._lock:
            self.spent = replace(
                self.spent,
                requests=self.spent.requests + 1,
                prompt_tokens=self.spent.prompt_tokens + usage.prompt_tokens,
                answer_tokens=self.spent.answer_tokens + usage.answer_tokens,
                dollars=self.spent.dollars + dollars,
            )
        return dollars

    def book(self, spent: ModelCost) -> None:
        """Adds what another process spent from the same budget."""
        with self._lock:
            before = self.spent
            self.spent = ModelCost(
                before.requests + spent.requests,
                before.prompt_tokens + spent.prompt_tokens,
                before.answer_tokens + spent.answer_tokens,
                before.dollars + spent.dollars,
                before.failed_steps + spent.failed_steps,
            )

    def count_failed_step(self) -> None:
        with self._lock:
            self.spent = replace(self.spent, failed_steps=self.spent.failed_steps + 1)

    def _has_call(self) -> bool:
        return self.max_calls is None or self.spent.requests + len(self._held) < self.max_calls

    def _token_room(self, prompt_tokens: int) -> int:
        if self.max_tokens is None:
            return 1 << 40
        return self.max_tokens - self.spent.tokens - sum(item.tokens for item in self._held) - prompt_tokens

    def _dollar_room(self, prompt_tokens: int, price: Price) -> int:
        """How many answer tokens the remaining dollars pay for after the prompt."""
        if self.max_dollars is None or price.answer <= 0:
            return 1 << 40
        left = self.max_dollars - self.spent.dollars - sum(item.dollars for item in self._held)
        return int(1e6 * (left - price.dollars(prompt_tokens, 0, 0)) / price.answer)

    def _why(self) -> str:
        caps = []
        if self.max_calls is not None:
            caps.append(f"{self.spent.requests} of {self.max_calls} calls")
        if self.max_tokens is not None:
            caps.append(f"{self.spent.tokens} of {self.max_tokens} tokens")
        if self.max_dollars is not None:
            caps.append(f"${self.spent.dollars:.4f} of ${self.max_dollars:.2f}")
        held = f", and {len(self._held)} calls under way may take the rest" if self._held else ""
        return f"the model's budget is used up: {', '.join(caps)} spent{held}"
