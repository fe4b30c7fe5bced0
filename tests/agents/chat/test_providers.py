"""Models of providers without an OpenAI-compatible interface: through langchain's own classes, or one clear line."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.agents.chat.scripted_server import answer, calling, status, truncated
from tests.agents.session import SHORT, Session, move

from foundry.agents.chat.endpoint import endpoint_of
from foundry.agents.models.models import ModelSpec
from foundry.agents.talk import ToolRequest
from foundry.knowledge.errors import MissingTool, UsageError


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("langchain_anthropic", reason="its package is not installed: pip install langchain-anthropic")
    monkeypatch.setenv("SCRIPTED_KEY", "sk-scripted")


def session(toy: Any, server: Any, **more: Any) -> Session:
    server_root = type("Server", (), {"url": server.url.removesuffix("/v1")})
    options = replace(SHORT, key_env="SCRIPTED_KEY", request_s=60.0)
    return Session(toy, server_root, provider="anthropic", options=options, **more)


async def test_a_provider_of_its_own_proposes_and_is_counted(toy: Any, scripted: Any, anthropic: None) -> None:
    server = scripted(answer(move(0)))
    made = session(toy, server)
    proposal = await made.propose()
    assert proposal.brain == "scripted-1" and made.ledger.spent.tokens == 1100
    sent = server.requests[0]
    assert sent["max_tokens"] == 2000 and "memory-tiling expert" in str(sent["system"])
    assert "sk-scripted" in str(server.headers[0]) and made.brain.introduction.text.startswith("scripted-1 at anth")


async def test_it_calls_tools_in_its_own_way(toy: Any, scripted: Any, anthropic: None) -> None:
    server = scripted(calling("history"), answer(move(0)))
    found = await session(toy, server).propose(tools=("history",))
    assert isinstance(found, ToolRequest) and found.native and found.calls[0].name == "history"
    assert server.requests[0]["tools"][0]["name"] == "history"


async def test_its_errors_are_tried_again_or_said(toy: Any, scripted: Any, anthropic: None) -> None:
    server = scripted(status(529), answer(move(0)))
    assert (await session(toy, server).propose()).brain == "scripted-1" and len(server.requests) == 2
    refused = session(toy, scripted(status(401, message="invalid x-api-key")))
    assert await refused.is_playbooks(await refused.propose())
    assert refused.calls[0].outcome == "unreachable" and "invalid x-api-key" in refused.calls[0].detail
    cut = session(toy, scripted(truncated('{"rationale": "because the')))
    await cut.propose()
    assert "cut off after 100 tokens" in cut.calls[0].detail


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_groq", None)
    with pytest.raises(MissingTool, match=r"groq needs langchain-groq \(pip install langchain-groq\)"):
        _ = ModelSpec("a", "llama", provider="groq").endpoint
    with pytest.raises(UsageError, match="no access to llama of nobody"):
        _ = ModelSpec("a", "llama", provider="nobody").endpoint
    with pytest.raises(UsageError, match="NO_SUCH_KEY is not set"):
        endpoint_of("claude-opus-5", None, "NO_SUCH_KEY", "anthropic")
