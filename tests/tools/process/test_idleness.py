"""CPU time between commands: what the kernel books late is no work of a candidate's, a thread that goes on is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from foundry.tools.process import idleness
from foundry.tools.process.idleness import Idleness

SPINS = "while True: pass"
SLEEPS = "import time\ntime.sleep(60)"


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", request.param]) as started:
        time.sleep(0.3)
        yield started.pid
        started.kill()


@pytest.mark.parametrize("process", [SPINS], indirect=True)
def test_a_process_that_works_on_is_noticed(process: int) -> None:
    idle = Idleness()
    idle.begin(process)
    time.sleep(0.15)
    assert "while it had nothing to do" in idle.end()


@pytest.mark.parametrize("process", [SPINS], indirect=True)
def test_many_short_pauses_add_up(process: int) -> None:
    idle, said = Idleness(), ""
    for _ in range(40):
        idle.begin(process)
        time.sleep(0.002)
        said = said or idle.end()
    assert "while it had nothing to do" in said


@pytest.mark.parametrize("process", [SLEEPS], indirect=True)
def test_a_process_that_sleeps_is_left_in_peace(process: int) -> None:
    idle = Idleness()
    for _ in range(20):
        idle.begin(process)
        time.sleep(0.002)
        assert idle.end() == ""


def test_time_that_is_booked_late_is_not_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel books a running thread's time once a tick: 8 ms of a command appeared in a pause of 0.2 ms."""
    accounts = iter([100_000_000, 108_000_000])
    monkeypatch.setattr(idleness, "cpu_ns", lambda pid: next(accounts))
    monkeypatch.setattr(idleness, "CORES", 16)
    idle = Idleness()
    idle.begin(1)
    assert idle.end() == "" and idle.busy_ms <= 16 * idle.gap_ms
