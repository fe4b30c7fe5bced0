"""Pages for people, as a user asks for them."""

from __future__ import annotations

from pathlib import Path

from .conftest import Cli, Solved


def test_a_run_leaves_a_page_and_writes_it_again(solved: Solved, tmp_path: Path) -> None:
    left = (solved.run / "report.html").read_text()
    assert left.startswith("<!doctype html>") and "toy" in left
    again = tmp_path / "again.html"
    done = solved.cli.here("agent", "report", solved.first.json["run"], "--out", again)
    assert done.code == 0 and done.out.strip() == str(again), done.err
    assert again.read_text() == left


def test_what_is_neither_a_run_nor_a_bench_has_no_page(cli: Cli) -> None:
    cli.here("agent", "report", "nothing").is_one_line("no run 'nothing'")
