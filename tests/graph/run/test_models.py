"""Runs with several models: a model for each expert, and a choice among several by what each brings for its price."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chat.scripted_server import Reply, ScriptedServer, answer
from tests.graph.conftest import kernel
from tests.graph.run.test_thinking import events_of, idea, thinker

from foundry.agents.chat.options import ChatOptions, TapeOptions
from foundry.agents.chat.tape import NotRecorded
from foundry.agents.models.models import Models, ModelSpec
from foundry.graph.history.replay import replay
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import Summary, summarise
from foundry.graph.show.view import RunView
from foundry.graph.show.words.answers import status
from foundry.graph.show.words.ending import ending_lines
from foundry.graph.solve import solve

MakeRequest = Callable[..., SolveRequest]
NONSENSE = answer("I would rather not.")
PRICED = ChatOptions(2000, price=(1.0, 4.0), tool_calls=0)


def asked_of(server: ScriptedServer, model: str) -> list[str]:
    """The system prompts of the requests to a model."""
    return [str(asked["messages"][0]["content"]) for asked in server.requests if asked["model"] == model]


async def test_each_expert_thinks_with_its_own_model(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any
) -> None:
    """The author's kernel does not compile; the strong model repairs it, and judges the winner."""
    broken = kernel(64, 8) + "class ModelNew:\n    pass\n"
    proposal = {"rationale": "tiles", "expected": "1.1x", "moves": [], "edits": [], "cites": []}

    def author(asked: dict[str, Any]) -> Reply:
        if asked["model"] == "cheap-1":
            return answer({**proposal, "source": broken})
        system = str(asked["messages"][0]["content"])
        if "auditor" in system.splitlines()[0]:
            return answer({"judgement": "It computes.", "doubt": False, "reason": ""})
        return answer({**proposal, "edits": [{"old": '"unroll": 8', "new": '"unroll": 4'}], "source": ""})

    server = serve(author)
    models = Models(
        (
            ModelSpec("cheap", "cheap-1", server.url, options=PRICED),
            ModelSpec("strong", "strong-1", server.url, options=PRICED),
        ),
        ("cheap",),
        {"diagnostician": ("strong",), "auditor": ("strong",)},
    )
    request = replace(make_request(2, islands=1), models=models)
    summary = await solve(request, parts=thinker(parts, library))
    assert summary.verdict == "accepted" and summary.brain == "cheap+strong"
    assert all("diagnostician" not in text and "auditor" not in text for text in asked_of(server, "cheap-1"))
    experts = {
        line.split("# You are the ")[1] for text in asked_of(server, "strong-1") for line in text.splitlines()[:1]
    }
    assert experts == {"debugging diagnostician", "anti-cheat auditor"}
    run = RunDirectory.inspect(Path(summary.run))
    assert [item.proposal.brain for item in run.decisions() if item.proposal] == ["cheap", "strong"]
    run.close()
    assert (await replay(Path(summary.run), thinker(parts, library))).exact


async def test_of_two_models_the_one_that_brings_something_is_asked_more(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any
) -> None:
    numbers = iter(range(1000))
    server = serve(lambda asked: NONSENSE if asked["model"] == "idle-1" else idea(next(numbers)))
    models = Models(
        tuple(ModelSpec(name, f"{name}-1", server.url, options=PRICED) for name in ("idle", "busy")), ("idle", "busy")
    )
    request = replace(make_request(10, islands=2), models=models, strategies=("bandit",))
    summary = await solve(request, parts=thinker(parts, library))
    chosen = [event.data for event in events_of(summary, "note") if event.name == "model chosen"]
    late = [data["model"] for data in chosen[len(chosen) // 2 :]]
    assert late.count("busy") > late.count("idle")
    assert "busy drew" in chosen[-1]["reason"] and "dollars" in chosen[-1]["reason"]
    idle, busy = summary.models
    assert (idle.kernels, idle.gain) == (0, 0.0) and busy.kernels >= 8 and busy.gain > 0.0
    assert idle.dollars + busy.dollars == pytest.approx(summary.dollars)
    assert any(line.startswith("model busy: ") for line in ending_lines(summary, "task.py"))
    run = RunDirectory.inspect(Path(summary.run))
    assert f"Model {idle.words}." in status(RunView(run)) and summarise(run).models == summary.models
    run.close()
    asked = len(server.requests)
    assert (await replay(Path(summary.run), thinker(parts, library))).exact
    assert len(server.requests) == asked


async def test_a_recorded_run_is_thought_again_from_its_tape_on_its_own_journal(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any, tmp_path: Path
) -> None:
    """Three islands side by side: what each was shown is what it was shown then, whoever is faster this time."""
    numbers = iter(range(1000))
    server = serve(lambda asked: replace(idea(next(numbers)), wait_s=0.01 * random.random()))
    tape = tmp_path / "talk.jsonl"
    request = make_request(9, islands=3, model="scripted-1", base_url=server.url, tape=TapeOptions(record=str(tape)))
    request = replace(request, learn=True, store=str(tmp_path / "store"), limits=RunLimits(9, calls=10))
    summary = await solve(request, parts=thinker(parts, library))
    asked = len(server.requests)
    assert summary.evaluations == 9 and asked == 10, "the cap leaves the auditor without an answer"
    again = await replay(Path(summary.run), thinker(parts, library), tape=tape)
    assert again.exact and again.decisions >= 9 and len(server.requests) == asked
    other = tmp_path / "other.jsonl"
    other.write_text(tape.read_text().replace("1.1x", "9x"))
    with pytest.raises(NotRecorded):  # the tape is what thinks: other words lead elsewhere
        await replay(Path(summary.run), thinker(parts, library), tape=other)


async def test_a_second_run_with_the_same_seed_and_measurements_repeats_the_first_from_its_tape(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any, tmp_path: Path
) -> None:
    numbers = iter(range(1000))
    server = serve(lambda asked: idea(next(numbers)))
    tape = str(tmp_path / "talk.jsonl")
    request = make_request(5, islands=1, model="scripted-1", base_url=server.url)
    first = await solve(replace(request, tape=TapeOptions(record=tape)), parts=thinker(parts, library))
    asked = len(server.requests)
    again = await solve(replace(request, tape=TapeOptions(replay=tape)), parts=thinker(parts, library))
    assert texts_of(again) == texts_of(first) and len(texts_of(first)) == 5 and len(server.requests) == asked
    with pytest.raises(NotRecorded, match="holds no answer"):  # another task, another prompt
        await solve(replace(request, task="other.py", tape=TapeOptions(replay=tape)), parts=thinker(parts, library))
    assert len(server.requests) == asked


def texts_of(summary: Summary) -> list[str]:
    run = RunDirectory.inspect(Path(summary.run))
    found = [item.candidate.source for item in run.decisions() if item.proposal]
    run.close()
    return found


@pytest.mark.parametrize("rivals", [("eager", "compile"), ()], ids=["compile", "no compile"])
async def test_a_model_is_told_what_torch_compile_takes_once_it_is_known(
    make_request: MakeRequest, parts: Any, library: Any, serve: Any, rivals: Any
) -> None:
    numbers = iter(range(1000))
    server = serve(lambda asked: replace(idea(next(numbers)), wait_s=0.05))
    request = make_request(4, islands=1, model="scripted-1", base_url=server.url, rivals=rivals)
    summary = await solve(request, parts=thinker(parts, library))
    told = "torch.compile takes 8 ms, 1.25 times as fast as eager" in server.prompt(3)
    assert told is bool(rivals) and summary.evaluations == 4
    assert [event.name for event in events_of(summary, "tool")].count("rivals") == bool(rivals)
    assert (await replay(Path(summary.run), thinker(parts, library))).exact
