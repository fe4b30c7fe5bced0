"""The trace of a run as users search it, as others follow it, and how long a large one takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.trace.follow import follow
from foundry.graph.trace.selection import Selection, line_of, problem_of
from foundry.graph.views import trace
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
        deadline = time.monotonic() + 20
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [event.name for event in heard] == ["before"], "a span is told when it is over"
    log.note("note", "after")
    run.close()
    follower.join(timeout=20)
    assert not follower.is_alive()
    assert sorted(event.name for event in heard) == ["after", "before", "build"]


@pytest.mark.slow
def test_the_trace_of_5000_evaluations_opens_below_two_seconds(grown: Callable[..., Path]) -> None:
    """In seconds of this process, so that a busy machine changes nothing."""
    path = grown(5000)
    took = []
    for _ in range(2):
        began = time.process_time()
        run = RunDirectory.inspect(path, reading=True)
        events = EventLog(run.database, reading=True).read()
        with Path("/dev/null").open("w") as nowhere:
            Console(soft_wrap=True, file=nowhere).print(trace.tree(run, events, depth=1, latest=60))
        trace.split_lines(run, events, 60.0)
        took.append(time.process_time() - began)
        run.close()
    assert len(events) > 90_000
    print(f"{min(took):.2f} s")
    assert min(took) < 2.0
