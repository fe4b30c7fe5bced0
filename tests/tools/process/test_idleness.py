"""CPU time between commands: what the kernel books late is no work of a candidate's, a thread that goes on is."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from foundry.tools.process import idleness
from foundry.tools.process.idleness import Idleness

SPINS = "print(flush=True)\nwhile True: pass"
SLEEPS = "import time\nprint(flush=True)\ntime.sleep(1e6)"


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", request.param], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"\n", "it has not begun"
        yield started.pid
        started.kill()


def said_of(process: int, pause_s: float, most: int) -> str:
    """The accusation after at most so many pauses of a process: one that shares its core does not work in each of
    them."""
    idle = Idleness()
    for _ in range(most):
        idle.begin(process)
        time.sleep(pause_s)
        if said := idle.end():
            return said
    return ""


@pytest.mark.parametrize("process", [SPINS], indirect=True)
def test_a_process_that_works_on_is_noticed(process: int) -> None:
    assert "while it had nothing to do" in said_of(process, 0.15, 100)


@pytest.mark.parametrize("process", [SPINS], indirect=True)
def test_many_short_pauses_add_up(process: int) -> None:
    assert "while it had nothing to do" in said_of(process, 0.002, 1000)


@pytest.mark.parametrize("process", [SLEEPS], indirect=True)
def test_a_process_that_sleeps_is_left_in_peace(process: int) -> None:
    assert said_of(process, 0.002, 20) == ""


def test_time_that_is_booked_late_is_not_the_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel books a running thread's time once a tick: 8 ms of a command appeared in a pause of 0.2 ms."""
    accounts = iter([100_000_000, 108_000_000])
    monkeypatch.setattr(idleness, "cpu_ns", lambda pid: next(accounts))
    monkeypatch.setattr(idleness, "CORES", 16)
    idle = Idleness()
    idle.begin(1)
    assert idle.end() == "" and idle.busy_ms <= 16 * idle.gap_ms


def accounts_of(monkeypatch: pytest.MonkeyPatch, busy_ms: list[float]) -> list[str]:
    """The accusation for gaps of 30 ms in which the kernel's CPU account grows by this much."""
    used, readings = 10**9, list[int]()
    for busy in busy_ms:
        readings += [used, used + int(1e6 * busy)]
        used = readings[-1]
    times = (30_000_000 * number for number in range(2 * len(busy_ms)))
    accounts = iter(readings)
    monkeypatch.setattr(idleness, "cpu_ns", lambda pid: next(accounts))
    monkeypatch.setattr(idleness, "time", SimpleNamespace(monotonic_ns=lambda: next(times)))
    idle, said = Idleness(), list[str]()
    for _ in busy_ms:
        idle.begin(1)
        said.append(idle.end())
    return said


def test_a_gap_or_two_with_late_ticks_convict_nobody_and_a_third_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 ms in a pause of 29 ms were seen on an honest pool of threads beside 20 other programs."""
    assert not any(accounts_of(monkeypatch, [0.01, 7.0, 0.02, 0.01, 9.0, 0.02, *[0.01] * 20]))
    said = accounts_of(monkeypatch, [0.01, 7.0, 0.02, 6.0, 0.01, 7.0])
    assert not any(said[:5]) and "7 ms of CPU time in the 30 ms while it had nothing to do" in said[5]
    assert "40 ms" in accounts_of(monkeypatch, [0.01, 40.0])[1], "no tick is so late"
    assert any(accounts_of(monkeypatch, [1.5] * 12)), "a little in every pause"
