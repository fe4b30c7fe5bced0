"""The chat client against endpoints as they are: what they refuse, when they are away, and what they may be sent."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import replace
from typing import Any, TypedDict

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.langchain import wait_for_all_tracers
from langgraph.graph import END, START, StateGraph
from langsmith.utils import get_env_var, tracing_is_enabled
from tests.agents.chat.scripted_server import (
    Reply,
    answer,
    like_an_old_server,
    like_openai,
    refusal,
    responses_only,
    status,
    truncated,
)
from tests.agents.session import QUICK, SHORT, Session, move
from tests.waiting import PATIENCE_S

from foundry.agents.brain import NoAnswer
from foundry.agents.chat.breaker import Breaker, Pauses
from foundry.agents.chat.dialect import EndpointDialect, Refusal, adapt
from foundry.agents.chat.endpoint import Endpoint, endpoint_of
from foundry.agents.chat.options import ChatOptions
from foundry.knowledge.errors import UsageError
from foundry.knowledge.thought import Diagnosis

TOKEN_FIELDS = ("max_completion_tokens", "max_tokens")


def token_fields(server: Any) -> list[list[str]]:
    return [[name for name in TOKEN_FIELDS if name in request] for request in server.requests]


# what an endpoint refuses


async def test_openais_token_field_is_found_by_one_refusal_and_remembered(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(like_openai(answer(move()))))
    for _ in range(2):
        assert (await session.propose()).brain == "scripted-1"
    assert token_fields(session.server) == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]
    assert session.server.requests[1]["max_completion_tokens"] == session.server.requests[0]["max_tokens"] == 2000
    assert session.server.requests[1]["messages"] == session.server.requests[0]["messages"]
    assert [(call.outcome, call.requests) for call in session.calls] == [("answered", 2), ("answered", 1)]
    assert session.ledger.spent.requests == 2  # the refusal cost nothing
    assert [notice.name for notice in session.notices] == ["model refuses"]
    assert "max_completion_tokens instead of max_tokens" in session.notices[0].text


async def test_an_old_server_gets_none_of_what_it_does_not_know(toy: Any, scripted: Any) -> None:
    options = replace(SHORT, temperature=0.2, reasoning_effort="low")
    session = Session(toy, scripted(like_an_old_server(answer(move()))), options=options)
    session.client_speaks_like_openai()
    for _ in range(2):
        assert (await session.propose()).brain == "scripted-1"
    assert set(session.server.requests[-1]) - {"stream"} == {"model", "messages", "max_tokens"}
    assert session.server.requests[-2].keys() == session.server.requests[-1].keys()  # refused once each, remembered
    assert len(session.server.requests) == 1 + 4 + 1  # token field, seed, temperature, effort
    assert [call.outcome for call in session.calls] == ["answered", "answered"]


@pytest.mark.parametrize("takes", ["temperature", "seed", "reasoning_effort"])
async def test_only_what_is_refused_is_left_out(toy: Any, scripted: Any, takes: str) -> None:
    options = replace(SHORT, temperature=0.2, reasoning_effort="low")
    session = Session(toy, scripted(like_an_old_server(answer(move()), takes)), options=options)
    await session.propose()
    wanted = {"temperature": 0.2, "seed": 7, "reasoning_effort": "low"}
    sent = session.server.requests[-1]
    assert {name: sent[name] for name in wanted if name in sent} == {takes: wanted[takes]}


async def test_a_temperature_that_the_model_does_not_take_is_left_out_and_said(toy: Any, scripted: Any) -> None:
    session = Session(
        toy, scripted(like_openai(answer(move()))), options=replace(SHORT, temperature=0.2), model="gpt-5"
    )
    assert (await session.propose()).brain == "gpt-5"
    assert [request.get("temperature") for request in session.server.requests] == [0.2, 0.2, None]
    assert any("temperature is left out" in notice.text for notice in session.notices)


async def test_what_the_user_chose_is_sent(toy: Any, scripted: Any) -> None:
    options = ChatOptions(answer_tokens=12_345, temperature=0.0, reasoning_effort="high")
    session = Session(toy, scripted(answer(move())), options=options, model="gpt-5")
    await session.propose()
    sent = session.server.requests[0]
    assert (sent["max_tokens"], sent["temperature"], sent["reasoning_effort"]) == (12_345, 0.0, "high")


async def test_islands_that_are_refused_together_learn_it_once(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(like_openai(answer(move()))))
    await asyncio.gather(*(session.propose(step=f"i{island}g1", island=island) for island in range(4)))
    assert [call.outcome for call in session.calls] == ["answered"] * 4
    assert [notice.name for notice in session.notices] == ["model refuses"]
    assert len(session.server.requests) <= 8 and all(len(names) == 1 for names in token_fields(session.server))


@pytest.mark.parametrize("model", ["gpt-5.3-codex", "gpt-5.6-sol", "scripted-1"])
async def test_a_model_of_the_responses_api_is_asked_there_without_a_seed(toy: Any, scripted: Any, model: str) -> None:
    options = replace(SHORT, reasoning_effort="low")
    session = Session(toy, scripted(responses_only(answer(move()))), options=options, model=model)
    for _ in range(2):
        assert (await session.propose()).brain == model
    assert ["input" in request for request in session.server.requests] == [False, True, True]
    sent = session.server.requests[-1]
    assert sent["max_output_tokens"] == 2000 and sent["reasoning"] == {"effort": "low"} and "seed" not in sent
    assert sent["store"] is False
    assert session.ledger.spent.tokens == 2200
    cut = Session(toy, scripted(responses_only(truncated('{"rationale": "because the'))), model=model)
    await cut.propose()
    assert "cut off after 100 tokens" in cut.calls[0].detail


@pytest.mark.parametrize("model", ["gpt-5.3-codex", "gpt-5.6-sol"])
async def test_a_relay_without_the_responses_api_is_asked_for_chat_completions(
    toy: Any, scripted: Any, model: str
) -> None:
    session = Session(toy, scripted(like_an_old_server(answer(move()), "seed", "response_format")), model=model)
    assert (await session.propose()).brain == model
    assert len(session.server.requests) == 1 and session.server.requests[0]["seed"] == 7


@pytest.mark.parametrize(
    "message",
    [
        "'max_tokens' or 'max_completion_tokens' is too large: 99999. This model's maximum context length is 8192.",
        "max_tokens (384000) exceeds model's maximum output tokens (65536)",
        "This model's maximum context length is 8192 tokens: shorten the messages or the schema",
        "Invalid prompt: your prompt was flagged",
    ],
)
async def test_a_refusal_of_something_else_changes_nothing(toy: Any, scripted: Any, message: str) -> None:
    session = Session(toy, scripted(refusal(message)))
    assert await session.is_playbooks(await session.propose())
    assert len(session.server.requests) == 1 and not session.notices
    assert message[:40] in session.calls[0].detail


async def test_a_server_that_refuses_both_token_fields_is_not_asked_for_ever(toy: Any, scripted: Any) -> None:
    def refuse(request: dict[str, Any]) -> Reply:
        return refusal("unknown field " + next(name for name in TOKEN_FIELDS if name in request))

    session = Session(toy, scripted(refuse))
    assert await session.is_playbooks(await session.propose())
    assert token_fields(session.server) == [["max_tokens"], ["max_completion_tokens"]]


def test_the_parameter_that_is_named_first_is_the_one_refused() -> None:
    dialect = EndpointDialect.of(is_openai=False)
    text = "loc: body.seed, input: {temperature: 0.2, max_tokens: 2000, response_format: ...}"
    found = adapt(dialect, Refusal(422, "", text), {"seed", "temperature", "response_format"})
    assert found is not None and found[0].without == {"seed"}
    by_param = adapt(dialect, Refusal(400, "temperature", text), {"seed", "temperature"})
    assert by_param is not None and by_param[0].without == {"temperature"}
    assert adapt(dialect, Refusal(429, "seed", text), {"seed"}) is None


# when an endpoint is away


def outage(first_s: float = 15.0, longest_s: float = 300.0) -> Any:
    return replace(QUICK, attempts=1, pauses=Pauses(after=3, first_s=first_s, longest_s=longest_s))


class Hours:
    """The clock of a session's pauses: it stands still, however busy the machine is."""

    def __init__(self, session: Session) -> None:
        self.now_s = 0.0
        session.brain.breaker = Breaker(session.brain.breaker.pauses, lambda: self.now_s)


async def test_an_outage_ends_and_the_model_thinks_again(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(*[status(503)] * 4, answer(move())), outage())
    hours = Hours(session)
    for _ in range(5):
        assert await session.is_playbooks(await session.propose())
    assert len(session.server.requests) == 3  # the fourth and fifth were not even asked
    away = session.notices[-1]
    assert away.name == "model unavailable" and away.facts["retry_s"] == 15.0
    hours.now_s += 16
    assert await session.is_playbooks(await session.propose())  # still away: a longer pause
    assert session.notices[-1].facts["retry_s"] == 30.0
    hours.now_s += 31
    assert (await session.propose()).brain == "scripted-1"
    assert (await session.propose()).brain == "scripted-1"
    assert len(session.server.requests) == 6
    assert [notice.name for notice in session.notices] == ["model unavailable"] * 2 + ["model is back"]
    assert "answers again" in session.notices[-1].text


async def test_one_island_alone_tries_an_endpoint_that_was_away(toy: Any, scripted: Any) -> None:
    others_have_gone_on = threading.Event()

    def hold(_request: dict[str, Any]) -> Reply:
        assert others_have_gone_on.wait(PATIENCE_S)
        return answer(move())

    session = Session(toy, scripted(*[status(503)] * 3, hold), outage())
    hours = Hours(session)
    await asyncio.gather(*(session.propose(step=f"i{island}g1") for island in range(3)))
    hours.now_s += 16
    trying = [asyncio.ensure_future(session.propose(step=f"i{island}g2")) for island in range(4)]
    going_on = set(trying)
    while len(going_on) > 1:
        _, going_on = await asyncio.wait(going_on, return_when=asyncio.FIRST_COMPLETED)
    others_have_gone_on.set()
    steps = await asyncio.gather(*trying)
    assert [step.brain for step in steps].count("scripted-1") == 1 and len(session.server.requests) == 4
    assert (await session.propose()).brain == "scripted-1"


async def test_no_access_is_asked_about_rarely_and_a_repaired_key_works(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(status(401, message="bad key"), answer(move())), outage())
    hours = Hours(session)
    for _ in range(3):
        assert await session.is_playbooks(await session.propose())
    assert len(session.server.requests) == 1 and len(session.calls) == 1
    assert "bad key" in session.calls[0].detail and "wants a key" in session.calls[0].detail
    hours.now_s += 301  # the longest pause at once: no key appears by itself
    assert (await session.propose()).brain == "scripted-1"


async def test_nobody_listening_is_an_outage_too(toy: Any, scripted: Any) -> None:
    session = Session(toy, scripted(answer(move())), outage(first_s=60, longest_s=60))
    Hours(session)
    session.server.stop()
    for _ in range(5):
        assert await session.is_playbooks(await session.propose())
    assert [call.outcome for call in session.calls] == ["unreachable"] * 3
    assert session.notices[-1].facts["retry_s"] == 60.0


async def test_a_failed_answer_says_nothing_of_the_parent(toy: Any, scripted: Any) -> None:
    """Where the playbook has no step either, the caller is told that nobody answered, and when to ask again."""
    broken = toy.evaluation(None, outcome="wrong_result", error="twice too large")
    found = Diagnosis("c1", "wrong_result", None, "twice too large", "drop one")
    lost = Session(toy, scripted(status(503)), outage(first_s=30, longest_s=30))
    Hours(lost)
    for retry_s in (0.0, 0.0, 30.0, 30.0):
        with pytest.raises(NoAnswer) as raised:
            await lost.propose(parent=broken, lowered=None, diagnosis=found)
        assert raised.value.retry_s == retry_s
    nonsense = Session(toy, scripted(answer("I would rather not.")))
    with pytest.raises(NoAnswer) as raised:
        await nonsense.propose(parent=broken, lowered=None, diagnosis=found)
    assert raised.value.retry_s == 0.0
    broke = Session(toy, scripted(answer(move())), max_tokens=300)
    assert await broke.propose(parent=broken, lowered=None, diagnosis=found) is None  # a cap is no outage: it stays


def test_pauses_double_up_to_the_longest_and_late_failures_change_nothing() -> None:
    now = 0.0
    breaker = Breaker(Pauses(after=2, first_s=10, longest_s=25), lambda: now)
    assert breaker.permit() == breaker.permit() == breaker.permit() == "call"
    assert [breaker.note_failure("call"), breaker.note_failure("call"), breaker.note_failure("call")] == [
        False,
        True,
        False,
    ]
    assert breaker.permit() is None and breaker.retry_s == 10
    for pause in (20, 25, 25):
        now += breaker.retry_s
        assert breaker.permit() == "probe" and breaker.permit() is None
        assert breaker.note_failure("probe") and breaker.retry_s == pause
    now += breaker.retry_s
    assert breaker.permit() == "probe"
    breaker.note_abandoned("probe")
    assert breaker.permit() == "probe" and breaker.note_answer() and breaker.permit() == "call"
    assert breaker.note_failure("call") is False and breaker.lasted_s == 0


# which key goes where


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-secret")
    return monkeypatch


def test_openais_key_goes_to_openai_alone(keys: pytest.MonkeyPatch) -> None:
    key = "sk-openai-secret"
    assert endpoint_of("m", None).key == endpoint_of("m", "https://api.openai.com/v1").key == key
    assert endpoint_of("m", "https://eu.api.openai.com/v1").key == key
    for url in (
        "https://openrouter.ai/api/v1",
        "http://localhost:8080/v1",
        "https://api.openai.com.evil.example/v1",
        "https://api.openai.com@evil.example/v1",
        "http://api.openai.com/v1",  # in the clear
    ):
        assert endpoint_of("m", url).key is None, url
    assert "sk-" not in repr(endpoint_of("m", None))


def test_a_key_is_given_by_name_or_beside_the_url_of_the_environment(keys: pytest.MonkeyPatch) -> None:
    keys.setenv("ROUTER_KEY", "sk-router")
    assert endpoint_of("m", "https://openrouter.ai/api/v1", "ROUTER_KEY").key == "sk-router"
    assert endpoint_of("m", "https://openrouter.ai/api/v1", "OPENAI_API_KEY").key == "sk-openai-secret"
    with pytest.raises(UsageError, match="NO_SUCH_KEY is not set"):
        endpoint_of("m", "https://openrouter.ai/api/v1", "NO_SUCH_KEY")
    keys.setenv("OPENAI_BASE_URL", "https://relay.example/v1")
    assert endpoint_of("m", None) == Endpoint("https://relay.example/v1")
    assert endpoint_of("m", None).key == endpoint_of("m", "https://relay.example/v2").key == "sk-openai-secret"
    assert endpoint_of("m", "https://other.example/v1").key is None


@pytest.mark.parametrize("url", ["relay", "ftp://relay/v1", "http://", "//relay/v1"])
def test_what_is_no_url_is_said(keys: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(UsageError, match="no endpoint"):
        endpoint_of("m", url)


async def test_no_secret_of_openai_reaches_another_server(keys: pytest.MonkeyPatch, toy: Any, scripted: Any) -> None:
    keys.setenv("OPENAI_ORG_ID", "org-secret")
    keys.setenv("OPENAI_PROJECT_ID", "project-secret")
    session = Session(toy, scripted(answer(move())))
    await session.propose()
    assert "secret" not in json.dumps([session.server.headers, session.server.requests])
    keys.setenv("MINE", "sk-mine")
    given = Session(toy, scripted(answer(move())), options=replace(SHORT, key_env="MINE"))
    await given.propose()
    headers = {name.lower(): value for name, value in given.server.headers[0].items()}
    assert headers["authorization"] == "Bearer sk-mine" and "secret" not in json.dumps(headers)


# what else a call does


class Tracing(TypedDict):
    text: str


class Overhearing(BaseCallbackHandler):
    """Notes which models the graph's tracers hear of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **_: Any) -> None:
        self.heard.append(str(messages))


async def test_the_environment_stays_as_it_is_and_nothing_goes_to_langsmith(
    monkeypatch: pytest.MonkeyPatch, toy: Any, scripted: Any
) -> None:
    """Also in a graph that is traced: its tracers would otherwise be handed down to the call."""
    langsmith = scripted(answer("{}"))
    for name in ("LANGSMITH", "LANGCHAIN"):
        monkeypatch.setenv(f"{name}_ENDPOINT", langsmith.url)
        monkeypatch.setenv(f"{name}_API_KEY", "none")
    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "true")
    get_env_var.cache_clear()  # type: ignore[attr-defined]
    assert tracing_is_enabled()
    session = Session(toy, scripted(answer("c17 was too large.")))
    before = dict(os.environ)
    assert await session.brain.answer("why was c17 rejected?", "") == "c17 was too large."
    assert (await session.propose(), len(session.server.requests))[1] >= 2
    assert dict(os.environ) == before
    wait_for_all_tracers()
    assert langsmith.requests == []

    async def node(state: Tracing) -> Tracing:
        return {"text": await session.brain.answer("why was c17 rejected?", "")}

    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.setenv("LANGCHAIN_TRACING_V2", "false")
    get_env_var.cache_clear()  # type: ignore[attr-defined]
    graph = StateGraph(Tracing)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    overhearing = Overhearing()
    told = await graph.compile().ainvoke({"text": ""}, {"callbacks": [overhearing]})
    assert told["text"] == "c17 was too large." and overhearing.heard == []
