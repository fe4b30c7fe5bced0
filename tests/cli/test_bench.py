"""`foundry bench` on two tiny tasks and two bad ones: killed in the middle, gone on with, summed up."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from foundry.tools.process.zygote import Zygote

from .conftest import TOY, Cli, Done, rows, working_below

RETURNED = "return torch.relu(x * 2.0 + self.bias)"
OPTIONS = ("--target", "cpu", "--evaluations", "1", "--no-compile", "--protocol", "verified", "--out", "out")
SECOND = "out/runs/2_gate/2_gate-*/run.sqlite"


@dataclass(frozen=True)
class Story:
    """A bench that is killed in its second task and called again, twice."""

    cli: Cli
    at_kill: list[dict[str, Any]]
    evaluated_at_kill: list[tuple[Any, ...]]
    summary_at_kill: str
    after_kill: list[int]  # processes that still worked then
    end: Done
    again: Done

    @property
    def out(self) -> Path:
        return self.cli.folder / "out"

    @property
    def lines(self) -> dict[str, dict[str, Any]]:
        return {line["task"]: line for line in lines_of(self.out)}


def lines_of(out: Path) -> list[dict[str, Any]]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, home: Path, zygote: Zygote) -> Iterator[Story]:
    cli = Cli(tmp_path_factory.mktemp("bench"), home, zygote)
    (cli.folder / "tasks").mkdir()
    cli.write("tasks/1_relu.py", TOY)
    cli.write("tasks/2_gate.py", TOY.replace(RETURNED, "return torch.tanh(x + self.bias)"))
    cli.write("tasks/3_broken.py", "class Model(:\n")
    cli.write("tasks/10_random.py", TOY.replace(RETURNED, "return x + torch.rand_like(x)"))
    child = cli.start("bench", "tasks", *OPTIONS)
    second = until(lambda: next(cli.folder.glob(SECOND), None), "the second task begins").parent
    until(lambda: rows(second, "SELECT 1 FROM evaluations"), "its first evaluation")
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    until(lambda: not working_below(cli.folder), "the workers are gone")
    at_kill, evaluated = lines_of(cli.folder / "out"), rows(second, "SELECT candidate, at FROM evaluations")
    summary, left = (cli.folder / "out/summary.md").read_text(), working_below(cli.folder)
    end = cli.here("bench", "tasks", *OPTIONS, "--no-pictures")
    yield Story(cli, at_kill, evaluated, summary, left, end, cli.here("bench", "tasks", *OPTIONS, "--json"))
    cli.close()


def test_what_was_finished_is_kept_and_what_was_begun_goes_on(story: Story) -> None:
    assert [line["task"] for line in story.at_kill] == ["1_relu", "3_broken"]
    assert "| 1_relu |" in story.summary_at_kill and "- 3_broken: " in story.summary_at_kill
    assert story.after_kill == []
    assert story.lines["1_relu"] == story.at_kill[0]
    (run,) = (story.out / "runs/2_gate").glob("2_gate-*")  # the one that was killed
    assert story.lines["2_gate"]["run"] == str(run.relative_to(story.out))
    assert story.lines["2_gate"]["sessions"] == 2 and story.lines["1_relu"]["sessions"] == 1
    assert story.evaluated_at_kill[0] in rows(run, "SELECT candidate, at FROM evaluations")


def test_every_task_is_one_line(story: Story) -> None:
    assert (story.end.code, story.end.err) == (0, "")
    assert [line["task"] for line in lines_of(story.out)] == ["1_relu", "3_broken", "2_gate", "10_random"]
    for name in ("1_relu", "2_gate"):
        line = story.lines[name]
        low, high = line["speedup_ci95"]
        assert line["verdict"] == "accepted" and low <= line["speedup"] <= high
        assert line["baseline_ms"] > 0 and line["candidate_ms"] > 0 and line["compile_ms"] is None
        assert 0.2 < line["peak_memory_ratio"] < 5.0
        foreign = line["foreign"]
        assert (foreign["rules"], foreign["correct"], foreign["trials"]) == ("verified", True, "9 of 9"), foreign
        assert foreign["baseline_ms"] > 0 and foreign["candidate_ms"] > 0 and foreign["eager_correct"]
        assert line["accuracy_class"] == "ieee" and line["fraction_of_floor"] > 0
        assert line["evaluations"] == len(line["evaluated_s"]) >= 1
        assert (story.out / line["kernel"]).is_file() and (story.out / line["receipt"]).is_file()
        assert line["versions"].keys() == {"foundry", "protocol", "torch", "device"}


def test_bad_tasks_are_lines_with_their_reason(story: Story) -> None:
    broken, random = story.lines["3_broken"], story.lines["10_random"]
    assert (broken["verdict"], broken["excluded"]) == ("failed", "") and "line 1" in broken["reason"]
    assert random["excluded"] == "random" and "changes with the random seed" in random["reason"]


def test_progress_without_a_terminal_is_a_line_a_task(story: Story) -> None:
    said = story.end.out.splitlines()
    assert re.match(
        r"\[3/4\] 2_gate: [\d.]+x \[.*\] the speed of eager, [\d.]+ ms against [\d.]+ ms; \d+ s \(.*\); "
        r"ends about .*\d\d:\d\d$",
        said[0],
    )
    assert said[1].startswith("[4/4] 10_random: not counted, random: ")
    assert said[2].startswith("all: 2 of 3 tasks that count have an accepted kernel; geometric mean ")


def test_a_bench_that_is_finished_only_sums_up(story: Story) -> None:
    assert (story.again.code, story.again.err) == (0, "")
    (figures,) = story.again.json["figures"]
    assert story.again.json["left"] == 0 and (figures["tasks"], figures["counted"], figures["accepted"]) == (4, 3, 2)
    told = (story.out / "summary.md").read_text()
    assert "## Without an accepted kernel\n\n- 3_broken: " in told and "## Not counted\n\n- 10_random: random: " in told
    for name in ("speedup", "fast_p", "roofline", "evaluations"):
        assert f"({name}.svg)" in told
        assert (story.out / f"{name}.svg").read_text().lstrip().startswith("<?xml")
        assert (story.out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_bench_goes_on_and_says_so(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for pictures is told what they need; whoever does not loses nothing else."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as Python itself takes a package for missing
    done = story.cli.here("bench", "tasks", *OPTIONS)
    said = done.out.splitlines()
    assert (done.code, done.err) == (0, "") and said[0].startswith("no pictures: matplotlib is not installed")
    assert said[1].startswith("all: 2 of 3 tasks that count have an accepted kernel")
    asked = story.cli.here("bench", "tasks", *OPTIONS, "--pictures")
    assert asked.is_one_line("pictures need matplotlib", "pip install matplotlib", code=3)


def test_what_cannot_be_begun_is_one_line(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli = Cli(tmp_path, home)
    (tmp_path / "empty").mkdir()
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what is wrong with the tasks is said first
    assert cli.here("bench", "nowhere").is_one_line("no folder nowhere")
    assert cli.here("bench", "empty", "--pictures").is_one_line("empty holds no task files")
    assert cli.here("bench", "kernelbench").is_one_line("kernelbench --root DIR")
    cli.close()
