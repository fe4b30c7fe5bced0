"""Runs whose traces are exported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foundry.graph.run.events import EventLog
from foundry.graph.run.run_directory import RunDirectory


@pytest.fixture
def thought(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run in which a model was asked, and a tool was killed."""
    (tmp_path / "blobs").mkdir()
    run = RunDirectory(tmp_path)
    run.set("created", "2026-01-01")
    run.set("task_name", "softmax")
    log = EventLog(run.database)
    with log.at(1, "i1g2"), log.span("node", "tiling"), log.span("expert", "tiling", purpose="propose"):
        texts = {"system": "be brief", "prompt": "what now?", "bad_answer": "eh", "repair": "as JSON", "answer": "{}"}
        kept = {name: run.keep(text) for name, text in texts.items()}
        cost = {"requests": 2, "tokens": 30, "prompt_tokens": 20, "completion_tokens": 10, "dollars": 0.01}
        said = {"model": "qwen", "purpose": "propose", "outcome": "failed", "detail": "no JSON", "call_s": 1.5}
        log.note("expert", "tiling", **said, **cost, **kept)
        run.database.run(
            "INSERT INTO events (kind, name, island, step, parent, session, started, ended, data)"
            " SELECT 'tool', 'build', 1, 'i1g2', id, 1, started, NULL, '{}' FROM events LIMIT 1"
        )
    yield run
    run.close()
