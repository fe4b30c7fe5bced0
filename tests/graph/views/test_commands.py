"""Commands that a run names are there to be copied and pasted, wherever the run lies."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.run.summary import Summary, summarise
from foundry.graph.views.conversation import say
from foundry.graph.views.ending import ending_lines


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
