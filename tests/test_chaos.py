"""A short form of the chaos benchmark: hostile candidates cost themselves, nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks/chaos.py"


@pytest.mark.slow  # each family is tested by itself in tests/tools/grade/test_hostile.py
def test_nothing_is_lost_misjudged_or_left(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = [sys.executable, str(BENCHMARK), "--evaluations", "60", "--out", str(out)]  # every family once
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["evaluations"] == 60 and found["hostile"] == 20
    assert sum(row["evaluations"] for row in found["families"]) == 60 and len(found["families"]) == 21
    assert found["lost"] == found["misjudged"] == found["left_running"] == found["left_on_disk"] == []
    assert found["peak_disk_mb"] < 4 * 1100  # a file may have 1 GiB, and four are at it
    assert found["peak_memory_mb"] < 4 * 2 * found["memory_limit_mb"]
    assert "0 lost, 0 misjudged" in done.stdout
