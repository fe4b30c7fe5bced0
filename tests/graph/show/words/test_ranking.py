"""Who won and why the others lost, asked as somebody would who has read `foundry agent chat --help`."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from foundry.cli import app
from foundry.graph.run.run_directory import RunDirectory
from foundry.knowledge.merit import estimate_of

LINE = re.compile(r"(\d+)\. (c\d+), (\d+\.\d\d)x \((\S+) to (\S+); (\w[\w ]*), (\d+) pairs\)(.*)")


def asked(run: Path, question: str) -> str:
    found = CliRunner().invoke(app, ["agent", "chat", str(run), question])
    assert found.exit_code == 0, found.output
    return found.output


def test_why_the_third_best_candidate_lost(finished: Path) -> None:
    """Proven candidates stand first, by their proofs; the answer holds the numbers that decided."""
    lines = asked(finished, "ranking").splitlines()
    places = [found.groups() for line in lines if (found := LINE.match(line))]
    assert [int(place[0]) for place in places] == [*range(1, 11)] and lines[10].startswith("and ")
    assert re.match(r"Without a place: \d+ \w+", lines[11]), lines
    run = RunDirectory.inspect(finished, reading=True)
    winner, third = places[0][1], places[2][1]
    assert winner == run.get("winner") and places[0][7] == ": the winner"
    proofs = {name: estimate_of(run.records(name, ("final",))) for name in (winner, third)}
    known = estimate_of(run.records(third))
    run.close()
    stages = [place[5] for place in places]
    assert stages == sorted(stages, key=lambda stage: stage != "proven")
    told = asked(finished, f"why {third}")
    assert told.startswith(f"{third} ")
    *_, place, reason = told.splitlines()
    assert place.startswith("It is number 3 of ") and f"The winner is {winner}, {places[0][2]}x" in place
    decided = proofs[third] or known
    assert decided is not None and f"{decided.cautious:.2f}x" in reason
    assert asked(finished, f"why {winner}").splitlines()[-1].endswith("that are correct and clean: it won.")


def test_a_rejected_candidate_has_no_place(finished: Path) -> None:
    run = RunDirectory.inspect(finished, reading=True)
    wrong = next(found.candidate.id for found, _ in run.evaluations() if not found.build.ok)
    run.close()
    told = asked(finished, f"why {wrong}")
    assert "It did not compile: error: too many registers" in told and "number" not in told
