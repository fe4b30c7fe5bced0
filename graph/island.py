"""The island: a population with a role and a random stream of its own, looping its generations until it stops.

select -> diagnose -> route -> propose -> build -> verify -> audit -> time -> profile -> prove -> learn -> migrate

Nodes are functions of state in, update out. None raises for a bad candidate. An internal error ends only its own
island; as an exception it would cancel the other islands.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from foundry.graph.dev_server import services_of
from foundry.graph.run.database import StorageFailed
from foundry.graph.run.journal import Diverged
from foundry.graph.run.services import Services
from foundry.graph.search import measure, think
from foundry.graph.search.state import IslandOutput, IslandState, Stop, Update, step_name

IslandNode = Callable[[IslandState, Services], Awaitable[Update]]

NODES: dict[str, IslandNode] = {
    "select": think.select,
    "diagnose": think.diagnose,
    "route": think.route,
    "propose": think.propose,
    "build": measure.build,
    "verify": measure.verify,
    "audit": measure.audit,
    "time": measure.time,
    "profile": measure.profile,
    "prove": measure.prove,
    "learn": think.learn,
    "migrate": think.migrate,
}
ORDER = tuple(NODES)


def after(name: str) -> Callable[[IslandState], str]:
    """Which node follows: the next one, the one after all tests if the candidate has failed one, or `leave`."""

    def decide(state: IslandState) -> str:
        if state["stop"]:
            return "leave"
        if name == "migrate":
            return "select"
        if name == "propose" and not state.get("candidate"):
            return "migrate"
        if name in ("build", "verify", "audit", "time") and state.get("outcome"):
            return "learn"
        return ORDER[ORDER.index(name) + 1]

    return decide


def destinations(name: str) -> list[str]:
    """The nodes that `after(name)` may choose."""
    following = "select" if name == "migrate" else ORDER[ORDER.index(name) + 1]
    shortcut = {"propose": "migrate", "build": "learn", "verify": "learn", "audit": "learn", "time": "learn"}
    return list(dict.fromkeys([following, *([shortcut[name]] if name in shortcut else []), "leave"]))


def contain(name: str, work: IslandNode) -> Any:
    """The node around a step: a span in the trace, and an error that ends this island instead of all of them."""

    async def node(state: IslandState, runtime: Runtime[Services]) -> Update:
        services = await services_of(state, runtime)
        here = step_name(state["island"], state["generation"] + 1) if name == "select" else state["step"]
        with services.log.at(state["island"], here):
            try:
                with services.log.span("node", name):
                    return await work(state, services)
            except GraphBubbleUp:
                raise  # no failure: LangGraph's way to ask, to drain or to leave for the parent graph
            except StorageFailed:
                raise  # nothing can be recorded any more: the run must stop and say so
            except Diverged as error:
                services.log.note("note", "replay diverged", reason=str(error))
                return {"stop": Stop(kind="diverged", text=f"diverged: {error}")}
            except Exception as error:
                services.log.note("note", "island failed", node=name, error=f"{type(error).__name__}: {error}")
                text = f"error in {name}: {type(error).__name__}: {error}"
                return {"stop": Stop(kind="error", text=text)}

    node.__name__ = name
    return node


async def leave(state: IslandState, runtime: Runtime[Services]) -> Update:
    """Reports to the root graph what the next round starts from."""
    services = await services_of(state, runtime)
    with services.log.at(state["island"], state["step"]):
        reason = state["stop"]["text"] if state["stop"] else ""
        services.log.note_once("note", "island ends", reason=reason, round=state.get("round", 0))
    return {"islands": {str(state["island"]): think.report(state)}}


def make_island() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The island's graph, compiled for use as a node."""
    graph = StateGraph(IslandState, context_schema=Services, output_schema=IslandOutput)
    for name, work in NODES.items():
        graph.add_node(name, contain(name, work))
        graph.add_conditional_edges(name, after(name), destinations(name))
    graph.add_node("leave", leave)
    graph.add_edge(START, "select")
    graph.add_edge("leave", END)
    return graph.compile()
