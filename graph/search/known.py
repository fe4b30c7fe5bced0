"""The kernels that a run knows, as the experts see them. A user's directives are compared with them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import replace

from foundry.agents.playbook.leaps import known_of
from foundry.graph.run.run_directory import Mark, RunDirectory
from foundry.graph.run.services import Library, Services
from foundry.graph.search.lessons import query
from foundry.knowledge.candidate import REFERENCE, Recipe, Stage, candidate_number
from foundry.knowledge.codec import decode
from foundry.knowledge.compiler.lowered import Lowered
from foundry.knowledge.device import Device
from foundry.knowledge.errors import CannotLower
from foundry.knowledge.experience.record import Known
from foundry.knowledge.opgraph import OpGraph
from foundry.knowledge.task import Task

SEEDS, NEIGHBOURS = 3, 3  # first candidates to look up, and changes of the structure of each
MOST_KNOWN = 160  # latest candidates of the run: to think about more takes longer than to measure
MOST_STRUCTURES = 8  # tunables and their legal values depend on what is fused and rewritten, hardly on the choices


def structures(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The first recipe of each structure (what is fused and rewritten, or what an author wrote); at most
    MOST_STRUCTURES."""
    found: dict[tuple[frozenset[str], frozenset[str], str], Recipe] = {}
    for recipe in recipes:
        written = recipe.authored.digest if recipe.authored else ""
        found.setdefault((frozenset(recipe.materialise), frozenset(recipe.rewrites), written), recipe)
    return list(found.values())[:MOST_STRUCTURES]


async def known_kernels(mark: Mark, services: Services) -> tuple[Known, ...]:
    """Configurations that the run had measured at the mark, by id, then pending ones, then those of earlier runs."""
    history = services.recorded or services.run
    stages = history.measured(mark)
    found = []
    for name in sorted(stages.keys() - {REFERENCE}, key=candidate_number)[-MOST_KNOWN:]:
        key = f"{name}/{stages[name]}"
        if key not in services.known:
            services.known[key] = await _known(name, stages[name], services)
        found.append(services.known[key])
    for candidate in history.pending(mark):
        if candidate.recipe is not None:
            lowered = await services.lower(candidate.recipe)
            found.append(replace(known_of(lowered.kernels, lowered.structure), pending=True))
    return (*(item for item in found if item is not None), *await recall_known(services))


async def recall_known(services: Services) -> tuple[Known, ...]:
    """Configurations that earlier runs measured of the templates of this graph's first candidates and their neighbours.

    The store is asked once. () without a graph: the store finds kernels by their operators.
    """
    if services.others is None:
        graphs = await services.graphs()
        if not graphs:
            return ()
        asked = query(graphs[0], services.device)
        services.others = (await services.recall_known(asked, lambda: _find_templates(graphs[0], services))).known
    return services.others


async def _find_templates(graph: OpGraph, services: Services) -> set[str]:
    """Names of the templates that the graph's first kernels use."""
    return {kernel.template for lowered in await first_kernels(graph, services) for kernel in lowered.kernels}


async def first_kernels(graph: OpGraph, services: Services, neighbours: int = NEIGHBOURS) -> list[Lowered]:
    """The kernel compiler's first candidates, each followed by at most `neighbours` changes of its structure."""
    found = []
    with contextlib.suppress(CannotLower):
        for recipe in services.library.seeds(graph, services.device)[:SEEDS]:
            found.append(await services.lower(recipe))
            changes = [move for move in services.library.moves(found[-1]) if move.kind != "set"]
            for move in changes[:neighbours]:
                with contextlib.suppress(CannotLower):
                    found.append(await services.lower(services.library.apply(recipe, move)))
    return found


async def _known(name: str, stage: Stage, services: Services) -> Known | None:
    """A candidate as the estimates see it; None without a recipe. It counts as failed without a finite estimate."""
    records = services.records(name, stage)
    recipe = records[-1].candidate.recipe
    if recipe is None:
        return None
    lowered, estimate = await services.lower(recipe), services.estimate(name, stage)
    where = known_of(lowered.kernels, lowered.structure)
    if estimate is None or math.isinf(estimate.deviation):
        return replace(where, failed=True)
    return replace(where, log_speedup=estimate.log_speedup, deviation=estimate.deviation)


def read_known_kernels(run: RunDirectory, library: Library) -> tuple[list[Lowered], OpGraph | None]:
    """(library kernels, graph) of a run that another process may be working on; empty before the graph is captured."""
    rows = run.database.run("SELECT value FROM journal WHERE key = 'intake'")
    if not rows:
        return [], None
    from foundry.tools.grade.host.workbench import Intake

    graphs = decode(Intake, rows[0][0]).graphs
    if not graphs:
        return [], None
    task, device = decode(Task, run.get("task")), decode(Device, run.get("device"))
    found = []
    for recipe in structures(item.candidate.recipe for item in run.decisions() if item.candidate.recipe):
        with contextlib.suppress(CannotLower):
            found.append(library.lower(graphs, recipe, task_source=task.text, device=device))
    return found, graphs[0]
