"""`foundry agent trace`: prints a run as the tree of its nodes, experts and tool calls."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TypeVar

from rich.text import Text
from rich.tree import Tree

from foundry.graph.run.events import Event, EventLog
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.trace.selection import facts_of
from foundry.graph.show.view import RunView
from foundry.knowledge.step_words import spoken

Item = TypeVar("Item")


def tree(run: RunDirectory, *, depth: int = 3, latest: int = 0) -> Tree:
    """Root nodes and islands, each with its steps; `depth` 1 shows these, 2 their nodes, 3 experts and tools. `latest`:
    so many steps of each island, and root nodes; 0 shows all. What is not shown is not read."""
    log = EventLog(run.database, reading=True)
    steps = log.steps()
    shown = [step for of_island in steps.values() for step in of_island[-latest:]]
    events = log.read_steps(shown) if latest else log.read()
    children: dict[int | None, list[Event]] = defaultdict(list)
    for event in events:
        children[event.parent].append(event)
    root = Tree(Text(f"run {run.id} ({run.get('status')}{_gained(run)})", style="bold"))
    tops = children[None]
    _grow_root(root, [event for event in tops if event.island is None or event.island < 0], children, depth, latest)
    by_island: dict[int, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in tops:
        if event.island is not None and event.island >= 0:
            by_island[event.island][event.step].append(event)
    for island, members_by_step in sorted(by_island.items()):
        branch = root.add(Text(f"island {island}", style="bold"))
        for step in _latest(steps[island], latest, branch):
            _grow_step(branch, step, members_by_step[step], children, depth)
    return root


def _gained(run: RunDirectory) -> str:
    """`; the winner is c4, 1.75x (1.23 to 2.30; proven, 58 pairs)`; of one that is no faster than eager it says so."""
    winner = run.get("winner")
    found = RunView(run).ranking.placed(winner) if winner else None
    return f"; the winner is {found.words}{found.remark}" if found else ""


def _grow_root(root: Tree, own: list[Event], children: dict[int | None, list[Event]], depth: int, latest: int) -> None:
    """The nodes of the root graph in their order; each step outside of the islands (`seed0`, `final/c17`) below the
    node that was at work when it began."""
    nodes = [event for event in own if event.kind == "node"]
    steps: dict[str, list[Event]] = defaultdict(list)
    for event in own:
        if event.kind != "node":
            steps[event.step].append(event)
    inside: dict[int, list[str]] = defaultdict(list)
    starts = [node.started for node in nodes]
    for step, members in steps.items():
        at = bisect_right(starts, members[0].started)
        inside[nodes[at - 1].id if at else 0].append(step)
    for step in inside[0]:
        _grow_step(root, step, steps[step], children, depth)
    for event in _latest(nodes, latest, root):
        branch = root.add(_line(event))
        for step in inside[event.id]:
            _grow_step(branch, step, steps[step], children, depth)
        if depth > 1:
            for child in children[event.id]:
                _grow(branch, child, children, depth - 1)


def _grow_step(
    branch: Tree, step: str, members: list[Event], children: dict[int | None, list[Event]], depth: int
) -> None:
    """Adds an island's step to the tree, and its events if the depth allows."""
    here = branch.add(_step_line(step, members, children))
    if depth >= 2:
        for event in members:
            _grow(here, event, children, depth - 1)


def _latest(found: list[Item], most: int, branch: Tree) -> list[Item]:
    """The last ones, after a line that says how many come before them."""
    left_out = len(found) - most if most else 0
    if left_out <= 0:
        return found
    branch.add(Text(f"{left_out} earlier ones: --steps 0 shows all", style="dim"))
    return found[left_out:]


def _grow(branch: Tree, event: Event, children: dict[int | None, list[Event]], depth: int) -> None:
    """Adds an event with its children to the tree, down to `depth`."""
    node = branch.add(_line(event))
    if depth > 1:
        for child in children[event.id]:
            _grow(node, child, children, depth - 1)


def _line(event: Event) -> Text:
    """An event as a coloured line: kind, name, seconds, facts."""
    seconds = event.seconds
    length = "still open" if seconds is None else f"{seconds:.3f} s" if seconds > 0 else ""
    style = {"expert": "cyan", "tool": "yellow", "proposal": "magenta", "evaluation": "green"}.get(event.kind, "")
    line = Text(f"{event.kind} {event.name}", style=style)
    line.append(f"  {length}", style="dim")
    line.append(f"  {facts_of(event)}".rstrip(), style="dim")
    return line


def _step_line(step: str, members: list[Event], children: dict[int | None, list[Event]]) -> Text:
    """A step in one line: its wall time, what was proposed, and the outcome of each evaluation.

    `i2g5 1.9 s tiling: c3 -> c17 correct 2.31x`, `seed0 2.1 s c1 correct 1.28x`
    """
    everything = [*members, *(inner for event in members for inner in children[event.id])]
    ends = [event.ended for event in members if event.ended is not None]
    seconds = max(ends) - min(event.started for event in members) if ends else 0.0
    line = Text(f"{step}  {seconds:.1f} s")
    proposed = any(event.kind == "proposal" for event in everything)
    for event in everything:
        if event.kind == "proposal":
            what = event.data.get("words") or ", ".join(event.data.get("moves", [])) or event.data.get("brain", "")
            line.append(f"  {event.name}: {event.data['parent']} -> {event.data['candidate']}  {what}")
        if event.kind == "evaluation":
            speedup = event.data.get("speedup")
            line.append("" if proposed else f"  {event.name}")
            style = "green" if event.data["outcome"] == "correct" else "red"
            line.append(f"  {spoken(event.data['outcome'])}", style=style)
            line.append(f" {speedup:.2f}x" if speedup else "")
    return line
