"""Words to a run: taken when a step begins, acknowledged, cited, answered from the trace."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until
from typer.testing import CliRunner

from foundry.agents.directives import NotUnderstood, RunQuestion, parse
from foundry.cli import app
from foundry.graph.history.replay import replay
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.inbox import Inbox
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.words.answers import answer
from foundry.graph.show.words.conversation import wait_for_acknowledgement
from foundry.graph.solve import resume, solve
from foundry.knowledge.errors import TaskError, UsageError
from foundry.knowledge.ruling import rule
from foundry.knowledge.task import Task, TaskOptions
from foundry.knowledge.thought import Directive

MakeRequest = Callable[..., SolveRequest]


def directive(line: str) -> Directive:
    """A line as `chat` posts it."""
    said = parse(line)
    assert not isinstance(said, RunQuestion)
    return said if isinstance(said, Directive) else said.directive


def post_when(condition: Callable[[Event], bool], runs: Path, *said: Directive) -> Callable[[Event], None]:
    """A listener that speaks once to the only run in `runs`, through a connection of its own, as `chat` does."""
    posted: list[int] = []

    def listen(event: Event) -> None:
        if not posted and condition(event):
            inbox = Inbox(next(runs.iterdir()) / "inbox.sqlite")
            posted.extend(inbox.post(item) for item in said)
            inbox.close()

    return listen


def first_evaluation(event: Event) -> bool:
    return event.kind == "evaluation"


async def test_a_directive_is_acknowledged_obeyed_cited_and_replayed(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", directive("@tiling tile 128 on island 1"))
    summary = await solve(make_request(24), listen, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    taken = EventLog(run.database, reading=True).read("directive")
    assert [(event.data["reader"], event.data["directive"]) for event in taken] == [("island 1", "d1")]
    assert [item.reader for item in run.inbox.acknowledgements()] == ["island 1"]
    cited = [item for item in run.decisions() if item.proposal and "d1" in item.proposal.cites]
    assert cited and all(item.island == 1 for item in cited)
    assert all(item.candidate.recipe and item.candidate.recipe.choices["k0"]["tile"] == 128 for item in cited)
    run.close()
    assert (await replay(Path(summary.run), parts())).exact


def instructed(parts: Any, instructions: str) -> Any:
    """Parts whose task has these standing instructions."""

    class Instructed(parts):  # type: ignore[misc]
        def task(self, request: SolveRequest) -> Task:
            plain: Task = super().task(request)
            return replace(plain, options=TaskOptions(instructions=instructions))

    return Instructed()


async def test_the_task_s_instructions_steer_from_the_first_step(make_request: MakeRequest, parts: Any) -> None:
    """Lines of the steering language are followed and cited."""
    summary = await solve(make_request(16), parts=instructed(parts, "@tiling tile 128"))
    run = RunDirectory.inspect(Path(summary.run))
    proposed = [item for item in run.decisions() if item.proposal]
    assert proposed and all("d1" in item.proposal.cites for item in proposed if item.proposal)
    run.close()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("Rows are short.", "the task's instructions: I do not understand 'Rows are short'."),
        ("@nobody unroll 4", "the task's instructions: There is no expert named 'nobody'"),
        ("pause", "the task's instructions: 'pause' speaks to a run, not to its experts."),
        ("@tiling blok 8", "the task's instructions, '@tiling blok 8': No tunable called blok is in this run; there"),
        ("@tiling tile 200", "the task's instructions, '@tiling tile 200': 200 is not legal here; k0.tile: 16, 32"),
    ],
)
async def test_instructions_that_cannot_be_followed_are_refused_at_the_start(
    make_request: MakeRequest, parts: Any, line: str, why: str
) -> None:
    """As chat refuses them; where a model thinks, it may follow them."""
    made = instructed(parts, f"@tiling tile 128\n{line}")
    with pytest.raises(TaskError, match=re.escape(why)):
        await solve(make_request(16), parts=made)
    assert made.machine.timed == []
    stop = asyncio.Event()
    with_model = make_request(16, model="test-model")
    summary = await solve(with_model, lambda e: stop.set() if e.kind == "evaluation" else None, stop=stop, parts=made)
    assert summary.verdict == "interrupted"


async def test_what_the_playbook_does_not_understand_is_said(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", directive("make it sing"))
    summary = await solve(make_request(12), listen, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    taken = EventLog(run.database, reading=True).read("directive")
    run.close()
    assert taken and not any(event.data["understood"] for event in taken)


async def test_what_no_kernel_can_follow_is_told_to_whoever_said_it(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    """A directive that was posted before the kernels were known is answered when an island takes it."""
    why = "200 is not legal here; k0.tile: 16, 32, 64, 128."
    said = (directive("@tiling tile 200"), directive("@tiling tile 64"))
    listen = post_when(first_evaluation, tmp_path / "runs", *said)
    summary = await solve(make_request(16), listen, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    taken = EventLog(run.database, reading=True).read("directive")
    assert {(event.data["directive"], event.data["answer"]) for event in taken} == {("d1", why), ("d2", "")}
    readers = ", ".join(event.data["reader"] for event in taken if event.data["directive"] == "d1")
    assert readers and f"d1 (@tiling tile 200): {why} ({readers})" in answer(run, RunQuestion("status"))
    assert wait_for_acknowledgement(run, 1, 0).endswith(f"\n{why} ({readers})")
    assert summary.notes == [f"d1 (@tiling tile 200): {why}"]
    run.close()


def chat(run: RunDirectory, line: str) -> tuple[int, str]:
    """What the command prints, and its exit code."""
    done = CliRunner().invoke(app, ["agent", "chat", str(run.path), line])
    return done.exit_code, done.output


async def test_chat_says_yes_only_to_what_this_run_can_follow(make_request: MakeRequest, parts: Any) -> None:
    stop = asyncio.Event()
    first = await solve(
        make_request(20), lambda event: stop.set() if event.step == "i0g2" else None, stop=stop, parts=parts()
    )
    run = RunDirectory.inspect(Path(first.run))
    for line in ("c17", "use bf16", "avoid unroll", "never mind", "try sm90", "float32", "no bias"):
        code, told = chat(run, line)
        assert code == 2 and told.startswith(f"I do not understand '{line}'.")
        assert (" A line begins with status, " in told) != (" is said like this: " in told) and "\n" not in told[:-1]
    code, told = chat(run, "@nobody unroll 4")
    assert (
        code == 2
        and told.startswith("There is no expert named 'nobody'; there are @auditor, ")
        and "\n" not in told[:-1]
    )
    code, told = chat(run, "@tiling unroll 256")
    assert code == 2 and re.match(r"256 is not legal here; k_\w+\.unroll: 1, 2, 4, 8\.\n$", told)
    code, told = chat(run, "@tiling warps 4")
    assert code == 2 and told.startswith("No tunable called warps is in this run; there are ")
    assert run.inbox.read() == []  # what is refused leaves nothing behind
    code, told = chat(run, "@tiling unroll 4")
    assert code == 0 and told.startswith(
        "d1: From the next step, the tiling expert will use unroll 4 where it is legal."
    )
    taken = "Where no tunable is called block, it stands for chunk. "
    code, told = chat(run, "@tiling block 256")
    assert code == 2 and told.startswith(f"{taken}256 is not legal here; ")
    code, told = chat(run, "@tiling block 8192")
    assert code == 0 and f"will use block 8192 where it is legal. {taken}" in told
    assert [item.text for item in run.inbox.read()] == ["@tiling unroll 4", "@tiling block 8192"]
    run.close()


async def test_with_a_model_what_no_library_kernel_can_follow_is_passed_on(
    make_request: MakeRequest, parts: Any
) -> None:
    """A model writes kernels of its own: it may follow what the library cannot."""
    stop = asyncio.Event()
    stop.set()
    first = await solve(make_request(20, model="test-model"), stop=stop, parts=parts())
    run = RunDirectory.inspect(Path(first.run))
    code, told = chat(run, "use bf16")
    assert code == 0 and told.startswith("d1: Every expert will read it as it stands.")
    run.close()


async def test_stop_finishes_with_what_there_is(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", directive("stop"))
    summary = await solve(make_request(1000), listen, parts=parts())
    assert summary.verdict == "accepted"
    assert summary.evaluations < 20
    assert "stopped by the user (d1)" in summary.ending


def resting(runs: Path) -> set[int | None]:
    """The islands of the only run in `runs` that have paused; none of a run that is only being made."""
    found = set[int | None]()
    for path in runs.glob("*/run.sqlite"):
        try:
            run = RunDirectory.inspect(path.parent)
        except UsageError:
            return found
        notes = EventLog(run.database, reading=True).read("note")
        found |= {event.island for event in notes if event.name == "paused"}
        run.close()
    return found


async def test_a_paused_run_waits_until_it_is_told_to_go_on(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", directive("pause"))
    work = asyncio.ensure_future(solve(make_request(16), listen, parts=parts()))
    await asyncio.to_thread(until, lambda: len(resting(tmp_path / "runs")) == 4, "the pause of all four islands")
    run = RunDirectory.inspect(next((tmp_path / "runs").iterdir()))
    paused_at = run.evaluation_count()
    told = answer(run, RunQuestion("status"))
    assert told.startswith(f"{run.id}: paused. ") and "waits" not in told, told
    assert answer(run, RunQuestion("directives")).startswith("d1 pause: taken by the run in i")
    listed = CliRunner().invoke(app, ["agent", "runs", "--runs", str(tmp_path / "runs"), "--json"])
    assert json.loads(listed.output)[0]["status"] == "paused"
    await asyncio.sleep(0.5)
    assert run.evaluation_count() == paused_at < 12
    assert not work.done()
    run.inbox.post(directive("resume"))
    run.close()
    summary = await work
    assert summary.evaluations >= 15
    assert (await replay(Path(summary.run), parts())).exact
    run = RunDirectory.inspect(Path(summary.run))
    heard = [event.data["directive"] for event in EventLog(run.database, reading=True).read("directive")]
    run.close()
    assert sorted(heard) == ["d1", "d2"]  # each once


async def test_more_budget_can_be_granted_while_it_runs(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    listen = post_when(first_evaluation, tmp_path / "runs", directive("budget +10 evaluations"))
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
    inbox.post(directive("@tiling tile 128"))
    inbox.close()
    await resume(Path(first.run), parts=parts())
    run = RunDirectory.inspect(Path(first.run))
    assert {item.reader for item in run.inbox.acknowledgements()} >= {"island 0", "island 1"}
    run.close()


async def test_a_directive_keeps_its_meaning_when_the_language_changes(make_request: MakeRequest, parts: Any) -> None:
    """What an earlier version understood is followed by one whose language lacks the line, also in a replay."""
    stop = asyncio.Event()
    first = await solve(
        make_request(20), lambda event: stop.set() if event.step == "i0g2" else None, stop=stop, parts=parts()
    )
    line = "@tiling the tiles shall measure 128"
    assert isinstance(parse(line), NotUnderstood)
    inbox = Inbox(Path(first.run) / "inbox.sqlite")
    number = inbox.post(Directive(0, "tiling", line, {"verb": "set", "name": "tile", "value": 128}))
    inbox.close()
    await resume(Path(first.run), parts=parts())
    run = RunDirectory.inspect(Path(first.run))
    cited = [item for item in run.decisions() if item.proposal and f"d{number}" in item.proposal.cites]
    run.close()
    assert cited and all(item.candidate.recipe and item.candidate.recipe.choices["k0"]["tile"] == 128 for item in cited)
    assert (await replay(Path(first.run), parts())).exact


async def test_a_run_of_another_format_is_refused_in_one_line(make_request: MakeRequest, parts: Any) -> None:
    stop = asyncio.Event()
    stop.set()
    first = await solve(make_request(20), stop=stop, parts=parts())
    run = RunDirectory.inspect(Path(first.run))
    run.set("format", "2")
    code, told = chat(run, "status")
    run.close()
    assert code == 2 and told.strip().splitlines()[-1].startswith("foundry: ")
    assert "has run format 2, this version reads " in told and "use the version that wrote it" in told


async def test_questions_are_answered_from_the_trace(make_request: MakeRequest, parts: Any) -> None:
    summary = await solve(make_request(24), parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    status = answer(run, RunQuestion("status"))
    assert f"{summary.evaluations} of 24 evaluations" in status
    assert f"Best: {summary.candidate}" in status
    assert answer(run, RunQuestion("best")).startswith(f"{summary.candidate} was made from c")
    failed = next(item for item, _ in run.evaluations() if not rule(item).accepted)
    why = answer(run, RunQuestion("why", failed.candidate.id))
    assert "did not compile: error: too many registers" in why or "rejected, wrong result: row 0 differs" in why
    assert "expert proposed" in why
    assert "0 tokens" in answer(run, RunQuestion("cost"))
    unknown = f"run {run.id} has no candidate c9999 (see `foundry agent trace`)\n"
    for line in ("why c9999", "show c9999", f"diff {summary.candidate} c9999", f"diff c9999 {summary.candidate}"):
        assert chat(run, line) == (2, unknown), line
    run.close()
