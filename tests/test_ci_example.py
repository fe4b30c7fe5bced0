"""The CI example does what its README says: its commands exist, and its exit codes gate."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tests.waiting import PATIENCE_S

from foundry.cli import app

FOLDER = Path(__file__).resolve().parents[1] / "examples/ci"
WORKFLOW: dict[str, Any] = yaml.safe_load((FOLDER / "verify-kernel.yml").read_text())
STEPS = [(job, step) for job, body in WORKFLOW["jobs"].items() for step in body["steps"]]


def commands() -> list[list[str]]:
    """Every call of foundry, as words."""
    lines = [line for _, step in STEPS for line in step.get("run", "").replace("\\\n", " ").splitlines()]
    called = [line.strip() for line in lines if re.match(r"\s*foundry\b", line)]
    return [shlex.split(re.split(r"\s(?:\||\|\|)\s", line)[0]) for line in called]


def test_it_is_a_workflow() -> None:
    assert set(WORKFLOW) == {"name", True, "env", "defaults", "jobs"}  # YAML reads `on` as true
    assert all(job["runs-on"] and job["timeout-minutes"] for job in WORKFLOW["jobs"].values())
    assert all(("uses" in step) != ("run" in step) for _, step in STEPS)
    assert len(commands()) == 3


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_its_commands_and_options_exist(words: list[str]) -> None:
    known = typer.main.get_command(app)
    command = known.commands[words[1]]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    assert len([word for word in words if word.startswith("$")]) == len(arguments)


@pytest.mark.parametrize(
    ("job", "codes"),
    [("accepted", {0: 0, 1: 1, 2: 2, 3: 3}), ("confirmed", {0: 0, 1: 1, 2: 2, 3: 3, 4: 0})],
)
def test_its_gates_let_through_only_what_they_should(job: str, codes: dict[int, int], tmp_path: Path) -> None:
    (script,) = [step["run"] for name, step in STEPS if name == job and step.get("name") == "Gate"]
    stand_in = tmp_path / "foundry"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TASK": "t.py", "KERNEL": "k.py"}
    for said, expected in codes.items():
        stand_in.write_text(f'#!/bin/sh\necho "$@"\nexit {said}\n')
        stand_in.chmod(0o755)
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub runs `shell: bash`
        done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == expected, (said, done.stderr)
        assert done.stdout.startswith("verify t.py k.py --")
        assert ("::warning::" in done.stdout) == (said == 4)


def test_its_readme_names_every_exit_code() -> None:
    text = (FOLDER / "README.md").read_text()
    assert all(re.search(rf"\b{code} [a-z]", text) for code in range(5))
