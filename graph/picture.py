"""The picture of the graph in README.md and ARCHITECTURE.md, drawn from the compiled graph as Mermaid:

python -m foundry.graph.picture
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from foundry.agents.expert import experts
from foundry.graph.app import make_graph

ISLAND = "island"
UNSHOWN = ("__start__", "__end__", "leave")  # every node of an island may leave it

Edges = list[tuple[str, str]]


def draw() -> str:
    """Nodes and edges, experts round; a dotted edge is one of several that a node chooses from."""
    inside, outside = [], []
    for edge in make_graph().get_graph(xray=True).edges:
        (source_room, source), (target_room, target) = _parts(edge.source), _parts(edge.target)
        if source_room and target_room:
            inside.append((source, target))
        else:
            outside.append((source_room or source, target_room or target))
    lines = ["flowchart TD", *_lines(outside, "intake", ""), f'    subgraph {ISLAND} ["islands, side by side"]']
    return "\n".join([*lines, *_lines(inside, "select", f"{ISLAND}_"), "    end"]) + "\n"


def _parts(name: str) -> tuple[str, str]:
    """(the island or "", the node's own name)"""
    room, _, own = name.rpartition(":")
    return room, own


def _lines(edges: Edges, first: str, prefix: str) -> Iterator[str]:
    """The edges in the order in which they are reached from the first node; each node is labelled where it appears
    first."""
    shown = sorted({edge for edge in edges if not set(edge) & set(UNSHOWN)})
    count, order, labelled = Counter(source for source, _ in shown), _walk(shown, first), set[str]()

    def node(name: str) -> str:
        """A node in Mermaid's text, labelled at its first mention; experts are round."""
        if name in labelled or name == ISLAND:
            return f"{prefix}{name}"
        labelled.add(name)
        return f"{prefix}{name}" + (f"([{name}])" if name in experts() else f"[{name}]")

    for source, target in sorted(shown, key=lambda edge: (order.index(edge[0]), order.index(edge[1]))):
        yield f"    {'    ' if prefix else ''}{node(source)} {'-.->' if count[source] > 1 else '-->'} {node(target)}"


def _walk(edges: Edges, first: str) -> list[str]:
    """The nodes by their distance from the first."""
    found = [first]
    for source in found:
        found += [target for start, target in edges if start == source and target not in found]
    return found


if __name__ == "__main__":
    print(draw(), end="")
