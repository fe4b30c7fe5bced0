"""What `foundry agent solve` promises a script and a reader."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from foundry.tools.verify.receipt import receipt_schema

from .conftest import LIMIT_S, SHORT_END, TINY, Cli, Solved, interrupting, rows, working_below

KINDS: dict[str, type | tuple[type, ...]] = {
    "run": str,
    "verdict": str,
    "speedup": float,
    "speedup_ci95": list,
    "speedup_vs_compile": (float, type(None)),
    "evaluations": int,
    "wall_s": float,
    "kernel": str,
    "receipt": str,
}


def test_two_runs_at_once_on_one_store_both_end_well(solved: Solved) -> None:
    for done in (solved.first, solved.second):
        assert (done.code, done.err) == (0, "")
        assert done.out.count("\n") == 1
        summary = done.json
        assert {name: type(summary[name]) for name in KINDS if not isinstance(summary[name], KINDS[name])} == {}
        assert summary["verdict"] == "accepted" and summary["evaluations"] >= 3
        low, high = summary["speedup_ci95"]
        assert 0.0 < low <= summary["speedup"] <= high and math.isfinite(high)
        assert summary["baseline_ms"] > 0.0 and summary["candidate_ms"] > 0.0
    assert solved.first.json["run"] != solved.second.json["run"]
    lessons = solved.cli.here("knowledge", "list", "--store", "store", "--limit", "100", "--json").json
    sources = {Path(lesson["receipt"]).parent.name for lesson in lessons if lesson.get("receipt")}
    assert sources == {Path(done.json["run"]).name for done in (solved.first, solved.second)}
    assert not working_below(solved.cli.folder)


def test_a_chat_model_drives_the_experts(solved: Solved) -> None:
    """Its first and third answers are taken; the second is no chat completion and costs nothing but itself."""
    summary = solved.second.json
    assert summary["brain"] == "scripted-1" and summary["tokens"] >= 2200
    assert solved.server.requests[0]["model"] == "scripted-1"
    decisions = rows(solved.cli.folder / summary["run"], "SELECT body FROM decisions")
    proposals = [json.loads(body)["proposal"] for (body,) in decisions]
    assert "fewer rows in flight" in {found["rationale"] for found in proposals if found}


@pytest.mark.slow
def test_a_model_that_cannot_be_reached_costs_nothing_and_is_said(warm_cli: Cli) -> None:
    """The playbook takes its steps; the ending counts them."""
    dead = ("--model", "scripted-1", "--base-url", "http://127.0.0.1:9/v1")

    def an_island_has_tested() -> bool:
        runs = warm_cli.folder.glob("runs/toy-*")
        return any(rows(run, "SELECT 1 FROM evaluations WHERE island >= 0") for run in runs)

    with interrupting(an_island_has_tested):
        done = warm_cli.here("agent", "solve", "toy.py", *dead, "--evaluations", "20", "--islands", "1", "--no-learn")
    assert done.code == 130 and "evaluation 1)" in done.err, "a line an evaluation, where there is no terminal"
    assert all(" min " in line for line in done.err.splitlines())
    assert done.out.startswith("model: scripted-1 at 127.0.0.1:9, price unknown")
    assert "note: scripted-1 left" in done.out and "unreachable" in done.out


def test_the_run_directory_holds_what_is_documented(solved: Solved) -> None:
    names = {path.name for path in solved.run.iterdir()}
    assert {"kernel.py", "receipt.json", "run.sqlite"} <= names
    assert "scratch" not in names
    assert len(rows(solved.run, "SELECT * FROM events")) > 10
    receipt = json.loads((solved.run / "receipt.json").read_text())
    jsonschema.validate(receipt, receipt_schema())
    assert receipt["timing"]["speedup"] == solved.first.json["speedup"]
    for path in solved.run.rglob("*"):
        assert not path.is_file() or b"FOUNDRY_TEST_SECRET" not in path.read_bytes()


def test_a_speedup_that_is_not_reached_is_exit_1(solved: Solved) -> None:
    assert solved.cli.here("agent", "resume", solved.run.name, "--min-speedup", "1000").code == 1
    assert solved.cli.here("agent", "resume", solved.run.name, "--min-speedup", "0.0001").code == 0


def test_cuda_without_a_gpu_compiles_and_says_what_is_not_proven(warm_cli: Cli) -> None:
    done = warm_cli.here("agent", "solve", "toy.py", "--target", "cuda", *TINY, "--no-learn", CUDA_VISIBLE_DEVICES="")
    if done.code == 3:
        assert done.is_one_line("nvcc", "install", code=3)
        return
    assert done.code == 1
    assert all("unproven, no cuda device is here (evaluation " in line for line in done.err.splitlines())
    assert "nothing is proven" in done.out.splitlines()[0]
    for word in ("registers", "spill", "occupancy", "no receipt", "kernel.py"):
        assert word in done.out
    assert "use it:" not in done.out


@pytest.mark.slow
def test_a_search_that_nobody_listens_to_any_more_ends_as_any_other(cli: Cli) -> None:
    """`2>&1 | head -1`: the reader leaves after the first line."""
    child = cli.start("agent", "solve", "toy.py", "--evaluations", "3", "--minutes", "20", "--islands", "1", *SHORT_END)
    assert child.stdout and child.stderr
    first = child.stderr.readline()
    child.stdout.close()
    child.stderr.close()
    assert first.split()[1] == "min"
    assert child.wait(LIMIT_S) == 0
    (run,) = cli.here("agent", "runs", "--json").json
    assert (run["verdict"], run["ending"].startswith("cannot write")) == ("accepted", False)
    assert (cli.folder / run["receipt"]).is_file()
