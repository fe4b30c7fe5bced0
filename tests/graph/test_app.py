"""The graph as LangGraph's dev server loads it, and as it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foundry.graph import dev_server
from foundry.graph.app import make_graph
from foundry.graph.island import ORDER
from foundry.graph.run_directory import RunDirectory, list_runs


async def test_the_graph_runs_from_a_task_alone_without_our_context(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(dev_server, "Parts", parts)
    state = await make_graph().ainvoke({"task": "relu_add.py"}, {"recursion_limit": 100_000})
    assert state["winner"].startswith("c")
    (run,) = list_runs(tmp_path / "runs")
    assert run.get("status") == "finished" and run.get("winner") == state["winner"]
    run.close()
    RunDirectory.open(run.path).close()  # nobody holds it any more


def test_the_picture_is_the_design() -> None:
    drawn = make_graph().get_graph(xray=True).draw_mermaid()
    for name in ("intake", "capture", "baseline", "recall", "seed", "decide", "compare", "finish"):
        assert f"{name}({name})" in drawn
    for step in (*ORDER, "leave"):
        assert rf"island\3a{step}" in drawn or f"island:{step}" in drawn
