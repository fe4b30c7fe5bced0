"""The result file as processes and kills leave it, and the arithmetic of the summary on recorded lines."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from foundry.graph.doors.bench import pictures
from foundry.graph.doors.bench.figures import ForeignFigures, figures_of
from foundry.graph.doors.bench.report import report
from foundry.graph.doors.bench.request import BenchRequest
from foundry.graph.doors.bench.results import ResultFile, TaskResult, settle
from foundry.knowledge.candidate import ForeignVerdict
from foundry.knowledge.errors import MissingTool, NotComparable, UsageError


def accepted(task: str, speedup: float, compile_speedup: float | None = None, **more: Any) -> TaskResult:
    versus = speedup / compile_speedup if compile_speedup else None
    known: dict[str, Any] = {"speedup_vs_compile": versus, "compile_speedup": compile_speedup, "run": "runs/x", **more}
    return TaskResult(task, "d", "accepted", speedup=speedup, speedup_ci95=(0.9 * speedup, 1.1 * speedup), **known)


LINES = [
    accepted(
        "a/1",
        4.0,
        2.0,
        fraction_of_floor=0.8,
        evaluations=10,
        wall_s=30.0,
        first_verified_s=8.0,
        peak_memory_ratio=0.5,
        foreign=ForeignVerdict("verified", True, "9 of 9", "", 4.0, 1.0, True),
    ),
    accepted(
        "a/2",
        0.5,
        1.0,
        fraction_of_floor=0.2,
        evaluations=20,
        wall_s=60.0,
        first_verified_s=12.0,
        peak_memory_ratio=2.0,
        foreign=ForeignVerdict("verified", False, "8 of 9", "x3 is off", None, None, True),
    ),
    TaskResult("a/3", "d", "nothing accepted", "no template", compile_speedup=1.5),
    TaskResult("a/4", "d", "failed", "it rolls dice", "random"),
    accepted("b/1", 1.1, evaluations=99, wall_s=9000.0, first_verified_s=8000.0, sessions=2),
    TaskResult("b/2", "d", "failed", "zeros pass | always", "no question tells right from wrong"),
]


def test_the_figures_of_recorded_lines() -> None:
    first, second, every = figures_of(LINES)
    assert (first.group, second.group, every.group) == ("a", "b", "all")
    assert (every.tasks, every.counted, every.accepted, every.correct) == (6, 4, 3, 0.75)
    assert every.geomean == pytest.approx((4.0 * 0.5 * 1.1) ** (1 / 3))  # the slow one stays
    assert every.geomean_of_all == pytest.approx((4.0 * 0.5 * 1.1) ** (1 / 4))
    assert every.median == 1.1
    assert (every.fast_1, every.fast_1_2, every.fast_2) == (0.5, 0.25, 0.25)
    assert every.compiled.by_kernel == pytest.approx(math.sqrt(2.0 * 0.5))
    assert every.compiled.beaten == pytest.approx(1 / 3)  # of the three on which it was timed
    assert every.compiled.over_baseline == pytest.approx((2.0 * 1.0 * 1.5) ** (1 / 3))
    assert every.peak_memory == pytest.approx(math.sqrt(0.5 * 2.0))
    foreign = every.foreign  # shares of the four that count
    assert foreign is not None and foreign.geomean == pytest.approx(4.0)
    assert foreign == ForeignFigures("verified", 0.25, foreign.geomean, 0.25, 1.0)
    assert (second.foreign, every.autotuned.tasks) == (None, 0)
    assert every.fraction_of_floor == 0.5
    assert (every.first_verified_s, every.task_s) == (10.0, 45.0)  # the run in two pieces says nothing of seconds
    assert every.evaluations_per_minute == pytest.approx(30 / 1.5)
    assert (second.counted, second.accepted, second.compiled.by_kernel) == (1, 1, None)


def test_nothing_that_counts_has_no_figures_but_a_report() -> None:
    (figures,) = figures_of([LINES[3]])
    assert (figures.counted, figures.geomean, figures.geomean_of_all, figures.fast_1, figures.correct) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert "None has an accepted kernel." in report([LINES[3]])


def test_the_report_names_every_task_once_where_it_belongs() -> None:
    told = report(LINES)
    tasks, rest = told.split("## Tasks")[1].split("## Without an accepted kernel")
    without, excluded = rest.split("## Not counted")
    assert "| a/1 | - | - | 4.00x [3.60, 4.40] | - | 2.00x | - | 0.50x | 80 % | - | 4.00x |" in tasks
    assert "| 8 of 9: x3 is off |" in tasks and "| b/1 |" in tasks
    assert "| all | torch.compile | 3 | 1.44x | 1.00x | 33 % |" in told and "| all | verified | 25 % | 4.00x |" in told
    assert without.split() == ["-", "a/3:", "no", "template"]
    assert "- a/4: random: it rolls dice" in excluded
    assert "- b/2: no question tells right from wrong: zeros pass | always" in excluded
    for table in told.split("\n\n"):
        if table.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in table.strip().splitlines()}) == 1


def test_lines_outlive_torn_and_foreign_ones(tmp_path: Path) -> None:
    results = ResultFile(tmp_path)
    assert results.read() == []
    results.append(LINES[0])
    with results.path.open("a") as handle:
        handle.write('{"task": "a/2", "dig')  # a disk that was full
    results.append(LINES[1])
    results.append(accepted("a/1", 5.0))  # done again: the later line holds
    assert [(line.task, line.speedup) for line in results.read()] == [("a/1", 5.0), ("a/2", 0.5)]
    assert results.knows("a/2", "d") == LINES[1]
    assert results.knows("a/2", "changed") is None
    assert results.knows("a/3", "d") is None


def test_a_folder_keeps_its_settings(tmp_path: Path) -> None:
    request = BenchRequest("tasks", str(tmp_path / "out"))
    settle(request, {"torch": "2.13", "device": "cpu:x:2"})
    settle(BenchRequest("tasks", request.out, only="1_", shard=(2, 2)), {"torch": "2.13", "device": "cpu:x:2"})
    with pytest.raises(UsageError, match="begun with effort bench, not quick"):
        settle(BenchRequest("tasks", request.out, effort="quick"), {"torch": "2.13", "device": "cpu:x:2"})
    with pytest.raises(NotComparable, match=r"begun with torch 2\.13, this is 2\.14"):
        settle(request, {"torch": "2.14", "device": "cpu:x:2"})
    (tmp_path / "out/bench.json").write_text("nonsense")
    with pytest.raises(UsageError, match="no JSON"):
        settle(request, {})


def test_without_matplotlib_the_command_that_installs_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as Python itself takes a package for missing
    with pytest.raises(MissingTool, match="pip install matplotlib"):
        pictures.check_drawable()


def test_pictures_of_nothing_and_of_many_tasks_can_be_drawn(tmp_path: Path) -> None:
    many = [accepted(f"a/{number}", 1.0 + number / 10, 1.5, evaluated_s=[1.0, 2.0]) for number in range(80)]
    for lines in ([LINES[3]], many):
        for name in pictures.draw(lines, tmp_path):
            assert (tmp_path / name).stat().st_size > 1000
