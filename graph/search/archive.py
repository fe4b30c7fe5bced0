"""MAP-Elites (Mouret and Clune 2015): one elite per cell of the kernel's three coordinates, an archive per island."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict

from foundry.graph.run.request import Mechanism
from foundry.knowledge.candidate import Coordinates

Gain = Literal["new cell", "better elite", ""]


class Elite(TypedDict):
    """The best candidate of one cell, as it stands in the graph's state: an id and its merit (knowledge/merit.py)."""

    candidate: str
    merit: float


ONE_CELL = "000"
Archive = dict[str, Elite]  # cell name -> elite


def cell_of(coordinates: Coordinates | None, without: Sequence[Mechanism] = ()) -> str:
    """`"120"`: d_mem, d_algo, d_sync. All share one cell in a run without archive."""
    if coordinates is None or "archive" in without:
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


def best(archive: Archive) -> Elite | None:
    """The elite of highest merit; ties go to the older candidate."""
    ranked = sorted(archive.values(), key=lambda elite: (-elite["merit"], candidate_number(elite["candidate"])))
    return ranked[0] if ranked else None


def candidate_number(candidate: str) -> int:
    return int(candidate[1:])
