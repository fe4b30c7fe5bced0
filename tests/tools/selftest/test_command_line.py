"""`foundry verify --self-test` as a user types it, with the work itself replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foundry.cli import app
from foundry.tools.selftest import command
from foundry.tools.selftest.faults.fault import Fault
from foundry.tools.selftest.report import FaultResult, SelfTestReport

FAULT = Fault("off by one", "x is read one further", "k_softmax")
ASKED: dict[str, Any] = {}


def call(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def half_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(request: command.SelfTestRequest) -> SelfTestReport:
        ASKED.update(vars(request))
        caught = FaultResult(FAULT, "caught", "as given", "12 are wrong", 1.0)
        findings = (caught, FaultResult(FAULT, "missed", "", "accepted", 1.0))
        return SelfTestReport("softmax", "cpu", "cpu:test", "the library's first kernel", 0, findings, 2.0)

    monkeypatch.setattr(command, "run", run)


@pytest.mark.usefixtures("half_caught")
def test_the_exit_code_follows_the_share_that_was_caught(tmp_path: Path) -> None:
    code, text = call("--self-test", tmp_path / "task.py", "--target", "cpu", "--faults", "7", "--seed", "3")
    assert code == 1 and "1 of 2 faults caught (50.0 %)" in text
    assert ASKED["candidate"] is None and ASKED["faults"] == 7 and ASKED["seed"] == 3 and ASKED["target"] == "cpu"
    code, text = call("--self-test", tmp_path / "task.py", tmp_path / "kernel.py", "--min-caught", "0.5", "--json")
    assert code == 0 and json.loads(text)["rate"] == 0.5 and ASKED["candidate"] == tmp_path / "kernel.py"


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    code, text = call(tmp_path / "task.py")
    assert code == 2 and "name the candidate's file" in text
    code, text = call("--self-test", tmp_path / "task.py", "--min-speedup", "2")
    assert code == 2 and "takes no receipt" in text
    code, text = call("--self-test", tmp_path / "missing.py", "--target", "cpu")
    assert code == 2 and "missing.py" in text and "Traceback" not in text
