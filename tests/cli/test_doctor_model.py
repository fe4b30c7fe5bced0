"""`foundry doctor --model`: what an endpoint can do and costs, found out by two tiny requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.agents.chat.scripted_server import Reply, ScriptedServer, answer, calling, like_an_old_server, status

from .conftest import Cli, Done

USAGE = {"prompt_tokens": 60, "completion_tokens": 10}


@pytest.fixture
def serve() -> Any:
    started: list[ScriptedServer] = []

    def start(*replies: Any, listed: Any = None) -> ScriptedServer:
        started.append(ScriptedServer(replies).start())
        started[-1].listed = listed
        return started[-1]

    yield start
    for server in started:
        server.stop()


def findings(done: Done) -> dict[str, tuple[str, str]]:
    return {item["what"]: (item["state"], item["detail"]) for item in done.json}


def look(cli: Cli, server: ScriptedServer, *more: str) -> Done:
    return cli.here("doctor", "--model", "scripted-1", "--base-url", server.url, *more, "--json")


def test_a_capable_endpoint(cli: Cli, serve: Any) -> None:
    listed = {"data": [{"id": "other", "context_length": 1}, {"id": "scripted-1", "max_model_len": 131072}]}
    server = serve(calling("history", usage=USAGE), answer({"ready": True}, usage=USAGE), listed=listed)
    done = look(cli, server, "--price", "1,10")
    found = findings(done)
    assert done.code == 0 and {state for state, _ in found.values()} == {"ok"}
    assert "native" in found["tool calls"][1] and "131,072 tokens" in found["context length"][1]
    assert "120 of prompt and 20 of answer" in found["usage"][1]
    assert "this look cost $0.00032" in found["price"][1] and "tokens $0.0220" in found["price"][1]
    assert len(server.requests) == 2 and len(json.dumps(server.requests)) < 4000


def test_an_old_server(cli: Cli, serve: Any) -> None:
    """It knows neither tools nor forms nor seeds, counts nothing, and lists its one model by the name of a file."""
    listed = {"data": [{"id": "/models/scripted.gguf", "meta": {"n_ctx": 8192}}]}
    server = serve(like_an_old_server(answer({"ready": True}, usage=None)), listed=listed)
    done = look(cli, server, "--request-seconds", "300")
    found = findings(done)
    assert done.code == 0 and "refuses tools" in found["tool calls"][1] and found["usage"][0] == "limited"
    assert "refuses a schema" in found["structured output"][1] and "seed is left out" in found["model scripted-1"][1]
    assert found["price"][0] == found["context length"][0] == "limited"
    assert "8,192 tokens" in found["context length"][1] and "5,000 to 13,000" in found["context length"][1]


def test_a_model_that_does_not_do_what_it_is_asked(cli: Cli, serve: Any) -> None:
    found = findings(look(cli, serve(answer("Hello!"), listed=["not", "a", "table"])))
    assert "was asked to call one and did not" in found["tool calls"][1]
    assert "does not keep to it" in found["structured output"][1] and found["context length"][0] == "limited"


@pytest.mark.parametrize("reply", [status(401, message="bad key"), Reply(body=b"<html>", headers={})])
def test_an_endpoint_that_gives_no_answer(cli: Cli, serve: Any, reply: Reply) -> None:
    done = look(cli, serve(reply))
    assert done.code == 3 and findings(done)["model scripted-1"][0] == "missing"


def test_people_read_lines_and_bad_words_are_one(cli: Cli, serve: Any) -> None:
    server = serve(calling("history"), answer({"ready": True}))
    cli.write("foundry.toml", f'[models.mine]\nmodel = "scripted-1"\nbase_url = "{server.url}"\nprice = [0, 0]\n')
    done = cli.here("doctor", "--model", "mine")
    assert done.code == 0 and done.out.startswith("ok       model mine: 127.0.0.1") and "price: free" in done.out
    assert server.requests[0]["model"] == "scripted-1"
    assert cli.here("doctor", "--base-url", server.url).is_one_line("--base-url is about a chat model")
    assert cli.here("doctor", "--model", "a", "--base-url", "relay").is_one_line("no endpoint")
