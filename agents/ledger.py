"""Counts the cost of calls of a chat model and enforces the caps. Shared by all islands of a run."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

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
    """The cost of one call, or the sum of many."""

    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    dollars: float = 0.0
    failed_steps: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of prompts and answers together."""
        return self.prompt_tokens + self.answer_tokens

    def __add__(self, other: ModelCost) -> ModelCost:
        """The sum of both costs, field by field."""
        return ModelCost(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.answer_tokens + other.answer_tokens,
            self.dollars + other.dollars,
            self.failed_steps + other.failed_steps,
        )


@dataclass(frozen=True)
class Reservation:
    """The most that a request may use. It counts as spent until the request is settled, so that islands together cannot
    exceed a cap. `number`: in the book of calls."""

    prompt_tokens: int
    answer_tokens: int
    price: Price
    number: int = 0

    @property
    def tokens(self) -> int:
        """Tokens reserved for prompt and answer together."""
        return self.prompt_tokens + self.answer_tokens

    @property
    def dollars(self) -> float:
        """Dollars that the reserved tokens cost if none comes from the endpoint's cache."""
        return self.price.dollars(self.prompt_tokens, 0, self.answer_tokens)


class CallBook(Protocol):
    """A record of calls that outlives a process: a killed process's call counts with its largest possible cost."""

    def add(self, cost: ModelCost) -> int:
        """Records the most that a call may cost, before it is made, and returns the record's number."""
        ...

    def settle(self, number: int, cost: ModelCost | None) -> None:
        """Records what it cost; None: nothing."""
        ...

    def others(self) -> ModelCost:
        """The cost, or the largest possible cost, of all other processes' calls."""
        ...


@dataclass
class ModelLedger:
    """Caps are None where there is none. `spent`: by this process; `left_s`: how long a request may take that is made
    now, infinite while the search has time. Thread-safe."""

    max_tokens: int | None = None
    max_dollars: float | None = None
    max_calls: int | None = None
    spent: ModelCost = field(default_factory=ModelCost)
    book: CallBook | None = None
    left_s: Callable[[], float] = lambda: math.inf
    _held: list[Reservation] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def total(self) -> ModelCost:
        """Cost of this process's calls, and of those that other processes booked."""
        return self.spent if self.book is None else self.spent + self.book.others()

    def reserve(self, prompt_tokens: int, answer_tokens: int, price: Price) -> Reservation:
        """Reserves tokens and dollars for one request, its answer cut to what the caps leave; raises
        BudgetExhausted."""
        with self._lock:
            spent = self.total
            room = min(
                answer_tokens,
                self._token_room(spent, prompt_tokens),
                self._dollar_room(spent, prompt_tokens, price),
            )
            if room < min(answer_tokens, LEAST_ANSWER_TOKENS) or not self._has_call(spent):
                raise BudgetExhausted(self._why(spent))
            most = ModelCost(1, prompt_tokens, room, price.dollars(prompt_tokens, 0, room))
            number = self.book.add(most) if self.book is not None else 0
            reservation = Reservation(prompt_tokens, room, price, number)
            self._held.append(reservation)
            return reservation

    def settle(self, reservation: Reservation, usage: TokenUsage | None) -> float:
        """Replaces a reservation by what the request used (None: nothing) and returns its dollars."""
        cost = _cost(usage, reservation.price) if usage is not None else None
        with self._lock:
            self._held.remove(reservation)
            if self.book is not None:
                self.book.settle(reservation.number, cost)
            self.spent += cost or ModelCost()
        return cost.dollars if cost is not None else 0.0

    def count(self, usage: TokenUsage, price: Price) -> float:
        """Books a request that nothing was reserved for, and returns its dollars."""
        cost = _cost(usage, price)
        with self._lock:
            if self.book is not None:
                self.book.settle(self.book.add(cost), cost)
            self.spent += cost
        return cost.dollars

    def count_failed_step(self) -> None:
        """Counts a step that the model failed."""
        with self._lock:
            self.spent = replace(self.spent, failed_steps=self.spent.failed_steps + 1)

    def _has_call(self, spent: ModelCost) -> bool:
        """True if one more call is within the cap, counting the reserved ones; always without a cap."""
        return self.max_calls is None or spent.requests + len(self._held) < self.max_calls

    def _token_room(self, spent: ModelCost, prompt_tokens: int) -> int:
        """Tokens left for an answer after this prompt and the calls under way; a huge number without a cap."""
        if self.max_tokens is None:
            return 1 << 40
        return self.max_tokens - spent.tokens - sum(item.tokens for item in self._held) - prompt_tokens

    def _dollar_room(self, spent: ModelCost, prompt_tokens: int, price: Price) -> int:
        """How many answer tokens the remaining dollars pay for after the prompt."""
        if self.max_dollars is None or price.answer <= 0:
            return 1 << 40
        left = self.max_dollars - spent.dollars - sum(item.dollars for item in self._held)
        return int(1e6 * (left - price.dollars(prompt_tokens, 0, 0)) / price.answer)

    def _why(self, spent: ModelCost) -> str:
        """The reason in words why the caps allow no further call."""
        caps = []
        if self.max_calls is not None:
            caps.append(f"{spent.requests} of {self.max_calls} calls")
        if self.max_tokens is not None:
            caps.append(f"{spent.tokens} of {self.max_tokens} tokens")
        if self.max_dollars is not None:
            caps.append(f"${spent.dollars:.4f} of ${self.max_dollars:.2f}")
        held = f", and {len(self._held)} calls under way may take the rest" if self._held else ""
        return f"the model's budget is used up: {', '.join(caps)} spent{held}"


def _cost(usage: TokenUsage, price: Price) -> ModelCost:
    """The cost of one request from its tokens and the price."""
    dollars = price.dollars(usage.prompt_tokens, usage.cached_tokens, usage.answer_tokens)
    return ModelCost(1, usage.prompt_tokens, usage.answer_tokens, dollars)
