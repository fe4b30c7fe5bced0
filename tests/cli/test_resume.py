"""A run that is killed, interrupted and resumed ends as any other, with nothing lost, doubled or left running."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from foundry.tools.process.zygote import Zygote

from .conftest import SHORT_END, TOY, Cli, Done, interrupt, rows, working_below

EVALUATED = "SELECT candidate, stage, step, at, body FROM evaluations ORDER BY candidate, stage"
SEARCH = ("--evaluations", "5", "--minutes", "20", "--islands", "2", "--no-learn", "--seed", "5", *SHORT_END)


@dataclass
class Story:
    """One run: killed in the middle, resumed, interrupted, robbed of its checkpoints, resumed to its end."""

    cli: Cli
    run: Path
    at_kill: list[tuple[Any, ...]]
    status_after_kill: Done
    after_kill: list[int]  # processes that still worked for the run soon after the kill
    while_held: Done  # a second resume beside the first
    interrupted: Done
    after_interrupt: list[int]
    at_interrupt: list[tuple[Any, ...]]
    corrupt: Done  # resumed with garbage for checkpoints
    end: Done


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, home: Path, zygote: Zygote) -> Iterator[Story]:
    """The whole story, told once. What is killed or interrupted is a process of its own."""
    cli = Cli(tmp_path_factory.mktemp("resumed"), home, zygote)
    cli.write("toy.py", TOY)
    child = cli.start("agent", "solve", "toy.py", *SEARCH, "--json")
    run: Path = until(lambda: next(cli.folder.glob("runs/toy-*/run.sqlite"), None), "a run").parent
    until(lambda: len(rows(run, EVALUATED)) >= 2, "two evaluations")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    until(lambda: not working_below(cli.folder), "the workers are gone")
    left = working_below(cli.folder)
    at_kill = rows(run, EVALUATED)
    status = cli.here("agent", "chat", "last", "status")
    child = cli.start("agent", "resume", "last")
    until(lambda: len(rows(run, EVALUATED)) >= len(at_kill) + 2, "two more evaluations")
    held = cli.here("agent", "resume", "last")
    interrupted = interrupt(child)
    until(lambda: not working_below(cli.folder), "the workers of an interrupted run are gone")
    after = working_below(cli.folder)
    at_interrupt = rows(run, EVALUATED)
    checkpoints = run / "checkpoints.sqlite"
    for name in ("checkpoints.sqlite-wal", "checkpoints.sqlite-shm"):
        (run / name).unlink(missing_ok=True)
    checkpoints.write_bytes(b"garbage " * 1000)
    corrupt = cli.here("agent", "resume", run.name, "--json")
    checkpoints.unlink()
    end = cli.here("agent", "resume", run.name, "--json")
    yield Story(cli, run, at_kill, status, left, held, interrupted, after, at_interrupt, corrupt, end)
    cli.close()


def test_kill_leaves_no_process_and_loses_no_evaluation(story: Story) -> None:
    assert story.after_kill == []
    assert story.status_after_kill.out.startswith(f"{story.run.name}: interrupted. ")
    assert len(story.at_kill) >= 2
    kept = {row[:2]: row for row in rows(story.run, EVALUATED)}
    for row in story.at_kill:
        assert kept[row[:2]] == row  # the same record, not one made again


def test_interrupt_keeps_the_state_and_says_how_to_resume(story: Story) -> None:
    done = story.interrupted
    assert done.code == 130 and "foundry:" not in done.err
    assert f"foundry agent resume runs/{story.run.name}" in done.out.splitlines()[0]
    assert story.after_interrupt == []
    assert len(story.at_interrupt) >= len(story.at_kill) + 2
    kept = {row[:2]: row for row in rows(story.run, EVALUATED)}
    assert all(kept[row[:2]] == row for row in story.at_interrupt)


def test_one_process_at_a_time_works_on_a_run(story: Story) -> None:
    assert story.while_held.is_one_line("being worked on", story.run.name)


def test_the_end_is_that_of_any_run(story: Story) -> None:
    assert (story.end.code, story.end.err) == (0, "")
    summary = story.end.json
    assert summary["verdict"] == "accepted"
    assert (
        Path(story.cli.folder / summary["kernel"]).is_file() and Path(story.cli.folder / summary["receipt"]).is_file()
    )
    names = {row[0] for row in rows(story.run, EVALUATED)} - {"c0"}
    assert summary["evaluations"] == len(names) >= len({row[0] for row in story.at_interrupt})
    assert summary["evaluations"] <= 5 + 2  # an island in flight may end what it began
    sources = [json.loads(row[4])["candidate"]["source"] for row in rows(story.run, EVALUATED) if row[1] == "screen"]
    assert len(sources) == len(set(sources))  # no text was evaluated twice
    steps = [row[0] for row in rows(story.run, "SELECT step FROM decisions")]
    assert len(steps) == len(set(steps))
    assert not (story.run / "scratch").exists() and not working_below(story.cli.folder)


def test_checkpoints_can_be_lost(story: Story) -> None:
    """Garbage is said in one line that names the file; without it, the run went on from its journal."""
    assert story.corrupt.is_one_line("checkpoints.sqlite", "corrupt", "delete it")
    assert story.end.code == 0
