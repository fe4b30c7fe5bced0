"""The page of a bench: what its summary and its pictures say, in one HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foundry.graph.doors.bench.figures import Figures, figures_of, group_of
from foundry.graph.doors.bench.report import report
from foundry.graph.doors.bench.results import ResultFile, TaskResult
from foundry.graph.run.database import storage_failure
from foundry.graph.show.page.page import render
from foundry.graph.show.page.write import PAGE
from foundry.knowledge.errors import UsageError


@dataclass(frozen=True)
class TaskLine:
    """One task's line; `page` is the page of its run as seen from the bench's folder, "" where there is none."""

    group: str
    result: TaskResult
    is_accepted: bool
    page: str


@dataclass(frozen=True)
class BenchFacts:
    """The page's data."""

    kind: str
    name: str
    versions: dict[str, str]
    figures: list[Figures]
    correct: list[float | None]  # share of tasks with an accepted kernel, for each of the figures
    tasks: list[TaskLine]


def write_page(lines: Sequence[TaskResult], folder: Path, to: Path | None = None) -> Path:
    """Writes the page of a bench's lines, into its folder unless told otherwise. Raises StorageFailed."""
    figures = figures_of(lines)
    facts = BenchFacts(
        kind="bench",
        name=folder.resolve().name,
        versions=next((line.versions for line in lines if line.versions), {}),
        figures=figures,
        correct=[one.correct for one in figures],
        tasks=[TaskLine(group_of(line), line, line.is_accepted, _page_of(line, folder)) for line in lines],
    )
    path = to or folder / PAGE
    try:
        path.write_text(render(facts, f"{facts.name}: Foundry bench", [report(lines)], "bench.js"), encoding="utf-8")
    except OSError as error:
        raise storage_failure(error, path) from error
    return path


def write_page_again(folder: Path, to: Path | None = None) -> Path:
    """Writes the page of a bench from its result file. Raises UsageError where there is none, StorageFailed."""
    lines = ResultFile(folder).read()
    if not lines:
        raise UsageError(f"{folder} holds no result that can be read", "name a run, or the folder of a bench")
    return write_page(lines, folder, to)


def _page_of(line: TaskResult, folder: Path) -> str:
    """Only a page that lies below the bench's folder: result files are put together from other machines too."""
    page = Path(line.run) / PAGE
    is_below = bool(line.run) and not page.is_absolute() and ".." not in page.parts
    return page.as_posix() if is_below and (folder / page).is_file() else ""
