"""The process that keeps a GPU known to its driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foundry.tools.process import held_gpu
from foundry.tools.process.held_gpu import HeldGpu

HOLDS = """
import sys
from pathlib import Path
from foundry.tools.process import held_gpu
held_gpu.NVIDIA_CONTROL = Path("/")
held_gpu._HOLD = "import sys; sys.stdin.read()"
print(held_gpu.HeldGpu({})._process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_whoever_started_it_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        holder = int(starter.stdout.readline())
        assert Path(f"/proc/{holder}").exists()
        starter.kill()
    for _ in range(100):
        if not _is_running(holder):
            return
        time.sleep(0.05)
    pytest.fail("it goes on")


def test_it_ends_when_it_is_told_to_and_there_is_none_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_gpu, "_HOLD", "import sys; sys.stdin.read()")
    monkeypatch.setattr(held_gpu, "NVIDIA_CONTROL", Path("/dev/null"))
    held = HeldGpu(dict(os.environ))
    assert held._process is not None and held._process.poll() is None
    held.close()
    assert held._process.poll() == 0
    monkeypatch.setattr(held_gpu, "NVIDIA_CONTROL", Path("/dev/there/is/none"))
    without = HeldGpu({})
    assert without._process is None
    without.close()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
