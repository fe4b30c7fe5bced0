"""`--ask`: a person decides before a paid model starts, before the budget grows, before the winner is exported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import ScriptedServer, answer
from tests.graph.search.test_tools import Calling
from tests.waiting import PATIENCE_S

from foundry.agents.chat.options import ChatOptions
from foundry.graph.history.replay import replay
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.show.words.questions import asker_of
from foundry.graph.solve import resume, solve

MakeRequest = Callable[..., SolveRequest]


class Person:
    """Answers in order, None once there are no answers left; notes what was asked."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, question: str) -> bool | None:
        self.asked.append(question)
        return self.answers.pop(0) if self.answers else None


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    started = ScriptedServer([answer("I would rather not.")]).start()
    yield started
    started.stop()


async def test_a_run_asks_for_more_budget_and_before_it_exports_and_waits_across_an_exit(
    make_request: MakeRequest, parts: Any
) -> None:
    request = make_request(8, islands=2, ask=True)
    person = Person(True)  # more budget, once; at the second question nobody is there
    halted = await solve(request, parts=parts(), asker=person)
    assert (halted.verdict, halted.kernel) == ("interrupted", None) and 8 < halted.evaluations <= 13
    assert "search on with 4 more evaluations" in person.asked[0] and halted.question == person.asked[1]
    said = ending_lines(halted, request.task)
    assert said[0] == f"the run asks: {halted.question}" and f"resume {halted.run} --yes | --no" in said[1]
    path = Path(halted.run)
    again = Person(False, True)  # no more budget; export it
    summary = await resume(path, parts=parts(), asker=again)
    assert (
        again.asked[0].startswith("the budget is used up")
        and f"{summary.candidate} is proven" in again.asked[1]
        and "export it" in again.asked[1]
    )
    assert summary.verdict == "accepted" and summary.kernel and not summary.question
    assert summary.evaluations == halted.evaluations
    assert (await replay(path, parts())).exact


async def test_a_winner_that_nobody_wants_is_not_exported(make_request: MakeRequest, parts: Any) -> None:
    person = Person(False, False)
    summary = await solve(make_request(6, islands=1, ask=True), parts=parts(), asker=person)
    assert (summary.verdict, summary.kernel, summary.receipt) == ("nothing accepted", None, None)
    assert len(person.asked) == 2 and "the user did not want it exported" in summary.ending
    assert (await replay(Path(summary.run), parts())).exact


async def test_a_refused_model_is_never_asked_and_the_playbook_thinks_after_a_resume_too(
    make_request: MakeRequest, server: ScriptedServer
) -> None:
    request = make_request(6, islands=1, ask=True, model="scripted-1", base_url=server.url)
    person = Person(False)
    halted = await solve(request, parts=Calling(), asker=person)
    assert "scripted-1 at http://127" in person.asked[0] and "without a cap" in person.asked[0]
    assert halted.brain == "playbook" and len(person.asked) == 2
    summary = await resume(Path(halted.run), parts=Calling(), asker=Person(True, False, True))
    assert summary.verdict == "accepted" and summary.brain == "playbook" and server.requests == []
    assert (await replay(Path(summary.run), Calling())).exact and server.requests == []


@pytest.mark.parametrize("free", [True, False])
async def test_only_a_model_that_may_cost_something_is_asked_about(
    make_request: MakeRequest, server: ScriptedServer, free: bool
) -> None:
    chat = ChatOptions(price=(0.0, 0.0)) if free else ChatOptions(price=(1.0, 2.0))
    request = make_request(2, islands=1, ask=True, model="scripted-1", base_url=server.url, chat=chat)
    person = Person()
    halted = await solve(request, parts=Calling(), asker=person)
    assert ("may it think?" in person.asked[0]) is not free
    run = RunDirectory.inspect(Path(halted.run))
    assert (run.evaluation_count() > 0) is free
    run.close()


async def test_nobody_is_asked_who_did_not_want_to_be(make_request: MakeRequest, parts: Any) -> None:
    person = Person()
    summary = await solve(make_request(6, islands=1), parts=parts(), asker=person)
    assert summary.verdict == "accepted" and person.asked == []


@pytest.mark.parametrize(("typed", "meant"), [(b"maybe\ny\n", True), (b"n\n", False), (b"\x04", None)])
async def test_the_terminal_answers_with_y_or_n(
    typed: bytes, meant: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "r+b", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stderr", _Printed(terminal))
        ask = asker_of(None, contextlib.nullcontext)
        asked = asyncio.ensure_future(ask("export it?"))
        for line in typed.splitlines(keepends=True):
            await asyncio.sleep(0.02)
            os.write(ours, line)
        assert await asyncio.wait_for(asked, PATIENCE_S) is meant
        assert b"export it? [y/n]" in os.read(ours, 4096)
    os.close(ours)


class _Printed:
    """Standard error on the same terminal."""

    def __init__(self, terminal: Any) -> None:
        self.terminal = terminal

    def write(self, text: str) -> None:
        self.terminal.write(text.encode())

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        return True


async def test_flags_answer_all_questions_or_the_first() -> None:
    yes, no = asker_of(True, contextlib.nullcontext), asker_of(False, contextlib.nullcontext)
    assert [await yes("a"), await yes("b")] == [True, True]
    assert [await no("a"), await no("b")] == [False, None]  # no terminal here
