"""kill -9 at any moment: nothing recorded is lost, nothing is measured twice, the run ends as if nothing had been."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from foundry.agents.brief import Brief
from foundry.agents.playbook.brain import PlaybookBrain
from foundry.graph.history.replay import replay
from foundry.graph.run.events import EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import resume
from foundry.knowledge.codec import encode
from foundry.knowledge.thought import Proposal

ANSWERS = 5  # of the machine, at most, after the question at which a run is to be killed
CHILD = """
import asyncio, importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("machine", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["machine"] = module
spec.loader.exec_module(module)
from foundry.graph.run.request import SolveRequest
from foundry.graph.solve import solve
from foundry.knowledge.codec import decode
request = decode(SolveRequest, sys.argv[2])
after, answers = sys.argv[4:] or ("", "inf")
machine = module.FakeWorkbench(delay_s=0.01, log=Path(sys.argv[3]), answers_after=(after, float(answers)))
parts = module.FakeParts(machine)
asyncio.run(solve(request, parts=parts))
"""
STUCK = """
import asyncio, sys
from pathlib import Path
from tests.graph.conftest import FakeLibrary, FakeParts
from tests.graph.test_resume import NotingBrain
from foundry.graph.run.request import SolveRequest
from foundry.graph.solve import solve
from foundry.knowledge.codec import decode
brain = NotingBrain(FakeLibrary(), Path(sys.argv[2]), stuck_at=sys.argv[3])
asyncio.run(solve(decode(SolveRequest, sys.argv[1]), parts=FakeParts(brain=brain)))
"""


class NotingBrain(PlaybookBrain):
    """Writes down every brief that asks for a proposal, and thinks for ever about that of the step `stuck_at`."""

    def __init__(self, library: Any, notes: Path, stuck_at: str = "") -> None:
        super().__init__(library)
        self.notes = notes
        self.stuck_at = stuck_at

    async def propose(self, expert: str, brief: Brief) -> Proposal | None:
        shown = f"{replace(brief, tried=frozenset())} {sorted(brief.tried)}"
        with self.notes.open("a") as handle:
            handle.write(f"{brief.step} {expert} {shown!r}\n")
        if brief.step == self.stuck_at:
            await asyncio.sleep(1e6)
        return await super().propose(expert, brief)


def kill_when(is_time: Callable[[], bool], log: Path, request: SolveRequest, script: str, *arguments: str) -> Path:
    """Runs a script that solves `request` and writes to `log`, kills it when it is time; the run directory."""
    log.touch()
    root = Path(__file__).resolve().parents[2]
    child = subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=root)
    deadline = time.monotonic() + PATIENCE_S
    while not is_time() and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.005)
    assert child.poll() is None, "the run ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    return next(Path(request.runs).iterdir())


def run_and_kill(request: SolveRequest, log: Path, lines: int) -> Path:
    """Starts a run, kills it once the machine was asked `lines` questions; returns its directory."""
    conftest = Path(__file__).with_name("conftest.py")
    arguments = (CHILD, str(conftest), encode(request), str(log), "", str(lines + ANSWERS))
    return kill_when(lambda: len(log.read_text().splitlines()) >= lines, log, request, *arguments)


async def test_a_step_that_is_taken_up_again_is_shown_the_same_brief(
    make_request: Callable[..., SolveRequest], parts: Any, library: Any, tmp_path: Path
) -> None:
    """Killed between the diagnosis and the proposal: what the first process had built is built again, to the letter."""
    before, after, step = tmp_path / "before", tmp_path / "after", "i0g3"
    request = make_request(16, islands=1)
    path = kill_when(
        lambda: f"{step} " in before.read_text(), before, request, STUCK, encode(request), str(before), step
    )
    await resume(path, parts=parts(brain=NotingBrain(library(), after)))
    shown = [line for line in before.read_text().splitlines() if line.startswith(f"{step} ")]
    again = [line for line in after.read_text().splitlines() if line.startswith(f"{step} ")]
    assert len(shown) == 1 and "diagnosis=Diagnosis(" in shown[0]
    assert again[0] == shown[0]
    assert (await replay(path, parts())).exact


@pytest.mark.parametrize(
    "lines",
    [pytest.param(3, marks=pytest.mark.slow), 30, pytest.param(90, marks=pytest.mark.slow)],
    ids=["before the islands", "in their midst", "late"],
)
async def test_kill_9_loses_only_what_was_in_flight(
    make_request: Callable[..., SolveRequest], parts: Any, machine: Any, tmp_path: Path, lines: int
) -> None:
    log = tmp_path / "machine.log"
    request = make_request(24)
    path = run_and_kill(request, log, lines)
    run = RunDirectory.inspect(path)
    recorded = {f"{item.candidate.id}" for item, _ in run.evaluations()}
    assert not run.is_active
    run.close()

    summary = await resume(path, parts=parts(machine(log=log)))
    assert summary.verdict == "accepted"
    assert 22 <= summary.evaluations <= 24, "what steps under way will need is kept for them"
    lines_of_log = log.read_text().splitlines()
    first_build = next(line for line in lines_of_log if line.startswith("build"))
    # Asked more than once in any run: the first build, ahead of its step, the winner's, for the contest, and the tuner,
    # for each structure.
    winner = hashlib.sha256((path / "kernel.py").read_bytes()).hexdigest()[:12]
    usual = {"intake", "closed", "tune", first_build, f"build {winner}"}
    asked = Counter(lines_of_log)
    repeated = {what: times for what, times in asked.items() if times > 1 and what not in usual}
    assert sum(repeated.values()) - len(repeated) <= 4, f"more than four islands had in flight: {repeated}"
    run = RunDirectory.inspect(path)
    assert recorded <= {item.candidate.id for item, _ in run.evaluations()}
    steps = [event.step for event in EventLog(run.database, reading=True).read("evaluation")]
    assert len(steps) == len(set(steps)), "an evaluation was recorded twice"
    run.close()
    assert (await replay(path, parts())).differences == ()
