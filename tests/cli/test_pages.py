"""What a run shows to people and to other tools, as a user asks for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .conftest import Cli, Solved, rows

TRACE_PAGE = (Path(__file__).resolve().parents[2] / "docs/trace.md").read_text()


def test_a_run_leaves_a_page_and_writes_it_again(solved: Solved, tmp_path: Path) -> None:
    left = (solved.run / "report.html").read_text()
    assert left.startswith("<!doctype html>") and "toy" in left
    again = tmp_path / "again.html"
    done = solved.cli.here("agent", "report", solved.first.json["run"], "--out", again)
    assert done.code == 0 and done.out.strip() == str(again), done.err
    assert again.read_text() == left


def test_what_is_neither_a_run_nor_a_bench_has_no_page(cli: Cli) -> None:
    assert cli.here("agent", "report", "nothing").is_one_line("no run 'nothing'")


def test_what_a_model_was_told_is_shown_with_its_first_bad_answer_and_the_repair(solved: Solved) -> None:
    """What the scripted model says suits no auditor: it is asked to say it in the right form, and cannot."""
    run = solved.second.json["run"]
    shown = solved.cli.here("agent", "trace", run, "--prompts").out
    assert "by scripted-1: answered" in shown and "by scripted-1: failed" in shown
    told = [part.split("\n", 1)[0] for part in shown.split("--- system\n")[1:]]  # "# You are the ..."
    assert len(told) >= 2 and len(set(told)) == len(told), "each expert's once; then it is as before"
    assert len(told) + shown.count("--- system: as before") == shown.count("--- system")
    bad = shown.split("--- first answer, which could not be used\n")[1].split("\n--- repair\n")
    assert bad[0] and "--- answer" in bad[1]
    assert "--- prompt" in solved.cli.here("agent", "trace", run, "--prompts", "--kind", "expert").out
    nobody = solved.cli.here("agent", "trace", solved.first.json["run"], "--prompts").out
    assert "the playbook asks nobody" in nobody


def test_a_trace_is_filtered_followed_and_exported(solved: Solved, tmp_path: Path) -> None:
    run = solved.first.json["run"]
    lines = solved.cli.here("agent", "trace", run, "--kind", "tool", "--slowest", "3").out.splitlines()
    assert len(lines) == 3 and all(" tool " in line for line in lines)
    picked = solved.cli.here("agent", "trace", run, "--kind", "evaluation", "--json").out.splitlines()
    assert picked and {json.loads(line)["kind"] for line in picked} == {"evaluation"}
    followed = solved.cli.here("agent", "trace", run, "--follow", "--json").out.splitlines()
    assert len(followed) == len(solved.cli.here("agent", "trace", run, "--json").out.splitlines())
    solved.cli.here("agent", "trace", run, "--export", "otel", "--out", tmp_path / "spans.json")
    (resource,) = json.loads((tmp_path / "spans.json").read_text())["resourceSpans"]
    assert resource["scopeSpans"][0]["spans"][0]["name"] == "invoke_agent foundry"
    assert solved.cli.here("agent", "trace", run, "--kind", "nonsense").is_one_line("--kind nonsense", "evaluation")
    assert solved.cli.here("agent", "trace", run, "-c", "c999", "--failures").is_one_line("no candidate c999")


def test_the_events_are_those_that_the_readme_describes(solved: Solved) -> None:
    """Every kind has its row, the fields of a row are there, and the queries run."""
    table = TRACE_PAGE.split("<!-- events -->")[1].split("<!-- /events -->")[0]
    described: dict[str, set[str]] = {}
    for kind, fields in re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) ?\|$", table, re.MULTILINE):
        described.setdefault(kind, set()).update(set(re.findall(r"`(\w+)`", fields)))
    runs = [solved.cli.folder / solved.first.json["run"], solved.cli.folder / solved.second.json["run"]]
    found: dict[str, set[str]] = {}
    for run in runs:
        assert rows(run, "SELECT value FROM meta WHERE key = 'events'") == [("2",)]
        for kind, name in rows(run, "SELECT DISTINCT kind, key FROM events, json_each(events.data)"):
            found.setdefault(kind, set()).add(name)
    assert found.keys() <= described.keys()
    rare = {"error", "problem", "failed"}  # of what went wrong
    for kind in ("expert", "tool", "proposal", "evaluation"):
        assert described[kind] - rare <= found[kind], kind
    for query in re.search(r"```sql\n(.*?)```", TRACE_PAGE, re.DOTALL)[1].strip().split(";\n"):  # type: ignore[index]
        assert rows(runs[1], query), query
