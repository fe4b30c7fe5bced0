"""Programs that measure a device: started, given a limit, and believed only where they end well."""

from __future__ import annotations

import subprocess

from foundry.knowledge.errors import FoundryError

LIMIT_SECONDS = 120.0


def complaint_of(said: str, code: int) -> str:
    """The line of a program's standard error that says what is wrong."""
    lines = [line for line in said.splitlines() if line.strip()] or [f"exit {code}"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])[:300]


def run_benchmark(command: list[str], problem: str, environment: dict[str, str] | None = None) -> str:
    """Standard output of a child process; raises FoundryError with its first line of complaint."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise FoundryError(f"{problem}: no answer within {LIMIT_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise FoundryError(f"{problem}: {complaint_of(done.stderr, done.returncode)}")
    return done.stdout
