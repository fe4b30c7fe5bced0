"""Words to a run: taken at a safe boundary, acknowledged, cited, answered from the trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from foundry.graph.answers import answer
from foundry.graph.events import Event, EventLog
from foundry.graph.inbox import Inbox
from foundry.graph.replay import replay
from foundry.graph.request import SolveRequest
from foundry.graph.run_directory import RunDirectory
from foundry.graph.solve import resume, solve
from foundry.knowledge.task import Task, TaskOptions

MakeRequest = Callable[..., SolveRequest]


def post_when(condition: Callable[[Event], bool], runs: Path, *lines: str) -> Callable[[Event], None]:
    """A listener that speaks once to the only run in `runs`, through a connection of its own, as `chat` does."""
    said: list[int] = []

    def listen(event: Event) -> None:
        if not said and condition(event):
            inbox = Inbox(next(runs.iterdir()) / "inbox.sqlite")
            said.extend(inbox.post(line) for line in lines)
            inbox.close()

    return listen


def first_evaluation(event: Event) -> bool:
    return event.kind == "evaluation"


async def test_a_directive_is_acknowledged_obeyed_cited_and_replayed(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", "@tiling tile 128 on island 1")
    summary = await solve(make_request(24), listen, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    taken = EventLog(run.database, reading=True).read(kind="directive")
    assert [(event.data["reader"], event.data["directive"]) for event in taken] == [("island 1", "d1")]
    assert [item.reader for item in run.inbox.acknowledgements()] == ["island 1"]
    cited = [item for item in run.decisions() if item.proposal and "d1" in item.proposal.cites]
    assert cited and all(item.island == 1 for item in cited)
    assert all(item.candidate.recipe and item.candidate.recipe.choices["k0"]["tile"] == 128 for item in cited)
    run.close()
    assert (await replay(Path(summary.run), parts())).exact


async def test_the_task_s_instructions_steer_from_the_first_step(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    """Lines of the steering language are followed and cited; free text is not silently ignored."""

    class Instructed(type(parts())):  # type: ignore[misc]
        def task(self, request: SolveRequest) -> Task:
            options = TaskOptions(instructions="@tiling tile 128\nRows are short.")
            plain: Task = super().task(request)
            return replace(plain, options=options)

    summary = await solve(make_request(16), parts=Instructed())
    run = RunDirectory.inspect(Path(summary.run))
    proposed = [item for item in run.decisions() if item.proposal]
    assert proposed and all("d1" in item.proposal.cites for item in proposed if item.proposal)
    assert any("Rows are short." in note for note in summary.notes)
    run.close()


async def test_what_the_playbook_does_not_understand_is_said(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", "make it sing")
    summary = await solve(make_request(12), listen, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    taken = EventLog(run.database, reading=True).read(kind="directive")
    run.close()
    assert taken and not any(event.data["understood"] for event in taken)


async def test_stop_finishes_with_what_there_is(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", "stop")
    summary = await solve(make_request(1000), listen, parts=parts())
    assert summary.verdict == "accepted"
    assert summary.evaluations < 20
    assert "stopped by the user (d1)" in summary.ending


async def test_a_paused_run_waits_until_it_is_told_to_go_on(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", "pause")
    work = asyncio.ensure_future(solve(make_request(16), listen, parts=parts()))
    await asyncio.sleep(1.2)
    run = RunDirectory.inspect(next((tmp_path / "runs").iterdir()))
    paused_at = run.evaluation_count()
    await asyncio.sleep(0.5)
    assert run.evaluation_count() == paused_at < 12
    assert not work.done()
    run.inbox.post("resume")
    run.close()
    summary = await work
    assert summary.evaluations >= 15


async def test_more_budget_can_be_granted_while_it_runs(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", "budget +10 evaluations")
    summary = await solve(make_request(12), listen, parts=parts())
    assert 20 <= summary.evaluations <= 26


async def test_words_said_while_a_run_is_stopped_are_taken_when_it_resumes(
    make_request: MakeRequest, parts: Any
) -> None:
    stop = asyncio.Event()
    first = await solve(
        make_request(20), lambda event: stop.set() if event.step == "i0g2" else None, stop=stop, parts=parts()
    )
    inbox = Inbox(Path(first.run) / "inbox.sqlite")
    inbox.post("@tiling tile 128")
    inbox.close()
    await resume(Path(first.run), parts=parts())
    run = RunDirectory.inspect(Path(first.run))
    assert {item.reader for item in run.inbox.acknowledgements()} >= {"island 0", "island 1"}
    run.close()


async def test_questions_are_answered_from_the_trace(make_request: MakeRequest, parts: Any) -> None:
    summary = await solve(make_request(24), parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    status = answer(run, "status") or ""
    assert f"{summary.evaluations} of 24 evaluations" in status
    assert f"Best: {summary.candidate}" in status
    assert (answer(run, "best") or "").startswith(f"{summary.candidate} was made from c")
    failed = next(item for item, _ in run.evaluations() if not item.accepted)
    why = answer(run, f"why {failed.candidate.id}?") or ""
    assert "did not compile: error: too many registers" in why or "rejected as wrong_result: row 0 differs" in why
    assert "expert proposed" in why
    assert "0 tokens" in (answer(run, "cost") or "")
    assert answer(run, "why c9999") == f"run {run.id} has no candidate c9999 (see `foundry agent trace`)"
    assert answer(run, "what is love") is None
    run.close()
