"""The kernels that a run knows, as the experts see them. A user's directives are compared with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.services import Library
from foundry.knowledge.candidate import Recipe
from foundry.knowledge.codec import decode
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.library.lowered import Lowered
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task

MOST_STRUCTURES = 8  # tunables and their legal values depend on what is fused and rewritten, hardly on the choices


def structures(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The first recipe of each structure (what is fused and rewritten, or what an author wrote)."""
    found: dict[tuple[frozenset[str], frozenset[str], str], Recipe] = {}
    for recipe in recipes:
        written = recipe.authored.digest if recipe.authored else ""
        found.setdefault((frozenset(recipe.materialise), frozenset(recipe.rewrites), written), recipe)
    return list(found.values())[:MOST_STRUCTURES]


def read_known_kernels(run: RunDirectory, library: Library) -> tuple[list[Lowered], OpGraph | None]:
    """(library kernels, graph) of a run that another process may be working on; empty before the graph is captured."""
    rows = run.database.run("SELECT value FROM journal WHERE key = 'intake'")
    if not rows:
        return [], None
    from foundry.tools.grade.workbench import Intake

    graphs = decode(Intake, rows[0][0]).graphs
    if not graphs:
        return [], None
    task, device = decode(Task, run.get("task")), decode(Device, run.get("device"))
    found = []
    for recipe in structures(item.candidate.recipe for item in run.decisions() if item.candidate.recipe):
        with contextlib.suppress(CannotLower):
            found.append(library.lower(graphs, recipe, task_source=task.source, device=device))
    return found, graphs[0]
