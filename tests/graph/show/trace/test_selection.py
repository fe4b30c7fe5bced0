"""The trace of a run as users search it, as others follow it, and how long a large one takes."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.tree import Tree
from tests.waiting import PATIENCE_S, until

from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace import tree
from foundry.graph.show.trace.follow import follow
from foundry.graph.show.trace.selection import Selection, line_of, problem_of
from foundry.knowledge.errors import UsageError


def picked(path: Path, **wanted: object) -> list[Event]:
    run = RunDirectory.inspect(path, reading=True)
    try:
        selection = Selection(**wanted)  # type: ignore[arg-type]
        return selection.of_run(run).select(EventLog(run.database, reading=True).read())
    finally:
        run.close()


def test_events_are_picked_by_who_where_and_what(finished: Path) -> None:
    tiling = picked(finished, experts=("tiling",), kinds=("proposal", "expert"))
    assert tiling and {event.name for event in tiling} == {"tiling"}
    assert {event.island for event in picked(finished, islands=(1,))} == {1}
    evaluated = picked(finished, kinds=("evaluation",), experts=("tiling",))
    assert evaluated and all(event.data["expert"] == "tiling" for event in evaluated)
    both = picked(finished, islands=(0,), kinds=("tool",))
    assert both and all(event.island == 0 and event.kind == "tool" for event in both)


def test_one_candidate_s_events_are_those_of_its_step(finished: Path) -> None:
    name = next(event.data["candidate"] for event in picked(finished, kinds=("proposal",)))
    events = picked(finished, candidate=name)
    assert {"proposal", "evaluation", "tool", "node"} <= {event.kind for event in events}
    assert next(event for event in events if event.kind == "evaluation").name == name
    with pytest.raises(UsageError, match="no candidate c999"):
        picked(finished, candidate="c999")


def test_failures_the_slowest_and_their_lines(finished: Path) -> None:
    failures = picked(finished, failures=True)
    assert {"tool", "evaluation"} <= {event.kind for event in failures} and all(map(problem_of, failures))
    assert any("too many registers" in problem_of(event) for event in failures)
    slowest = picked(finished, slowest=3)
    assert len(slowest) == 3 and slowest[0].seconds == max(
        event.seconds or 0.0 for event in picked(finished) if event.kind != "node"
    )
    line = line_of(failures[0], failures[0].started - 1.5)
    assert line.startswith("     1.5 s") and failures[0].step in line and "\n" not in line


def test_a_line_cannot_steer_a_terminal() -> None:
    event = Event(1, "note", "a\x1b[2J", 0, "i0g1", None, 1.0, 1.0, {"text": "b\nc\x1b]0;owned\x07"})
    line = line_of(event, 0.0)
    assert "\x1b" not in line and "\x07" not in line and "\n" not in line


def test_followers_hear_every_event_once_and_stop_with_the_run(tmp_path: Path, finished: Path) -> None:
    source = RunDirectory.inspect(finished, reading=True)
    run = RunDirectory(tmp_path)
    for key in ("format", "request", "created"):
        run.set(key, source.get(key))
    source.close()
    run.lock()
    log = EventLog(run.database)
    log.note("note", "before")
    heard: list[Event] = []
    follower = threading.Thread(target=follow, args=(tmp_path, Selection(kinds=("note", "tool")), heard.append))
    follower.start()
    with log.span("tool", "build", category="compile"), log.span("node", "not asked for"):
        until(lambda: heard, "what was noted before")
        assert [event.name for event in heard] == ["before"], "a span is told when it is over"
    log.note("note", "after")
    run.close()
    follower.join(timeout=PATIENCE_S)
    assert not follower.is_alive()
    assert sorted(event.name for event in heard) == ["after", "before", "build"]


def labels(branch: Tree) -> list[str]:
    return [str(branch.label), *(label for child in branch.children for label in labels(child))]


def test_the_tree_shows_the_latest_steps_as_the_whole_one_does(finished: Path) -> None:
    """What a node of the root graph did outside of the islands stands below it, and not beside it."""
    run = RunDirectory.inspect(finished, reading=True)
    whole, short = tree.tree(run, depth=3), tree.tree(run, depth=3, latest=2)
    steps = EventLog(run.database, reading=True).steps()
    tops = [str(branch.label).split("  ")[0] for branch in tree.tree(run, depth=1).children]
    run.close()
    assert tops[0].startswith("open") and tops[1:3] == ["node intake", "node capture"] and tops[-1].startswith("island")
    below = {str(branch.label).split("  ")[0]: branch for branch in whole.children}
    assert any(label.startswith("final/c") for label in labels(below["node prove"]))
    for island, branch in enumerate(b for b in short.children if str(b.label).startswith("island")):
        left, *shown = branch.children
        assert str(left.label) == f"{len(steps[island]) - 2} earlier ones: --steps 0 shows all"
        full = below[f"island {island}"].children[-2:]
        assert [labels(one) for one in shown] == [labels(one) for one in full]


@pytest.mark.slow
def test_the_trace_of_5000_evaluations_opens_below_a_second(grown: Callable[..., Path]) -> None:
    """The whole command, in seconds of its process, so that a busy machine changes little; reading all of
    100,000 events is what it must not do."""
    path = grown(5000)
    took = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "foundry.cli", "agent", "trace", str(path)], capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0 and b"earlier ones: --steps 0 shows all" in done.stdout, done.stderr
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"{min(took):.2f} s")
    assert min(took) < 1.0
