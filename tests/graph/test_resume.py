"""kill -9 at any moment: nothing recorded is lost, nothing is measured twice, the run ends as if nothing had been."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foundry.graph.replay import replay
from foundry.graph.run.events import EventLog
from foundry.graph.run.request import SolveRequest
from foundry.graph.run.run_directory import RunDirectory
from foundry.graph.solve import resume
from foundry.knowledge.codec import encode

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
parts = module.FakeParts(module.FakeWorkbench(delay_s=0.01, log=Path(sys.argv[3])))
asyncio.run(solve(request, parts=parts))
"""


def run_and_kill(request: SolveRequest, log: Path, lines: int) -> Path:
    """Starts a run, kills it once the machine was asked `lines` questions; returns its directory."""
    log.touch()
    conftest = Path(__file__).with_name("conftest.py")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(conftest), encode(request), str(log)])
    deadline = time.monotonic() + 60
    while len(log.read_text().splitlines()) < lines and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.005)
    assert child.poll() is None, "the run ended before it could be killed"
    child.send_signal(signal.SIGKILL)
    child.wait()
    return next(Path(request.runs).iterdir())


@pytest.mark.parametrize("lines", [3, 30, 90], ids=["before the islands", "in the islands", "late"])
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
    assert 22 <= summary.evaluations <= 28
    asked = Counter(log.read_text().splitlines())
    repeated = {what: times for what, times in asked.items() if times > 1 and what not in ("intake", "closed")}
    assert sum(repeated.values()) - len(repeated) <= 4, f"more than what four islands had in flight: {repeated}"
    run = RunDirectory.inspect(path)
    assert recorded <= {item.candidate.id for item, _ in run.evaluations()}
    steps = [event.step for event in EventLog(run.database, reading=True).read(kind="evaluation")]
    assert len(steps) == len(set(steps)), "an evaluation was recorded twice"
    run.close()
    assert (await replay(path, parts())).differences == ()
