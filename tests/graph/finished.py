"""A finished run of the machine of arithmetic, what hostile authors would leave in it, and many of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from foundry.graph.run.database import Database
from foundry.graph.run.opening import Parts
from foundry.graph.run.request import RunLimits, SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import solve
from foundry.knowledge.thought import Directive

SAID = "@tiling avoid tile 128"
HOSTILE = "</script><script>document.title='owned'</script><!--<img src=x onerror=\"document.title='owned'\">\u2028&lt;"


def solve_steered(folder: Path, parts: Parts) -> Path:
    """The folder of a run of 24 evaluations on two islands; a user said something as it began."""
    request = SolveRequest("relu_add.py", learn=False, runs=str(folder), seed=1, islands=2, limits=RunLimits(24))

    def say(_event: object) -> None:
        (path,) = folder.iterdir()
        run = RunDirectory.inspect(path)
        if not run.inbox.read():
            run.inbox.post(Directive(0, "tiling", SAID, {"verb": "avoid", "name": "tile", "value": 128}))
        run.close()

    return Path(asyncio.run(solve(request, say, parts=parts)).run)


def make_hostile(finished: Path, path: Path) -> Path:
    """A copy of the run as if its task, its author and its kernel had written markup and scripts."""
    shutil.copytree(finished, path)
    run = RunDirectory.inspect(path)
    run.set("task_name", HOSTILE)
    run.inbox.post(Directive(0, "all", HOSTILE))
    for step, body in run.database.run("SELECT step, body FROM decisions"):
        decision = json.loads(body)
        if decision["proposal"]:
            decision["proposal"].update(rationale=HOSTILE, expected=HOSTILE, expert=HOSTILE)
        run.database.run("UPDATE decisions SET body = ? WHERE step = ?", (json.dumps(decision), step))
    run.database.run("UPDATE events SET name = ? WHERE kind = 'expert'", (HOSTILE,))
    winner = run.evaluation(run.get("winner")).candidate.source
    (run.blobs / winner).write_text(f"# {HOSTILE}\n{run.text(winner)}")
    run.close()
    return path


def grow(finished: Path, path: Path, evaluations: int, text: str = "") -> Path:
    """A run of as many evaluations as wanted: the finished one again and again, `text` as long as authors write."""
    shutil.copytree(finished, path)
    run = RunDirectory.inspect(path)
    own = run.evaluation_count()
    for copy in range(1, -(-evaluations // own)):
        _copy(run.database, own, copy, text)
    run.close()
    return path


def _copy(database: Database, own: int, copy: int, text: str) -> None:
    """The first run's rows once more: those of its `own` candidates, under other names."""
    ids, events = copy * own, copy * 100_000

    def renamed(name: str) -> str:
        return f"c{int(name[1:]) + ids}" if name not in ("", "c0") else name

    def moved(candidate: dict[str, Any]) -> dict[str, Any]:
        return {**candidate, "id": renamed(candidate["id"]), "parents": [renamed(one) for one in candidate["parents"]]}

    rows: list[tuple[Any, ...]] = []
    first = f"CAST(SUBSTR(candidate, 2) AS INTEGER) BETWEEN 1 AND {own}"
    for name, stage, island, step, at, merit, body in database.run(f"SELECT * FROM evaluations WHERE {first}"):
        record = json.loads(body)
        record["candidate"] = moved(record["candidate"])
        rows.append((renamed(name), stage, island, f"{step}.{ids}", at + ids, merit, json.dumps(record)))
    database.run_many("INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    rows = []
    for step, island, name, at, body in database.run(f"SELECT * FROM decisions WHERE {first}"):
        record = json.loads(body)
        record["candidate"] = moved(record["candidate"])
        if record["proposal"] and text:
            record["proposal"].update(rationale=text, expected=text)
        rows.append((f"{step}.{ids}", island, renamed(name), at + ids, json.dumps(record)))
    database.run_many("INSERT INTO decisions VALUES (?, ?, ?, ?, ?)", rows)
    rows = [
        (number + events, kind, name, island, f"{step}.{ids}", parent and parent + events, session, start, end, data)
        for number, kind, name, island, step, parent, session, start, end, data in database.run(
            "SELECT * FROM events WHERE id < 100000"
        )
    ]
    database.run_many("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
