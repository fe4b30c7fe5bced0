"""The page that a run leaves: what it says, that nothing in it acts, and how large it is."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.graph.finished import HOSTILE

from foundry.graph.doors.bench.page import write_page, write_page_again
from foundry.graph.doors.bench.results import ResultFile, TaskResult
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.show.page.facts import run_facts
from foundry.graph.show.page.page import HERE, LIBRARIES
from foundry.graph.show.page.write import write_report
from foundry.knowledge.errors import UsageError

from .page_parts import PageParts, hashes_of

LEAD = {"seed", "numbers", "fusion", "rewrite", "code"}


def test_a_finished_run_leaves_its_page(finished: Path) -> None:
    found = PageParts((finished / "report.html").read_text())
    data = found.data
    run = RunDirectory.inspect(finished)
    winner = run.evaluation(run.get("winner"))
    assert data["id"] == finished.name and data["summary"]["verdict"] == "accepted"
    assert data["summary"]["contest"]["rivals"][0]["name"] == "compile"
    assert len(data["candidates"]) == run.evaluation_count() >= 20
    assert {one["change"] for one in data["candidates"]} <= LEAD
    assert any(one["outcome"] == "compile error" for one in data["candidates"]), "failures are shown too"
    (best,) = (one for one in data["candidates"] if one["id"] == winner.candidate.id)
    assert winner.timing and best["speedup"] == pytest.approx(winner.timing.speedup)
    assert data["ancestry"]["code"] == (finished / "kernel.py").read_text()
    line = data["ancestry"]["line"]
    assert line[0] == winner.candidate.id and len(data["ancestry"]["diffs"]) == len(line) - 1
    assert "@@" in data["ancestry"]["diffs"][0][2]
    assert {span["kind"] for span in data["spans"]} >= {"compile", "time", "thinking"}
    said = data["directives"][0]
    assert said["text"] == "@tiling avoid tile 128" and said["taken"] and said["effects"]
    assert {expert["expert"] for expert in data["experts"]} >= {"tiling", "diagnostician"}
    run.close()


def test_nothing_that_an_author_wrote_becomes_markup(hostile: Path) -> None:
    run = RunDirectory.inspect(hostile)
    text = write_report(run).read_text()
    run.close()
    found = PageParts(text)
    data = found.data
    assert data["summary"]["task"] == HOSTILE and data["directives"][-1]["text"] == HOSTILE
    assert HOSTILE in data["ancestry"]["code"]
    assert any(HOSTILE in one["rationale"] for one in data["candidates"])
    assert [kind for kind, _ in found.scripts] == ["application/json", "", "", "", "", ""]
    ours = {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for kind, script in found.scripts
        if not kind
    }
    assert ours == hashes_of(found.policy), "the policy lets our scripts run and no other"
    assert "default-src 'none'" in found.policy and "connect-src 'none'" in found.policy
    assert "unsafe-eval" not in found.policy and "unsafe-inline" not in found.policy.split("style-src")[0]
    assert set(found.addresses) == {"#main", "data:,"}, "it loads nothing"
    assert "<img" not in {f"<{tag}" for tag, _ in found.tags}


def test_the_page_of_500_evaluations_is_below_3_mb(grown: Callable[..., Path]) -> None:
    run = RunDirectory.inspect(grown(500, "why a kernel engineer would do that, at length; " * 40))
    path = write_report(run)
    assert len(PageParts(path.read_text()).data["candidates"]) >= 500
    assert path.stat().st_size < 3_000_000
    run.close()


def test_a_run_at_work_has_a_page_too(finished: Path, tmp_path: Path) -> None:
    """Of a run that has nothing yet: no candidate, no winner."""
    run = RunDirectory.inspect(finished)
    empty = RunDirectory(tmp_path)
    for key in ("format", "created", "request", "task", "task_name", "device", "device_key", "target"):
        empty.set(key, run.get(key))
    facts = run_facts(empty)
    assert facts.candidates == [] and facts.ancestry is None and facts.summary.verdict == "interrupted"
    for one in (run, empty):
        one.close()


def test_a_bench_has_a_page_with_the_pages_of_its_runs(tmp_path: Path) -> None:
    accepted = TaskResult("level1/softmax", "d", "accepted", speedup=2.0, speedup_ci95=(1.8, 2.2), run="runs/a")
    failed = TaskResult("level2/x", "d", "failed", reason=HOSTILE, notes=[HOSTILE], run="../outside")
    (tmp_path / "bench" / "runs/a").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for page in (tmp_path / "bench/runs/a/report.html", tmp_path / "outside/report.html"):
        page.write_text("a page")
    lines = [accepted, failed, replace(accepted, task="level1/other", run="javascript:alert(1)")]
    results = ResultFile(tmp_path / "bench")
    for line in lines:
        results.append(line)
    path = write_page(lines, tmp_path / "bench")
    assert path == tmp_path / "bench/report.html"
    found = PageParts(path.read_text())
    assert [task["page"] for task in found.data["tasks"]] == ["runs/a/report.html", "", ""]
    assert found.data["tasks"][1]["result"]["reason"] == HOSTILE and len(found.scripts) == 6
    assert [group["group"] for group in found.data["figures"]] == ["level1", "level2", "all"]
    assert write_page_again(tmp_path / "bench", tmp_path / "again.html").read_text() == path.read_text()
    with pytest.raises(UsageError, match="no result"):
        write_page_again(tmp_path)


def test_the_libraries_are_as_they_were_published() -> None:
    """What is inlined into every page is what its licence file names, to the byte, and nothing in it ends a script."""
    for name in LIBRARIES:
        raw = (HERE / name).read_bytes()
        told = (HERE / "vendor/LICENSES.txt").read_text().split(f"{Path(name).name}: ")[1]
        assert f"sha256 {hashlib.sha256(raw).hexdigest()}" in told.split("\n\n")[0], name
        assert b"</script" not in raw and b"<!--" not in raw
