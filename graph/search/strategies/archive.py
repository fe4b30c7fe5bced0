"""MAP-Elites (Mouret and Clune 2015): one elite per cell of the kernel's three coordinates, an archive per island."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from foundry.knowledge.candidate import Coordinates

Gain = Literal["new cell", "better elite", ""]


class Elite(TypedDict):
    """The best candidate of one cell, as it stands in the graph's state: an id and its merit (knowledge/merit.py)."""

    candidate: str
    merit: float


ONE_CELL = "000"
Archive = dict[str, Elite]  # cell name -> elite
Population = dict[str, tuple[str, float]]  # candidate -> cell and merit


def cell_of(coordinates: Coordinates | None) -> str:
    """`"120"`: d_mem, d_algo, d_sync."""
    if coordinates is None:
        return ONE_CELL
    return f"{coordinates.d_mem}{coordinates.d_algo}{coordinates.d_sync}"


def insert(archive: Archive, candidate: str, cell: str, value: float) -> tuple[Archive, Gain]:
    """A new archive with the candidate in its cell when it beats the elite there, and what that gained."""
    elite = archive.get(cell)
    if elite is None:
        return {**archive, cell: Elite(candidate=candidate, merit=value)}, "new cell"
    if elite["candidate"] == candidate or value > elite["merit"]:
        gain: Gain = "" if elite["candidate"] == candidate else "better elite"
        return {**archive, cell: Elite(candidate=candidate, merit=value)}, gain
    return archive, ""


def rank_elites(archive: Archive) -> list[Elite]:
    """The best first; ties go to the older candidate."""
    return sorted(archive.values(), key=lambda elite: (-elite["merit"], candidate_number(elite["candidate"])))


def best(archive: Archive) -> Elite | None:
    return next(iter(rank_elites(archive)), None)


def without_cells(archive: Archive, population: Population) -> tuple[Archive, Population]:
    """What a step without archive sees: everyone in one cell, of which the best is the elite. The cells are filled all
    the same, for a model that thinks later on and for those who watch."""
    elite = best(archive)
    return {ONE_CELL: elite} if elite else {}, {name: (ONE_CELL, value) for name, (_, value) in population.items()}


def candidate_number(candidate: str) -> int:
    return int(candidate[1:])
