"""What LangGraph carries and checkpoints: ids and numbers only. Texts and records live in the run directory."""

from __future__ import annotations

from typing import Annotated, TypedDict

from foundry.graph.search.archive import Archive
from foundry.graph.search.gradients import Transition
from foundry.knowledge.thought import ExpertName, Role


class IslandReport(TypedDict, total=False):
    """What an island leaves behind at the end of a round; the next round starts from it."""

    island: int
    round: int
    generation: int
    archive: Archive
    population: dict[str, tuple[str, float]]
    dry: list[str]
    transitions: list[Transition]
    directives: list[int]
    inbox_after: int
    reason: str  # why it stopped


def merge_reports(old: dict[str, IslandReport] | None, new: dict[str, IslandReport] | None) -> dict[str, IslandReport]:
    """Each island writes under its own key, so the order in which they end does not matter."""
    return {**(old or {}), **(new or {})}


class RunState(TypedDict, total=False):
    """The root graph's state. `task` and `target` are read only where no `run` is given (LangGraph's dev server)."""

    task: str
    target: str
    run: str  # path of the run directory
    round: int
    lowerable: bool  # whether the kernel library could write a first candidate
    seeds: list[str]  # ids of the first candidates
    ending: str  # why the search ended
    islands: Annotated[dict[str, IslandReport], merge_reports]
    winner: str  # candidate id, "" when nothing was accepted


class IslandState(IslandReport, total=False):
    """One island's state while it loops its generations."""

    run: str
    role: Role
    best: float  # highest merit in this round
    idle: int  # generations since `best` rose
    misses: int  # steps in a row that gave no candidate
    broken: str  # a failed candidate that the diagnostician may still repair, or ""
    repairs: int  # repairs in a row
    stop: str  # why the island ends, "" while it goes on
    # the step at hand
    parent: str
    active: list[int]  # ids of directives shown to this step
    experts: list[ExpertName]  # in the order to ask them
    candidate: str  # "" when the step gave none
    text: str  # sha256 of the candidate's file
    outcome: str  # why the candidate's tests ended early, "" when it passed them
    proven: bool  # the full protocol was spent on it
    islands: Annotated[dict[str, IslandReport], merge_reports]


class IslandOutput(TypedDict, total=False):
    """Only a key with a reducer may flow up: several islands end in one superstep."""

    islands: Annotated[dict[str, IslandReport], merge_reports]
