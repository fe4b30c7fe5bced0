"""The set-up of a bare machine says what is missing, and with which command it comes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]


def make(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": path} if path else dict(os.environ)
    command = [shutil.which("make") or "make", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE_S)


def test_a_missing_python_is_named_with_its_command() -> None:
    done = make("check-tools", "PYTHON=python-that-is-not-here")
    assert done.returncode != 0 and "sudo apt-get install python3" in done.stderr


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    done = make("check-tools", f"PYTHON={old}")
    assert done.returncode != 0 and "3.11 or newer" in done.stderr


def test_a_missing_compiler_is_named_with_its_command(tmp_path: Path) -> None:
    done = make("check-tools", f"PYTHON={sys.executable}", path=str(tmp_path))
    assert done.returncode != 0 and "sudo apt-get install g++" in done.stderr


def test_a_ready_machine_passes() -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    assert make("check-tools").returncode == 0


def test_the_user_s_torch_is_found_and_an_old_one_is_not(tmp_path: Path) -> None:
    """The set-up asks `python3` for its torch: 2.6 or newer is used as it is, an older one is not."""
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("FIND_TORCH"))
    program = line.split(":=", 1)[1].strip()
    for version, expected in (("2.11.0+cu130", str(tmp_path)), ("2.6.0", str(tmp_path)), ("2.5.1+cpu", "")):
        folder = tmp_path / "torch"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(f"__version__ = {version!r}\n")
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(["python3", "-c", program], capture_output=True, text=True, env=env)
        assert done.stdout.strip() == expected
