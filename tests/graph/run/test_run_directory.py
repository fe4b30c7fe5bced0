"""Run directories that are missing, corrupt, read-only or on a full disk end in one clear line."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foundry.cli import app
from foundry.graph.run.database import Database, StorageFailed
from foundry.graph.run.events import DEVICE_LOCK, Event, EventLog, TimeSplit
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory, find_run, list_runs
from foundry.graph.run.summary import summarise
from foundry.graph.solve import resume, solve
from foundry.knowledge.errors import NotComparable, TaskError, UsageError

MakeRequest = Callable[..., SolveRequest]


async def test_a_missing_and_an_alien_folder_are_no_runs(tmp_path: Path, parts: Any) -> None:
    with pytest.raises(UsageError, match="there is no run at"):
        await resume(tmp_path / "nothing", parts=parts())
    with pytest.raises(UsageError, match=r"holds no run\.sqlite"):
        await resume(tmp_path, parts=parts())


async def test_a_corrupt_run_is_named(make_request: MakeRequest, parts: Any) -> None:
    summary = await solve(make_request(8), parts=parts())
    path = Path(summary.run)
    (path / "run.sqlite").write_bytes(b"not a database at all, but long enough to look like one" * 40)
    for suffix in ("-wal", "-shm"):
        (path / f"run.sqlite{suffix}").unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"the run file .*run\.sqlite is corrupt"):
        await resume(path, parts=parts())
    assert list_runs(path.parent) == []


async def test_corrupt_checkpoints_are_named(make_request: MakeRequest, parts: Any) -> None:
    import asyncio

    stop = asyncio.Event()
    first = await solve(
        make_request(20), lambda event: stop.set() if event.step == "i0g2" else None, stop=stop, parts=parts()
    )
    path = Path(first.run) / "checkpoints.sqlite"
    path.write_bytes(b"garbage" * 1000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(UsageError, match=r"checkpoints\.sqlite is corrupt"):
        await resume(Path(first.run), parts=parts())


async def test_a_folder_that_cannot_be_written_is_named_before_any_work(
    make_request: MakeRequest, parts: Any, tmp_path: Path
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    with pytest.raises(UsageError, match=re.escape(f"cannot create a run in {blocked}/runs: Not a directory")):
        await solve(make_request(runs=str(blocked / "runs")), parts=parts())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
async def test_a_read_only_folder_is_named(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    folder = tmp_path / "frozen"
    folder.mkdir()
    folder.chmod(0o500)
    with pytest.raises(UsageError, match="Permission denied"):
        await solve(make_request(runs=str(folder)), parts=parts())


async def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_loses_nothing(
    make_request: MakeRequest, parts: Any
) -> None:
    """SQLite's own page limit is as full as a disk gets: the same error from the same call."""
    full: list[Path] = []

    class Filling(parts):  # type: ignore[misc]
        async def workbench(self, task: Any, device: Any, scratch: Path, request: Any) -> Any:
            full.append(scratch.parent)
            return self.machine

    seen = 0

    def fill(event: Event) -> None:
        nonlocal seen
        seen += event.kind == "evaluation"
        if seen == 6:
            Filling.limit(event)

    def limit(_event: Event) -> None:
        for database in [item for item in DATABASES if item.path.parent == full[0]]:
            pages = database.run("PRAGMA page_count")[0][0]
            database.run(f"PRAGMA max_page_count = {pages}")

    Filling.limit = staticmethod(limit)
    with pytest.raises(StorageFailed, match=r"the disk that holds .* is full") as caught:
        await solve(make_request(40), fill, parts=Filling())
    assert "resume the run" in str(caught.value)
    summary = await resume(full[0], parts=parts())
    assert summary.verdict == "accepted" and summary.evaluations >= 38


DATABASES: list[Database] = []


@pytest.fixture(autouse=True)
def watch_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remembers the connections of a test, so that it can fill their disk."""
    DATABASES.clear()
    opened = Database.__init__

    def remember(self: Database, path: Path, schema: str = "", **options: Any) -> None:
        opened(self, path, schema, **options)
        DATABASES.append(self)

    monkeypatch.setattr(Database, "__init__", remember)


async def test_a_run_begun_on_another_device_is_not_resumed(make_request: MakeRequest, parts: Any) -> None:
    import asyncio
    from dataclasses import replace

    stop = asyncio.Event()
    stop.set()
    first = await solve(make_request(), stop=stop, parts=parts())
    other = parts()
    other.machine.device = replace(other.machine.device, name="Other CPU")
    with pytest.raises(NotComparable, match="was begun on cpu:Test CPU:2, this is cpu:Other CPU:2"):
        await resume(Path(first.run), parts=other)
    assert (await resume(Path(first.run), stop=stop, parts=parts())).verdict == "interrupted"


def listed(root: Path) -> list[str]:
    return CliRunner().invoke(app, ["agent", "runs", "--runs", str(root)]).output.splitlines()


async def test_a_listed_run_says_how_it_stands(make_request: MakeRequest, parts: Any, tmp_path: Path) -> None:
    """Bad input is a failure with its line; what nobody works on any more is interrupted, however it was ended."""

    class Broken(type(parts().machine)):  # type: ignore[misc]
        async def intake(self) -> Any:
            raise TaskError("relu_add.py, line 3: forward divides by zero", "mend it")

    with pytest.raises(TaskError):
        await solve(make_request(), parts=parts(Broken()))
    (line,) = listed(tmp_path / "runs")
    assert line.endswith("  failed: relu_add.py, line 3: forward divides by zero (mend it)")
    killed = RunDirectory.create(make_request(runs=str(tmp_path / "killed")))
    assert listed(tmp_path / "killed")[0].endswith("  running")
    killed.close()  # as a kill leaves it: the lock is gone, the last word was "running"
    assert listed(tmp_path / "killed")[0].endswith("  interrupted")


def test_a_run_without_a_right_kernel_says_what_was_wrong_with_most(make_request: MakeRequest) -> None:
    run = RunDirectory.create(make_request())
    log = EventLog(run.database)
    for number, evidence in enumerate(("PyTorch did the work", "PyTorch did the work", "it reads the clock")):
        log.note("evaluation", f"c{number}", outcome="cheating", evidence=evidence)
    assert summarise(run).notes == ["no kernel was right; 2 of 3 ended with cheating: PyTorch did the work"]
    log.note("evaluation", "c3", outcome="correct", evidence="")
    assert summarise(run).notes == []
    run.close()


async def test_a_failed_run_that_is_mended_is_not_failed_any_more(make_request: MakeRequest, parts: Any) -> None:
    request, gone = make_request(6), TaskError("no task file relu_add.py")

    class Once(type(parts().machine)):  # type: ignore[misc]
        async def baseline(self) -> Any:
            raise gone

    with pytest.raises(TaskError):
        await solve(request, parts=parts(Once()))
    (failed,) = list_runs(Path(request.runs))
    assert summarise(failed).verdict == "failed"
    failed.close()
    assert (await resume(failed.path, parts=parts())).verdict == "accepted"


async def test_a_run_goes_on_with_the_gpu_that_is_here(make_request: MakeRequest, parts: Any) -> None:
    """Of several GPUs of one kind any may resume a run; its lock and its ceilings are that one's own."""
    import asyncio
    from dataclasses import replace

    stop = asyncio.Event()
    stop.set()
    first = parts()
    first.machine.device = replace(first.machine.device, uuid="first")
    begun = await solve(make_request(), stop=stop, parts=first)
    other = parts()
    other.machine.device = replace(other.machine.device, uuid="second")
    await resume(Path(begun.run), parts=other)
    assert json.loads(RunDirectory.open(Path(begun.run)).get("device"))["uuid"] == "second"


def test_runs_are_found_by_path_id_beginning_and_as_the_last(make_request: MakeRequest, tmp_path: Path) -> None:
    first, second = RunDirectory.create(make_request()), RunDirectory.create(make_request())
    assert first.id != second.id
    first.set("created", "2026-01-01T00:00:00Z")
    root = tmp_path / "runs"
    assert find_run(root, str(first.path)) == first.path
    assert find_run(root, second.id) == second.path
    assert find_run(root, "last") == second.path
    with pytest.raises(UsageError, match="no run 'other'"):
        find_run(root, "other")
    with pytest.raises(UsageError, match="2 runs begin with 'relu'"):
        find_run(root, "relu")
    assert [run.id for run in list_runs(root)] == [second.id, first.id]


def test_a_killed_span_stays_open_and_a_failed_one_says_why(tmp_path: Path) -> None:
    database = Database(tmp_path / "run.sqlite", RUN_SCHEMA)
    log = EventLog(database)
    with log.at(2, "i2g7"), log.span("node", "build"):
        with pytest.raises(ValueError), log.span("tool", "build", category="compile"):
            raise ValueError("boom")
        seen_from_outside = sqlite3.connect(tmp_path / "run.sqlite").execute(
            "SELECT name, island, step, ended IS NULL, parent FROM events ORDER BY id"
        )
        rows = seen_from_outside.fetchall()
    assert rows == [("build", 2, "i2g7", 1, None), ("build", 2, "i2g7", 0, 1)]
    assert log.read("tool")[0].data["error"] == "ValueError: boom"
    database.close()


Row = tuple[str, str, float, float | None, str]


def split_of(tmp_path: Path, rows: list[Row]) -> TimeSplit:
    """The split of ten seconds, of events with kind, name, start, end and data as SQLite holds it."""
    database = Database(tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite", RUN_SCHEMA)
    log = EventLog(database, reading=True)
    database.run_many(
        "INSERT INTO events (kind, name, step, session, started, ended, data) VALUES (?, ?, 's', 1, ?, ?, ?)", rows
    )
    found = log.split_time(10)
    database.close()
    return found


def test_the_time_split_counts_overlapping_tools_once(tmp_path: Path) -> None:
    def tool(category: str, start: float, end: float | None, wait: float = 0.0, **more: float) -> Row:
        return ("tool", category, start, end, json.dumps({"category": category, "wait_s": wait, **more}))

    split = split_of(
        tmp_path, [tool("compile", 0, 4), tool("time", 2, 6, wait=2), tool("run", 8, 9), tool("run", 9, None)]
    )
    assert (split.compile_s, split.time_s, split.run_s, split.waiting_s) == (4, 2, 1, 2)
    assert split.overhead_s == 3 and split.overhead_share == 0.3
    split = split_of(tmp_path, [tool("compile", 0, 9), tool("time", 1, 2), tool("run", 3, 4, speedup=math.inf)])
    assert split.overhead_s == 1 and split.run_s == 1, "what lies inside a longer one covers nothing more"
    held: Row = ("note", DEVICE_LOCK, 9, 9, json.dumps({"alone_s": 4.0, "device_s": 3.0}))
    split = split_of(tmp_path, [tool("time", 0, 9), held])
    assert (split.alone_s, split.device_s, split.idle_share) == (4, 3, 0.1)
    thought: Row = ("expert", "tiling", 5, 8.5, "{}")
    split = split_of(tmp_path, [tool("compile", 0, 4), thought, tool("run", 8, 9)])
    assert (split.thinking_s, split.overhead_s) == (3.5, 2)  # nobody was at work from 4 to 5 and from 9 to 10


RUN_SCHEMA = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, island INTEGER, step TEXT NOT NULL,
    parent INTEGER, session INTEGER NOT NULL, started REAL NOT NULL, ended REAL, data TEXT NOT NULL);
CREATE TABLE sessions (id INTEGER PRIMARY KEY, started REAL NOT NULL, seen REAL NOT NULL);
"""
