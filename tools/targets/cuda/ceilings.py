"""Best rates of a GPU, by a process of its own (`measuring.py`)."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

from foundry.knowledge.device import Ceilings
from foundry.knowledge.errors import FoundryError
from foundry.tools.targets.measuring import LIMIT_SECONDS, complaint_of

BENCHMARK = Path(__file__).with_name("measuring.py")
Started = subprocess.Popen[str]


def start_cuda() -> Started:
    """The process that measures a GPU, with PyTorch imported and a context; it waits for a line."""
    command = [sys.executable, "-m", "foundry.tools.targets.cuda.measuring"]
    started = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    watchdog = threading.Timer(LIMIT_SECONDS, started.kill)
    watchdog.start()
    try:
        if started.stdout is not None:
            started.stdout.readline()  # "ready"; whatever else shows when it is asked to measure
    finally:
        watchdog.cancel()
    return started


def measure_cuda(started: Started) -> Ceilings:
    """Tells the started process to measure and returns its rates. Raises FoundryError if it fails or takes too long."""
    problem = "the GPU measurement failed"
    try:
        answer, said = started.communicate("measure\n", timeout=LIMIT_SECONDS)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        started.kill()
        raise FoundryError(f"{problem}: no answer within {LIMIT_SECONDS:.0f} s") from None
    if started.returncode != 0:
        raise FoundryError(f"{problem}: {complaint_of(said, started.returncode)}")
    rates: dict[str, float] = json.loads(answer.strip().splitlines()[-1])
    return Ceilings(**rates, measured_on=datetime.date.today().isoformat())
