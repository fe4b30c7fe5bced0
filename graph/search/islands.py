"""The state in which each island begins."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from foundry.graph.run.request import role_of
from foundry.graph.run.services import Services
from foundry.graph.search.orders import no_orders
from foundry.graph.search.state import IslandReport, IslandState, RunState, report_key, step_name
from foundry.graph.search.strategies.archive import ONE_CELL, Archive, cell_of, insert
from foundry.knowledge.candidate import (
    REFERENCE,
)
from foundry.knowledge.merit import CORRECT, WRONG, merit
from foundry.knowledge.thought import Role


def first_reports(state: RunState, services: Services) -> IslandReport:
    """What every island starts from: all first candidates, each in its cell of the archive."""
    archive: Archive = {}
    population: dict[str, tuple[str, float]] = {}
    for name in state.get("seeds", []):
        evaluation = services.evaluation(name, "screen")
        value = WRONG if name in state.get("refused", []) else merit([evaluation])
        cell = cell_of(evaluation.coordinates)
        population[name] = (cell, value)
        if evaluation.coordinates is not None and value >= CORRECT:
            archive, _ = insert(archive, name, cell, value)
    if not population:
        archive, _ = insert(archive, REFERENCE, ONE_CELL, CORRECT)
        population = {REFERENCE: (ONE_CELL, CORRECT)}
    return IslandReport(
        generation=0,
        archive=archive,
        population=population,
        dry=[],
        transitions=[],
        directives=[],
        inbox_after=0,
        orders=no_orders(),
        folded=0,
    )


def island_inputs(state: RunState, services: Services) -> list[IslandState]:
    """What each strand of each island of the coming round is sent."""
    round_, strands = state.get("round", 0), services.request.strands
    start = first_reports(state, services)
    inputs = []
    usual, added = services.request.island_count, state.get("added", [])
    off = services.request.left_out  # each step looks again (`select`)
    for number, strand in itertools.product(range(usual + len(added)), range(strands)):
        begun = IslandReport({**start, "generation": 1 + strand - strands})
        earlier = state.get("islands", {}).get(report_key(number, strand), begun)
        archive = earlier["archive"]
        inputs.append(
            IslandState(
                run=str(services.run.path),
                island=number,
                strand=strand,
                role=role_of(number, round_, off),
                own_role=_added_role(number - usual, added),
                round=round_,
                generation=earlier["generation"],
                step=step_name(number, earlier["generation"]),
                archive=archive,
                population=earlier["population"],
                dry=earlier["dry"] if round_ == 0 else [],
                transitions=earlier["transitions"],
                directives=earlier["directives"],
                inbox_after=earlier["inbox_after"],
                orders=earlier["orders"],
                folded=earlier["folded"],
                islands_now=usual + len(added),
                best=max((elite["merit"] for elite in archive.values()), default=0.0),
                idle=0,
                misses=0,
                repairs=0,
                broken="",
                stop=None,
            )
        )
    return inputs


def _added_role(number: int, added: Sequence[str]) -> Role | None:
    """The role of the island that users added as this one; None where they named none."""
    return cast("Role", added[number]) if 0 <= number < len(added) and added[number] else None


def wants_islands(state: RunState, services: Services) -> bool:
    """Whether there is anything to search: a device, and a first candidate or a model that can write one."""
    return services.device.present and (bool(state.get("seeds")) or services.brain.name != "playbook")
