"""Writes the page of a run into its folder."""

from __future__ import annotations

from pathlib import Path

from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.page.facts import RunFacts, run_facts
from foundry.graph.show.page.page import render

PAGE = "report.html"


def run_page(facts: RunFacts, *, live: tuple[str, ...] = ()) -> str:
    """The page of a run, as its file holds it."""
    return render(facts, f"{facts.summary.task}: Foundry", [facts.id, *facts.verdict_lines], "run.js", live=live)


def write_report(run: RunDirectory, to: Path | None = None) -> Path:
    """Writes the page of a run; returns where. Raises StorageFailed."""
    path = to or run.path / PAGE
    run.write(path, run_page(run_facts(run)).encode())
    return path
