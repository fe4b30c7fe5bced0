"""Talking to the experts of a run and reading what they did."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, until

from .conftest import TOY, Cli, Done, Solved, interrupt, rows

SEARCH = ("--evaluations", "200", "--minutes", "20", "--islands", "2", "--no-learn")


@dataclass
class Talk:
    """What was said while a run searched."""

    run: Path
    cli: Cli
    steered: Done
    status: Done
    why: Done
    nonsense: Done
    piped: Done
    ended: Done


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[Talk]:
    """One conversation with a running search, ended by Ctrl-C once a proposal followed the directive."""
    cli = Cli(tmp_path_factory.mktemp("talk"), home)
    cli.write("toy.py", TOY)
    child = cli.start("agent", "solve", "toy.py", *SEARCH)
    run: Path = until(lambda: next(cli.folder.glob("runs/toy-*/run.sqlite"), None), "a run").parent
    until(lambda: rows(run, "SELECT 1 FROM evaluations WHERE island >= 0"), "an island's first candidate")
    steered = cli.here("agent", "chat", "last", "--wait", "60", "@tiling", "unroll", "2")
    status = cli.here("agent", "chat", "last", "status")
    why = cli.here("agent", "chat", "last", "why c1?")
    nonsense = cli.here("agent", "chat", "last", "make it so")
    piped = cli("agent", "chat", "last", stdin="best\ncost\n\nexit\nnever read\n")
    until(lambda: _citing(run), "a proposal that follows d1")
    ended = interrupt(child)
    yield Talk(run, cli, steered, status, why, nonsense, piped, ended)
    cli.close()


def _citing(run: Path) -> list[str]:
    """Evaluated candidates whose proposals cite the first directive."""
    joined = "SELECT DISTINCT d.body FROM decisions d JOIN evaluations e ON e.candidate = d.candidate"
    found = [json.loads(body) for (body,) in rows(run, joined)]
    return [item["candidate"]["id"] for item in found if item["proposal"] and "d1" in item["proposal"]["cites"]]


def test_a_directive_is_recorded_acknowledged_and_cited(talk: Talk) -> None:
    assert talk.steered.code == 0
    said, taken = talk.steered.out.splitlines()
    assert said.startswith("d1: ") and "tiling" in said and "unroll 2" in said
    assert taken.startswith("d1 taken by island")
    events = talk.cli.here("agent", "trace", talk.run.name, "--json").out.splitlines()
    heard = [event for event in map(json.loads, events) if event["kind"] == "directive"]
    assert heard and heard[0]["data"]["text"] == "@tiling unroll 2"
    cited = _citing(talk.run)[0]
    assert "It follows d1" in talk.cli.here("agent", "trace", talk.run.name, "-c", cited).out
    assert "It follows d1" in talk.cli.here("agent", "chat", talk.run.name, f"why {cited}").out


def test_questions_are_answered_from_the_trace(talk: Talk) -> None:
    assert talk.status.code == 0 and "at work" in talk.status.out and "of 200 evaluations" in talk.status.out
    assert talk.why.code == 0 and talk.why.out.startswith("c1 is the kernel compiler's first kernel.")
    assert talk.piped.code == 0
    assert "eager" in talk.piped.out and "0.0000 dollars" in talk.piped.out and "never" not in talk.piped.out


def test_nonsense_is_told_what_is_understood(talk: Talk) -> None:
    assert talk.nonsense.code == 2
    assert "make it so" in talk.nonsense.out and "A line begins with status, " in talk.nonsense.out
    unknown = talk.cli.here("agent", "chat", talk.run.name, "why c9999")
    assert unknown.code == 2 and "no candidate c9999" in unknown.out


def test_what_is_said_to_a_stopped_run_waits_for_it(talk: Talk) -> None:
    assert talk.ended.code == 130
    said = talk.cli.here("agent", "chat", talk.run.name, "@tiling unroll 4")
    assert said.code == 0 and f"foundry agent resume runs/{talk.run.name}" in said.out
    assert "d2 waits" in talk.cli.here("agent", "chat", talk.run.name, "status").out


def test_what_is_said_to_a_finished_run_is_not_promised_to_anybody(solved: Solved) -> None:
    name = Path(solved.second.json["run"]).name
    said = solved.cli.here("agent", "chat", name, "--wait", "30", "@tiling unroll 4")
    assert said.code == 0 and "finished" in said.out and "toy.toml" in said.out
    assert solved.cli.here("agent", "chat", name, "best").out.startswith(solved.second.json["candidate"])


@pytest.mark.slow
def test_a_run_goes_on_from_a_step_with_other_words(talk: Talk) -> None:
    limits = ("--evaluations", "2", "--minutes", "0.3")
    done = talk.cli("agent", "fork", f"{talk.run.name}@i0g1", "--say", "@tiling unroll 4", *limits, "--json")
    assert done.code == 0 and f" goes on from {talk.run.name}@i0g1" in done.err
    name = Path(done.json["run"]).name
    told = talk.cli.here("agent", "compare", talk.run.name, name)
    assert told.code == 0 and f"{name} is a fork of {talk.run.name}, from before i0g1." in told.out
    assert f"Only {name} was told: @tiling unroll 4" in told.out and "It brought " in told.out
    assert talk.cli.here("agent", "fork", f"{talk.run.name}@i9g9").is_one_line("has no step i9g9")


def test_the_tree_names_nodes_tools_and_where_time_went(solved: Solved) -> None:
    tree = solved.cli.here("agent", "trace", solved.run.name, "--depth", "3")
    assert (tree.code, tree.err) == (0, "")
    for word in ("node intake", "node capture", "node baseline", "tool build", "island 0", "expert auditor"):
        assert word in tree.out
    for word in ("checking", "timing"):
        assert word in tree.out


def test_every_event_is_a_line_of_json(solved: Solved) -> None:
    done = solved.cli.here("agent", "trace", "last", "--json")
    events = [json.loads(line) for line in done.out.splitlines()]
    assert {"node", "tool", "evaluation"} <= {event["kind"] for event in events}
    assert all(event["ended"] is None or event["ended"] >= event["started"] for event in events)


def test_one_candidates_story_and_its_difference(talk: Talk) -> None:
    child = _citing(talk.run)[0]
    story = talk.cli.here("agent", "trace", talk.run.name, "--candidate", child)
    assert story.code == 0 and "The tiling expert proposed " in story.out and "lineage:" in story.out
    diff = talk.cli.here("agent", "trace", talk.run.name, "--diff", child)
    # Which tunable moves depends on the parent: one that already unrolls by 2 follows the directive by keeping it.
    assert diff.code == 0 and re.search(r"^\w+ \S+ -> \S+ in k_\w+$", diff.out, re.MULTILINE)
    assert "--- c" in diff.out and f"+++ {child}" in diff.out
    assert "seed" in talk.cli.here("agent", "trace", talk.run.name, "--diff", "c1").out
    assert talk.cli.here("agent", "trace", talk.run.name, "-c", "c9999").is_one_line("c9999")


def test_a_reader_that_leaves_early_is_no_error(solved: Solved) -> None:
    child = solved.cli.start("agent", "trace", solved.run.name, "--json")
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    assert child.wait(PATIENCE_S) == 1


def test_runs_are_listed_newest_first(solved: Solved) -> None:
    listed = solved.cli.here("agent", "runs", "--json").json
    assert {row["id"] for row in listed} == {Path(done.json["run"]).name for done in (solved.first, solved.second)}
    assert [row["created"] for row in listed] == sorted((row["created"] for row in listed), reverse=True)
    assert all(row["status"] == "finished" and row["verdict"] == "accepted" for row in listed)
    assert listed[0]["id"] in solved.cli.here("agent", "runs").out.splitlines()[0]


def test_who_goes_on_with_a_paused_run_is_told_at_once_why_it_rests(talk: Talk, tmp_path: Path) -> None:
    cli = Cli(tmp_path, talk.cli.home)
    run = cli.folder / "runs" / talk.run.name
    shutil.copy(talk.cli.folder / "toy.py", cli.folder)
    shutil.copytree(talk.run, run)
    paused = cli.here("agent", "chat", "last", "pause").out.partition(":")[0]
    child = cli.start("agent", "resume", "last", "--json")
    try:
        assert child.stderr is not None
        again = f"foundry agent chat runs/{run.name} resume"
        assert child.stderr.readline() == f"paused by {paused}: the search rests until somebody says {again}\n"
        until(lambda: ": paused. " in cli.here("agent", "chat", "last", "status").out, "the run rests")
        assert f"{paused} pause: taken by the run" in cli.here("agent", "chat", "last", "directives").out
        ended = interrupt(child)
        assert (ended.code, ended.json["verdict"], ended.err) == (130, "interrupted", "")
    finally:
        cli.close()
