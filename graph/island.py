"""An island: a branch of the graph that loops the steps of a population of its own until it stops.

select -> diagnose -> an expert -> write -> build -> verify -> auditor -> time -> profile -> prove -> learn

Nodes are functions of state in, update out. None raises for a bad candidate. An internal error ends only its own
island; as an exception it would cancel all others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.errors import GraphBubbleUp
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from foundry.agents.chat.tape import NotRecorded
from foundry.agents.expert import experts
from foundry.graph.dev_server import services_of
from foundry.graph.nodes.island.auditor import auditor
from foundry.graph.nodes.island.build import build
from foundry.graph.nodes.island.diagnose import diagnose
from foundry.graph.nodes.island.expert import ask
from foundry.graph.nodes.island.learn import learn
from foundry.graph.nodes.island.profile import profile
from foundry.graph.nodes.island.prove import prove
from foundry.graph.nodes.island.select import next_step, select
from foundry.graph.nodes.island.time import time
from foundry.graph.nodes.island.tools import use_tools
from foundry.graph.nodes.island.verify import verify
from foundry.graph.nodes.island.write import write
from foundry.graph.run.database import StorageFailed
from foundry.graph.run.events import streaming
from foundry.graph.run.journal import Diverged
from foundry.graph.run.services import Services
from foundry.graph.search.state import IslandOutput, IslandState, Stop, Update
from foundry.knowledge.thought import ExpertName

IslandNode = Callable[[IslandState, Services], Awaitable[Update]]

NODES: dict[str, IslandNode] = {
    "select": select,
    "diagnose": diagnose,
    "tools": use_tools,
    "write": write,
    "build": build,
    "verify": verify,
    "auditor": auditor,
    "time": time,
    "profile": profile,
    "prove": prove,
    "learn": learn,
}
TESTS = ("build", "verify", "auditor", "time", "profile", "prove")
DECISIVE = TESTS[:4]  # who fails one of them is tested no further


def proposers() -> dict[ExpertName, tuple[ExpertName, ...]]:
    """The experts that propose steps, each a node, with those who are asked when it has none: who answers some
    diagnosis that it answers too. The auditor's node is among the tests."""
    asked = [expert for expert in experts().values() if expert.answers]
    return {
        one.name: tuple(other.name for other in asked if other != one and set(one.answers) & set(other.answers))
        for one in asked
    }


def route(state: IslandState) -> str:
    """From the diagnosis to the expert whose work it is, by diagnosis, role and the user's words; from the tools back
    to the one that called them."""
    return state["experts"][0]


def hand_on(state: IslandState) -> str:
    """From an expert to the tools that it calls, or to where its proposal is written; if it has none, to the next
    expert, and from the last one to the next step."""
    if state["wants"]:
        return state["wants"]
    return state["experts"][0] if state["experts"] else "select"


def after_writing(state: IslandState) -> str:
    """A step that gave no candidate has nothing to test."""
    return "build" if state["candidate"] else "select"


def after_test(name: str) -> Callable[[IslandState], str]:
    """From a test to the next one, or to `learn` once the candidate has failed a decisive one."""
    following = [*TESTS, "learn"][TESTS.index(name) + 1]
    return lambda state: "learn" if name in DECISIVE and state["outcome"] else following


def ways() -> dict[str, tuple[Callable[[IslandState], str], tuple[str, ...]]]:
    """How a node's successor is chosen, and from which; every node may also `leave` the island."""
    found: dict[str, tuple[Callable[[IslandState], str], tuple[str, ...]]] = {
        "select": (lambda _: "diagnose", ("diagnose",)),
        "diagnose": (route, tuple(proposers())),
        "tools": (route, tuple(proposers())),
        "write": (after_writing, ("build", "select")),
        "learn": (lambda _: "select", ("select",)),
    }
    for name, others in proposers().items():
        found[name] = (hand_on, ("tools", "write", *others, "select"))
    for name, following in zip(TESTS, [*TESTS[1:], "learn"], strict=True):
        found[name] = (after_test(name), (following, "learn") if name in DECISIVE else (following,))
    return found


def unless_stopped(choose: Callable[[IslandState], str]) -> Callable[[IslandState], str]:
    """A routing function that sends an island to "leave" if it has a reason to stop, else where `choose` says."""

    def decide(state: IslandState) -> str:
        """ "leave" if the island should stop, else what `choose` returns."""
        return "leave" if state["stop"] else choose(state)

    decide.__name__ = choose.__name__.strip("<>")
    return decide


def contain(name: str, work: IslandNode) -> Any:
    """The node around a step: a span in the trace, and an error that ends this island instead of all of them."""

    async def node(state: IslandState, runtime: Runtime[Services]) -> Update:
        """Runs one node of an island in a span of the trace; an error ends this island only, with its reason.

        Questions to a person, and failures of the disk or the recording, are raised.
        """
        services = await services_of(state, runtime)
        here = next_step(state) if name == "select" else state["step"]
        if name != "select":
            services.flight.note_step(state["island"], here, state.get("parent", ""), state.get("candidate", ""))
        with streaming(runtime.stream_writer), services.log.at(state["island"], here):
            try:
                with services.log.span("node", name):
                    return await work(state, services)
            except GraphBubbleUp:
                raise  # no failure: LangGraph's way to ask, to drain or to leave for the parent graph
            except (StorageFailed, NotRecorded):
                raise  # nothing can be recorded any more, or replayed: the run must stop and say so
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
    """Hands the island's state to the root graph, which may send it again."""
    services = await services_of(state, runtime)
    with streaming(runtime.stream_writer), services.log.at(state["island"], state["step"]):
        services.flight.note_end(state["island"])
        services.log.note_once("note", "island ends", reason=state["stop"]["text"] if state["stop"] else "")
    return {"islands": {str(state["island"]): {key: value for key, value in state.items() if key != "islands"}}}


def make_island() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of an island, compiled: its nodes, each with the ways on, and "leave"."""
    graph: StateGraph[Any, Any, Any, Any] = StateGraph(IslandState, output_schema=IslandOutput)
    works = NODES | {name: ask(name) for name in proposers()}
    for name, (choose, successors) in ways().items():
        graph.add_node(name, contain(name, works[name]))
        graph.add_conditional_edges(name, unless_stopped(choose), [*successors, "leave"])
    graph.add_node("leave", leave)
    graph.add_edge(START, "select")
    graph.add_edge("leave", END)
    return graph.compile()
