"""The graph, assembled: it reads as the picture in ARCHITECTURE.md."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.types import Checkpointer, Send

from foundry.graph.dev_server import begin, end, services_of
from foundry.graph.island import make_island
from foundry.graph.nodes.baseline import baseline
from foundry.graph.nodes.capture import capture
from foundry.graph.nodes.compare import compare
from foundry.graph.nodes.decide import decide
from foundry.graph.nodes.finish import finish
from foundry.graph.nodes.intake import intake
from foundry.graph.nodes.prove import prove
from foundry.graph.nodes.recall import recall
from foundry.graph.nodes.seed import seed
from foundry.graph.run.events import streaming
from foundry.graph.run.services import Services
from foundry.graph.search.islands import island_inputs, wants_islands
from foundry.graph.search.state import RunInput, RunState, Update


def root(name: str, node: Callable[[RunState, Services], Awaitable[Update]]) -> Any:
    """The node with a span in the trace; at the root an error ends the run with its one line."""

    async def run(state: RunState, runtime: Runtime[Services]) -> Update:
        """Runs one node of the root graph in a span of the trace; opens the run's services first and closes them after
        "finish"."""
        with streaming(runtime.stream_writer):
            begun = await begin(state, runtime) if name == "intake" else {}
            services = await services_of({**state, **begun}, runtime)
            with services.log.at(None, name), services.log.span("node", name):
                update = await node(state, services)
            services.log.mark_alive()
            if name == "finish":
                await end(state)
            return {**begun, **update}

    run.__name__ = name
    return run


async def fan_out(state: RunState, runtime: Runtime[Services]) -> list[Send] | str:
    """One `Send` an island, or straight to the end when there is nothing to search."""
    services = await services_of(state, runtime)
    if not wants_islands(state, services):
        return "prove"
    return [Send("island", inputs) for inputs in island_inputs(state, services)]


async def search_or_end(state: RunState, runtime: Runtime[Services]) -> list[Send] | str:
    """After `decide`: the islands once more, or the end."""
    return "prove" if state.get("ending") else await fan_out(state, runtime)


def serve() -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph for LangGraph's server (langgraph.json): it brings its own checkpointer, and would give its
    configuration to whatever the function takes."""
    return make_graph()


def make_graph(checkpointer: Checkpointer = None) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The graph of a whole run, compiled: nodes from intake to finish, with the islands between seed and decide."""
    graph = StateGraph(
        RunState, input_schema=RunInput
    )  # without a schema of the context: a server would make one of {}
    graph.add_node("intake", root("intake", intake))
    graph.add_node("capture", root("capture", capture))
    graph.add_node("baseline", root("baseline", baseline))
    graph.add_node("recall", root("recall", recall))
    graph.add_node("seed", root("seed", seed))
    graph.add_node("island", make_island())
    graph.add_node("decide", root("decide", decide))
    graph.add_node("prove", root("prove", prove))
    graph.add_node("compare", root("compare", compare))
    graph.add_node("finish", root("finish", finish))
    graph.add_edge(START, "intake")
    graph.add_edge("intake", "capture")
    graph.add_edge("capture", "baseline")
    graph.add_edge("baseline", "recall")
    graph.add_edge("recall", "seed")
    graph.add_conditional_edges("seed", fan_out, ["island", "prove"])
    graph.add_edge("island", "decide")
    graph.add_conditional_edges("decide", search_or_end, ["island", "prove"])
    graph.add_edge("prove", "compare")
    graph.add_edge("compare", "finish")
    graph.add_edge("finish", END)
    return graph.compile(checkpointer=checkpointer, name="foundry")
