"""Recorded conversations: answers by the digest of the request, no key on file, one line for what is missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agents.chat.scripted_server import answer, calling, status
from tests.agents.session import SHORT, Session, move

from foundry.agents.chat.options import TapeOptions
from foundry.agents.chat.tape import NotRecorded, Tape
from foundry.agents.talk import ToolRequest
from foundry.knowledge.errors import UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "talk.jsonl"


def recording(file: Path) -> Tape:
    return Tape(TapeOptions(record=str(file)))


def replaying(file: Path, *, ask_missing: bool = False) -> Tape:
    return Tape(TapeOptions(replay=str(file), ask_missing=ask_missing))


async def test_a_replay_gives_the_recorded_answers_and_asks_nobody(toy: Any, scripted: Any, file: Path) -> None:
    server = scripted(answer(move(0)), answer(move(2)), answer("no JSON here"))
    first = Session(toy, server, options=SHORT, tape=recording(file))
    made = [await first.propose(step=f"i0g{number}") for number in (1, 1, 2)]
    asked = len(server.requests)
    again = Session(toy, server, options=SHORT, tape=replaying(file))
    assert [await again.propose(step=f"i0g{number}") for number in (1, 1, 2)] == made
    assert made[0] != made[1], "the same request had two answers, which are given in turn"
    assert len(server.requests) == asked and again.ledger.spent == first.ledger.spent
    assert [call.outcome for call in again.calls] == ["answered", "answered", "failed"]


async def test_calls_and_failures_are_replayed_too(toy: Any, scripted: Any, file: Path) -> None:
    server = scripted(calling("history"), status(401, message="bad key"))
    results = []
    for begin in (recording, replaying):
        session = Session(toy, server, options=SHORT, tape=begin(file))
        called = await session.propose(step="i0g1", tools=("history",))
        assert isinstance(called, ToolRequest) and called.native
        results.append((called, await session.propose(step="i0g2")))
        assert session.calls[-1].outcome == "unreachable" and "bad key" in session.calls[-1].detail
    assert results[0] == results[1] and len(server.requests) == 2


async def test_what_is_not_recorded_is_one_line_or_asked(toy: Any, scripted: Any, file: Path) -> None:
    server = scripted(answer(move(0)))
    await Session(toy, server, options=SHORT, tape=recording(file)).propose()
    strict = Session(toy, server, options=SHORT, tape=replaying(file))
    with pytest.raises(
        NotRecorded, match=r"talk.jsonl holds no answer to a request to scripted-1 \(digest .*--ask-missing"
    ):
        await strict.propose(parent_text="another file")
    other = replace(SHORT, temperature=0.5)
    with pytest.raises(NotRecorded):
        await Session(toy, server, options=other, tape=replaying(file)).propose()
    assert len(server.requests) == 1
    asking = Session(toy, server, options=SHORT, tape=replaying(file, ask_missing=True))
    assert (await asking.propose(parent_text="another file")).brain == "scripted-1" and len(server.requests) == 2


def test_no_key_is_written_even_where_an_endpoint_repeats_it(
    toy: Any, scripted: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_KEY", "sk-very-secret")
    server = scripted(answer(move(0, rationale="your key is sk-very-secret")), status(403, message="sk-very-secret"))
    session = Session(toy, server, options=replace(SHORT, key_env="RELAY_KEY"), tape=recording(file))

    async def talk() -> None:
        for _ in range(2):
            await session.propose()

    asyncio.run(talk())
    text = file.read_text()
    assert server.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "very-secret" not in text and "your key is ***" in text and len(text.splitlines()) == 2


async def test_what_a_cap_or_an_outage_left_unasked_is_left_unasked_again(
    toy: Any, scripted: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without access to the model, and whatever is left of a cap."""
    server = scripted(answer(move(0)), status(401, message="bad key"), answer(move(0)))
    first = Session(toy, server, options=SHORT, tape=recording(file), max_calls=1)
    steps = [await first.propose(step=f"i0g{number}") for number in (1, 2, 3)]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    again = Session(toy, SimpleNamespace(url=None), options=SHORT, tape=replaying(file))
    assert [await again.propose(step=f"i0g{number}") for number in (1, 2, 3)] == steps
    assert [call.outcome for call in again.calls] == [call.outcome for call in first.calls] == ["answered", "budget"]
    away = file.with_name("away.jsonl")
    out = Session(toy, scripted(status(401, message="bad key")), options=SHORT, tape=recording(away))
    steps = [await out.propose(step=f"i0g{number}") for number in (1, 2, 3)]
    assert len(out.server.requests) == 1, "the second was not asked"
    assert [await Session(toy, server, options=SHORT, tape=replaying(away)).propose(step="i0g3")] == steps[2:]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "line 1 is no recorded request: digest: Field required"),
        ('\n{"version": 2, "digest": "%s", "asked": {}, "answer": {}}' % ("a" * 64), "line 2 is no recorded request"),
        ("not JSON sk-secret", "Invalid JSON"),
        ("\x00" * 10, "line 1"),
    ],
)
def test_a_damaged_file_is_one_line(file: Path, text: str, said: str) -> None:
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        replaying(file)
    assert said in str(error.value) and "sk-secret" not in str(error.value) and "\n" not in str(error.value)


def test_files_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none.jsonl"):
        replaying(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot write"):
        recording(tmp_path / "no folder" / "talk.jsonl")
    with pytest.raises(UsageError, match="name a file with --replay"):
        TapeOptions(ask_missing=True)
