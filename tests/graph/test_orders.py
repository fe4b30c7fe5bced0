"""Orders about candidates, islands and models: what a user says is done, acknowledged, told and replayed."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.graph.test_resume import CHILD, kill_when

from foundry.agents.models.models import models_for, one_model
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.history.replay import replay
from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.inbox import Inbox
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.words.conversation import Reply, say
from foundry.graph.solve import resume, solve
from foundry.knowledge.codec import encode

MakeRequest = Callable[..., SolveRequest]
ROOT = Path(__file__).resolve().parents[2]
SUMMIT = '# kernel [["online"], {"tile": 64, "unroll": 4, "vector": 16, "threads": 2}]'


def speak_at(runs: Path, lines: dict[int, list[str]], parts: Any, replies: list[Reply]) -> Callable[[Event], None]:
    """A listener that says lines to the only run in `runs` once so many candidates of islands are evaluated."""
    count = 0

    def listen(event: Event) -> None:
        nonlocal count
        if event.kind != "evaluation" or event.island is None or event.island < 0:
            return
        count += 1
        run = RunDirectory.inspect(next(runs.iterdir()))
        replies.extend(say(run, line, parts) for line in lines.pop(count, ()))
        run.close()

    return listen


async def run_saying(
    make_request: MakeRequest, parts: Any, tmp_path: Path, lines: dict[int, list[str]], **request: Any
) -> tuple[RunDirectory, list[Reply]]:
    """A run of 24 evaluations to which these lines are said."""
    replies: list[Reply] = []
    listen = speak_at(tmp_path / "runs", lines, parts, replies)
    summary = await solve(make_request(**request), listen, parts=parts)
    return RunDirectory.inspect(Path(summary.run)), replies


async def test_a_file_is_tried_and_candidates_are_started_from_and_frozen(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(f"{SUMMIT}\nclass ModelNew: ...\n")
    lines = {1: [f"try {mine}"], 3: ["freeze c1", "start from c2 on island 1"]}
    run, replies = await run_saying(make_request, parts(), tmp_path, lines, evaluations=14, islands=2)
    assert all(reply.understood for reply in replies)
    (made,) = (item for item in run.decisions() if item.proposal and item.proposal.expert == "user")
    assert made.candidate.origin == "user" and run.text(made.candidate.source) == mine.read_text()
    assert made.candidate.id in run.ranking(3), "the file is as fast as any"
    told = say(run, "directives", parts()).text.splitlines()
    assert told[0].startswith(f"d1 try {mine} (island ") and f"taken by @user in {made.step} -> c" in told[0]
    assert "(+" in told[0] and re.match(r"d2 freeze c1: taken by islands (0, 1|1, 0) in i", told[1])
    assert told[2].startswith("d3 start from c2 on island 1: taken by @") and " in i1g" in told[2]
    taken = {(item.directive, item.reader): item.step for item in run.inbox.acknowledgements()}
    after = {item.step: item for item in run.decisions()}
    (begun,) = [event for event in EventLog(run.database, reading=True).read("proposal") if "d3" in event.data["cites"]]
    assert begun.data["parent"] == "c2" and begun.island == 1, "also where the step that took it made what was known"
    order = [item.step for item in run.decisions()]
    for island in (0, 1):
        heard = int(taken[2, f"island {island}"].partition("g")[2])
        after_it = [f"i{island}g{number}" for number in range(heard, 99)]  # the step itself may have made nothing new
        later = order[next(place for place, step in enumerate(order) if step in after_it) :]
        assert not [
            step for step in later if step.startswith(f"i{island}") and after[step].candidate.parents == ("c1",)
        ]
    path = run.path
    run.close()
    assert (await replay(path, parts())).differences == ()


async def test_an_island_is_added_another_stops_and_one_gets_another_role(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    lines = {2: ["add island memory", "role algorithm on island 0"], 8: ["stop island 1"]}
    run, replies = await run_saying(make_request, parts(), tmp_path, lines, evaluations=22, islands=2)
    assert [reply.understood for reply in replies] == [True] * 3
    by_island = {number: [item for item in run.decisions() if item.island == number] for number in range(3)}
    assert len(by_island[2]) > 3 and len(by_island[1]) < len(by_island[0])
    notes = EventLog(run.database, reading=True).read("note")
    roles = {event.island: event.data["role"] for event in notes if event.name == "role"}
    assert roles == {0: "algorithm", 2: "memory"}
    reasons = {event.island: event.data["reason"] for event in notes if event.name == "island ends"}
    assert reasons[1] == "stopped by the user (d3)" and reasons[0] == "budget: 22 evaluations"
    path = run.path
    run.close()
    assert (await replay(path, parts())).differences == ()


async def test_what_is_taken_back_is_followed_no_more(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    lines = {1: ["@tiling tile 128", "budget +8"], 5: ["withdraw d1", "withdraw d2"]}
    run, _ = await run_saying(make_request, parts(), tmp_path, lines, evaluations=16, islands=1)
    cited = [item.step for item in run.decisions() if item.proposal and "d1" in item.proposal.cites]
    order = [item.step for item in run.decisions() if item.island == 0]
    taken = {item.directive: item.step for item in run.inbox.acknowledgements()}
    assert cited and order.index(cited[-1]) < order.index(taken[3])
    assert run.evaluation_count() <= 18
    assert "d1 @tiling tile 128: was taken back" in say(run, "directives", parts()).text
    run.close()


async def test_what_is_said_too_late_is_told_so(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    said: list[Reply] = []

    def listen(event: Event) -> None:
        if (event.kind, event.name) == ("node", "compare") and not said:
            run = RunDirectory.inspect(next((tmp_path / "runs").iterdir()))
            said.append(say(run, "budget +20", parts()))
            run.close()

    summary = await solve(make_request(4, islands=1), listen, parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    told = "d1 budget +20: cannot be followed by the run: the search had ended before it could be taken"
    assert say(run, "directives", parts()).text == told and summary.notes[-1].startswith("d1 (budget +20): the search")
    run.close()


async def test_another_model_thinks_when_the_user_says_so(
    make_request: MakeRequest, parts: Any, library: Any, tmp_path: Path
) -> None:
    """It is opened at the step that takes the word, and a run that goes on or is replayed knows of it."""
    opened: list[str] = []

    class Named(type(parts())):  # type: ignore[misc]
        def brain(self, request: SolveRequest, *_: Any) -> PlaybookBrain:
            opened.append(request.models.title)
            return PlaybookBrain(library())

    lines = {2: ["model other-1"], 5: ["model playbook"]}
    models = {"models": one_model("first-1", "http://127.0.0.1:9/v1")}
    run, _ = await run_saying(make_request, Named(), tmp_path, lines, evaluations=12, islands=1, **models)
    assert opened == ["first-1", "other-1", "playbook"] and run.get("brain") == "playbook" and not run.request.models
    spec = models_for(models["models"], "other-1").specs[0]
    assert (spec.model, spec.base_url) == ("other-1", "http://127.0.0.1:9/v1")
    path = run.path
    run.close()
    assert (await replay(path, Named())).differences == ()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("try nothing.py", "nothing.py cannot be read: No such file"),
        ("try {here}", "has no class ModelNew"),
        ("start from c99", "no candidate c99"),
        ("freeze c99", "no candidate c99"),
        ("role memory", "Name the island"),
        ("pause island 7", "There is no island 7: this run has islands 0 to 1."),
        ("withdraw d9", "There is no d9"),
        ("model nobody-1", "OPENAI_API_KEY"),
    ],
)
def test_what_cannot_be_done_is_refused_before_it_is_recorded(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, why: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "empty.py").touch()
    run = RunDirectory.create(make_request(islands=2))
    reply = say(run, line.format(here=tmp_path / "empty.py"))
    assert not reply.understood and why in reply.text and run.inbox.read() == []
    run.close()


async def test_questions_about_kernels_and_steps_are_answered_with_references(
    make_request: MakeRequest, parts: Any
) -> None:
    summary = await solve(make_request(16, islands=2), parts=parts())
    run = RunDirectory.inspect(Path(summary.run))
    told = say(run, "tried unroll", parts()).text.splitlines()
    assert " steps about unroll, " in told[0] and len(told) > 1
    assert all(" -> c" in line and "unroll" in line and line.startswith("i") for line in told[1:])
    assert "No step has had to do with 'swizzle' yet." in say(run, "tried swizzle", parts()).text
    shown = say(run, f"show {summary.candidate}", parts()).text
    assert shown.startswith(f"{summary.candidate} was made from") and "# kernel [" in shown
    lines = say(run, f"diff c1 {summary.candidate}", parts()).text.splitlines()
    assert f"--- {summary.candidate}" in lines and "+++ c1" in lines
    assert any(line.endswith(" in k0") and " -> " in line for line in lines)
    run.close()


@pytest.mark.slow
async def test_a_thousand_words_of_four_processes_are_each_taken_once_and_soon(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    """In the order in which each process said them, none lost over kill -9 and resume; an island finishes at most the
    evaluation that it has begun before it takes what was said, and there are eight of them."""
    request = make_request(400, islands=8, effort="deep")
    log, conftest = tmp_path / "log", Path(__file__).with_name("conftest.py")
    lines = {voice: [f"@tiling avoid unroll {1000 * voice + number}" for number in range(250)] for voice in range(1, 5)}
    voices: list[subprocess.Popen[str]] = []

    def is_time() -> bool:
        runs = list(tmp_path.glob("runs/*/inbox.sqlite"))
        if not runs or len(log.read_text().splitlines()) < 40:
            return False
        if not voices:
            command = [sys.executable, "-m", "foundry.cli", "agent", "chat", str(runs[0].parent)]
            for said in lines.values():
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
                voice = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)  # type: ignore[call-overload]
                voice.stdin.write("\n".join(said))
                voice.stdin.close()
                voices.append(voice)
        inbox = Inbox(runs[0], reading=True)
        taken, posted = {item.directive for item in inbox.acknowledgements()}, len(inbox.read())
        inbox.close()
        return posted > 500 and bool(taken)

    path = kill_when(is_time, log, request, CHILD, str(conftest), encode(request), str(log))
    assert [voice.wait(60) for voice in voices] == [0] * 4
    stop = asyncio.Event()
    inbox = Inbox(path / "inbox.sqlite", reading=True)
    readers = {item.reader for item in inbox.acknowledgements() if item.directive == 1000}
    inbox.close()

    def until_all_have_heard(event: Event) -> None:
        """The last word: in a step that the kill had cut off, an island takes again only what it had read."""
        if event.kind == "directive" and event.data["directive"] == "d1000":
            readers.add(event.data["reader"])
        if event.kind == "evaluation" and len(readers) == 8:
            stop.set()

    await resume(path, until_all_have_heard, stop=stop, parts=parts())
    run = RunDirectory.inspect(path)
    said = [item.text for item in run.inbox.read()]
    assert len(said) == 1000
    for voice, own in lines.items():
        assert [text for text in said if text.split()[-1].startswith(str(voice))] == own
    taken = Counter((item.directive, item.reader) for item in run.inbox.acknowledgements())
    assert len(taken) == 8000 and set(taken.values()) == {1}
    events = EventLog(run.database, reading=True).read()
    told = Counter((event.data["directive"], event.data["reader"]) for event in events if event.kind == "directive")
    assert len(told) == 8000 and set(told.values()) == {1}
    posted = run.inbox.posted()
    for island in range(8):
        heard = {item.directive: item.at for item in run.inbox.acknowledgements() if item.reader == f"island {island}"}
        ended = [event.started for event in events if event.kind == "evaluation" and event.island == island]
        late = [number for number, at in heard.items() if sum(posted[number] < end < at for end in ended) > 1]
        assert not late, "more than one evaluation passed before it was taken"
    run.close()
