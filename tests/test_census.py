"""docs/what_foundry_takes.md says what the stored census says, and the product still does what the census says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks/census.py"


def test_the_page_of_operators_and_some_of_them_are_up_to_date() -> None:
    """`python benchmarks/census.py` takes the census anew, in a few minutes."""
    command = [sys.executable, str(BENCHMARK), "--check", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
