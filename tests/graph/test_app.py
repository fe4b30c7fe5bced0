"""The graph as LangGraph's dev server loads it, and as it is drawn."""

from __future__ import annotations

import importlib.util
import inspect
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from foundry.agents.expert import experts
from foundry.graph import dev_server, island
from foundry.graph.app import make_graph
from foundry.graph.island import proposers, ways
from foundry.graph.run.events import Event
from foundry.graph.run.opening import create, open_services
from foundry.graph.run.run_directory import RunDirectory, list_runs
from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandState, Stop
from foundry.graph.solve import silent
from foundry.knowledge.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def load_as_a_server_does() -> Any:
    """The graph of langgraph.json: the file is loaded by its path; a factory with arguments would get the server's."""
    config = json.loads((ROOT / "langgraph.json").read_text())
    path, name = config["graphs"]["foundry"].split(":")
    found = importlib.util.spec_from_file_location("served_graph", ROOT / path)
    assert found and found.loader and config["dependencies"] == ["."]
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    factory = getattr(module, name)
    assert not inspect.signature(factory).parameters
    return factory()


async def test_the_graph_runs_from_a_task_alone_without_our_context(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(dev_server, "Parts", parts)
    graph = load_as_a_server_does()
    assert graph.checkpointer is None and {"task", "model", "ask"} <= set(graph.get_input_jsonschema()["properties"])
    given = {"task": "relu_add.py", "effort": "bench"}
    state = await graph.ainvoke(given, {"recursion_limit": 100_000}, context={})
    assert state["winner"].startswith("c")
    (run,) = list_runs(tmp_path / "runs")
    assert run.get("status") == "finished" and run.get("winner") == state["winner"]
    run.close()
    RunDirectory.open(run.path).close()  # nobody holds it any more


def test_every_expert_is_a_node_and_a_diagnosis_leads_to_those_that_answer_it() -> None:
    edges = {(edge.source, edge.target) for edge in make_graph().get_graph(xray=True).edges}
    after_diagnosis = {target for source, target in edges if source == "island:diagnose"}
    assert after_diagnosis == {f"island:{name}" for name in ("tiling", "fusion", "diagnostician", "leave")}
    assert ("island:verify", "island:auditor") in edges
    assert {(f"island:{name}", "island:tools") for name in proposers()} <= edges
    assert {("island:tools", f"island:{name}") for name in proposers()} <= edges
    for name, expert in experts().items():
        assert f"island:{name}" in {source for source, _ in edges}, expert.mandate
    assert all((f"island:{name}", "island:leave") in edges for name in ways())


async def test_a_server_that_forbids_our_writes_is_told_how_to_allow_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGGRAPH_ALLOW_BLOCKING", "false")
    with pytest.raises(UsageError, match="langgraph dev --allow-blocking"):
        await make_graph().ainvoke({"task": "relu_add.py"})


async def test_the_stream_tells_the_same_events_as_the_log(parts: Any, make_request: Any) -> None:
    run = create(make_request(6, islands=2), parts())
    heard: list[Event] = []
    opened = await open_services(run, parts(), heard.append)
    before = len(heard)
    given: Any = {"context": opened.services, "stream_mode": "custom", "subgraphs": True}
    stream = make_graph().astream({"run": str(run.path)}, {"recursion_limit": 100_000}, **given)
    streamed = [event async for _, event in stream]
    assert [event["id"] for event in streamed] == [event.id for event in heard[before:]]
    log = {event.id: asdict(event) for event in opened.services.log.read()}
    closed = {event["id"]: event for event in streamed if event["ended"] is not None}
    assert closed == {number: log[number] for number in closed}
    assert set(log) - set(closed) == {event.id for event in heard[:before]} and len(closed) > 60
    await opened.close()
    run.close()


async def test_a_question_from_inside_an_island_reaches_the_caller_and_its_answer_the_island(
    parts: Any, make_request: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []

    async def asking(state: IslandState, services: Services) -> dict[str, Any]:
        answers.append(interrupt("may I?"))
        return {"stop": Stop(kind="user", text="asked and answered")}

    monkeypatch.setitem(island.NODES, "diagnose", asking)
    run = create(make_request(8, islands=1), parts())
    opened = await open_services(run, parts(), silent)
    graph = make_graph(InMemorySaver())
    thread: Any = {"configurable": {"thread_id": run.id}}
    asked = await graph.ainvoke({"run": str(run.path)}, thread, context=opened.services)
    assert [question.value for question in asked["__interrupt__"]] == ["may I?"] and answers == []
    await graph.ainvoke(Command(resume="yes"), thread, context=opened.services)
    rows = run.database.run("SELECT data FROM events WHERE name IN ('island ends', 'island failed')")
    assert answers == ["yes"] and len(rows) == 1 and "asked and answered" in rows[0][0]
    await opened.close()
    run.close()
