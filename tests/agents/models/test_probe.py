"""What two tiny answers say of the speed of a model."""

from __future__ import annotations

from typing import Any

import pytest

from foundry.agents.chat.calls import ModelReply
from foundry.agents.chat.options import ChatOptions
from foundry.agents.ledger import TokenUsage
from foundry.agents.models.models import ModelSpec
from foundry.agents.models.probe import _Look, _speed


@pytest.mark.parametrize(
    ("seconds", "request_s", "state", "said"),
    [
        ([20.0, 0.6], 180.0, "limited", "takes 300 s, and a prompt's 7,000 take more; a request is given up after 180"),
        ([20.0, 0.6], 600.0, "ok", "takes 300 s"),
        ([1.0, 90.0], 180.0, "ok", "takes 15 s"),  # ten tokens say nothing
    ],
)
def test_a_slow_model_is_known_before_its_run_times_out(
    seconds: list[float], request_s: float, state: str, said: str
) -> None:
    client: Any = None
    replies = [ModelReply("", TokenUsage(50, tokens), 0.0, False, 1) for tokens in (100, 10)]
    look = _Look(client, [], replies, seconds)
    found = _speed(ModelSpec("slow", "slow", options=ChatOptions(request_s=request_s)), look)
    assert [item.state for item in found] == [state] * bool(state)
    assert all(said in item.detail for item in found)
    assert all("--request-seconds 600" in item.climb for item in found if state == "limited")
