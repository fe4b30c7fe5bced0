"""What thinking costs: prices, caps and reservations."""

from __future__ import annotations

import pytest

from foundry.agents.ledger import BudgetExhausted, ModelLedger, TokenUsage
from foundry.agents.prices import PRICES, Price, in_words, price_of

TEN = Price(10.0, 1.0, 50.0)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("gpt-5.4", "gpt-5.4"),
        ("gpt-5.4-2026-03-05", "gpt-5.4"),
        ("openai/GPT-5.4-mini", "gpt-5.4-mini"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4.5"),
        ("claude-opus-5-latest", "claude-opus-5"),
    ],
)
def test_dated_and_prefixed_names_find_their_price(model: str, known: str) -> None:
    assert price_of(model) is PRICES[known]


@pytest.mark.parametrize("model", ["gpt-5.4-pro", "gpt-7", "some-new-model"])
def test_an_unknown_price_is_said_and_not_made_up(model: str) -> None:
    assert not price_of(model).known and "price unknown" in in_words(price_of(model))
    given = price_of(model, (2.5, 15.0))
    assert given.known and given.dollars(10**6, 0, 10**6) == 17.5


def test_a_price_that_is_given_counts_before_the_table() -> None:
    assert price_of("gpt-5.5", (0.0, 0.0)).dollars(10**6, 0, 10**6) == 0.0
    assert in_words(price_of("gpt-5.5", (0.0, 0.0))) == "free" and "$5 per million" in in_words(price_of("gpt-5.5"))


def test_cached_prompt_tokens_are_part_of_the_prompt() -> None:
    assert TEN.dollars(1_000_000, 400_000, 100_000) == pytest.approx(6.0 + 0.4 + 5.0)


def test_a_dollar_cap_shortens_the_last_answer_and_then_ends() -> None:
    ledger = ModelLedger(max_dollars=0.10)
    first = ledger.reserve(1000, 1000, TEN)  # 0.01 + 0.05
    assert first.answer_tokens == 1000
    second = ledger.reserve(1000, 1000, TEN)  # 0.04 left while the first runs: 0.01 and 600 tokens
    assert second.answer_tokens == pytest.approx(600, abs=1)
    with pytest.raises(BudgetExhausted, match=r"\$0.0000 of \$0.10"):
        ledger.reserve(1000, 1000, TEN)
    assert ledger.settle(first, TokenUsage(1000, 100)) == pytest.approx(0.015)
    assert ledger.reserve(1000, 500, TEN).answer_tokens == 500  # what the first did not use is free again
    ledger.settle(second, None)
    assert ledger.spent.requests == 1 and ledger.spent.dollars == pytest.approx(0.015)


def test_both_caps_hold_and_can_be_raised() -> None:
    ledger = ModelLedger(max_tokens=1000, max_dollars=100.0)
    with pytest.raises(BudgetExhausted, match="0 of 1000 tokens"):
        ledger.reserve(900, 500, TEN)
    ledger.max_tokens = 2000  # as the run's ledger does when the user grants more
    assert ledger.reserve(900, 500, TEN).answer_tokens == 500


def test_calls_under_way_count_against_a_cap_on_calls() -> None:
    ledger = ModelLedger(max_calls=2)
    held = [ledger.reserve(10, 500, TEN), ledger.reserve(10, 500, TEN)]
    with pytest.raises(BudgetExhausted, match="0 of 2 calls spent, and 2 calls under way"):
        ledger.reserve(10, 500, TEN)
    ledger.settle(held[0], None)  # the endpoint refused it: nothing was answered
    again = ledger.reserve(10, 500, TEN)
    for call in (held[1], again):
        ledger.settle(call, TokenUsage(10, 5))
    with pytest.raises(BudgetExhausted, match=r"2 of 2 calls spent$"):
        ledger.reserve(10, 500, TEN)
