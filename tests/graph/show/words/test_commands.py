"""Commands that a run names are there to be copied and pasted, wherever the run lies."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import Summary, summarise
from foundry.graph.show.words.conversation import say
from foundry.graph.show.words.ending import ending_lines
from foundry.knowledge.candidate import Contest, Rival


@pytest.fixture
def moved(finished: Path, tmp_path: Path) -> RunDirectory:
    """The finished run in a folder whose name a shell takes apart."""
    path = tmp_path / "mein Lauf ü $HOME" / "relu (1)"
    shutil.copytree(finished, path)
    return RunDirectory.inspect(path)


def said_after(word: str, summary: Summary, task: str = "task.py") -> list[list[str]]:
    """The commands on the line of the ending that begins with a word, as a shell takes them."""
    (line,) = [line for line in ending_lines(summary, task) if line.startswith(word)]
    words = shlex.split(line.removeprefix(word))
    starts = [index for index, found in enumerate(words) if found == "foundry"]
    return [words[start:end] for start, end in zip(starts, [*starts[1:], len(words)], strict=True)]


def test_the_ending_names_commands_that_a_shell_takes_as_they_stand(moved: RunDirectory) -> None:
    run, task = str(moved.path), str(moved.path.parent / "my task.py")
    kernel, receipt = f"{run}/kernel.py", f"{run}/receipt.json"
    found = replace(summarise(moved), verdict="accepted", kernel=kernel, receipt=receipt)
    moved.close()
    assert said_after("again:", found, task) == [["foundry", "verify", task, kernel, "--receipt", receipt]]
    assert said_after("go on:", found) == [["foundry", "agent", "fork", run, "--minutes", "10"]]
    trace, chat = said_after("inspect:", found)
    assert (trace[:3], trace[3].removesuffix(",")) == (["foundry", "agent", "trace"], run)
    assert chat == ["foundry", "agent", "chat", run, "ranking"]
    stopped = replace(found, verdict="interrupted")
    assert said_after("interrupted, the state is kept:", stopped) == [["foundry", "agent", "resume", run]]
    (answered,) = said_after("answer:", replace(stopped, question="may it?"))
    assert answered[:6] == ["foundry", "agent", "resume", run, "--yes", "|"]


def test_the_chat_names_commands_that_a_shell_takes_as_they_stand(moved: RunDirectory) -> None:
    run = str(moved.path)
    finished = say(moved, "pause").text
    assert f"foundry agent fork {shlex.quote(run)} --say" in finished
    moved.set("status", "interrupted")
    stopped = say(moved, "pause").text
    moved.close()
    assert shlex.split(stopped)[-4:] == ["foundry", "agent", "resume", run]


def test_a_ratio_stands_beside_the_times_that_it_was_made_of() -> None:
    """18.7 ms of the proof beside torch.compile's 6.3 ms, and "1.10x over torch.compile", cannot be put together."""
    contest = Contest((Rival("compile", 6.3, 2.0, 1.1),), baseline_ms=12.6, candidate_ms=5.73)
    summary = Summary(
        "runs/a", "accepted", 2.2, (2.1, 2.3), 1.1, 9, 60.0, None, None,
        baseline_ms=41.1, candidate_ms=18.7, compile_ms=6.3, compile_speedup=2.0, contest=contest,
    )  # fmt: skip
    (line,) = [line for line in ending_lines(summary, "task.py") if "torch.compile" in line]
    assert line.startswith("1.10x the speed of torch.compile") and "in the same turns compile 6.3 ms" in line
    assert "eager 12.6 ms, this kernel 5.73 ms" in line
    assert replace(contest, candidate_ms=None).told_beside("compile").endswith("eager 12.6 ms")
    assert contest.told_beside("eager") == ""


def test_numbers_of_two_rounds_are_not_shown_as_if_they_were_of_one() -> None:
    """1.76x over eager and 2.79x over a torch.compile that is 1.08x eager cannot be of one round."""
    summary = Summary(
        "runs/a", "accepted", 1.76, (1.74, 1.79), 2.79, 9, 60.0, None, None, baseline_ms=2.317, candidate_ms=1.322
    )
    agreeing = replace(summary, speedup_vs_compile=1.63, compile_speedup=1.08)
    assert "1.63x the speed of torch.compile, which has itself 1.08x the speed of eager" in ending_lines(
        agreeing, "task.py"
    )
    (line,) = [line for line in ending_lines(replace(summary, compile_speedup=1.08), "task.py") if "compile" in line]
    assert "in a round of its own" in line and "1.08x the speed of eager, and this kernel 3.01x" in line
