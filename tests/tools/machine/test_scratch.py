"""Temporary folders go with the process that made them, however it ends; nobody else's folder is ever removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import until

from foundry.tools.machine.scratch import IN_USE, plain_folder, scratch_folder

MAKES_ONE = """
import sys, time
from foundry.tools.machine.scratch import scratch_folder
with scratch_folder("verify", sys.argv[1]) as made:
    (made / "deep").mkdir()
    print(made, flush=True)
    time.sleep(1e6)
"""

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""


def started(root: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder of its own below `root`."""
    child = subprocess.Popen([sys.executable, "-c", MAKES_ONE, str(root)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, Path(child.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_nothing_else_is(tmp_path: Path) -> None:
    killed, left = started(tmp_path)
    working, used = started(tmp_path)
    try:
        theirs = tmp_path / "foundry-verify-results"  # a user's own folder with a name like ours
        theirs.mkdir()
        link = tmp_path / "foundry-verify-link"
        link.symlink_to(used)
        killed.kill()
        killed.wait()
        assert (left / IN_USE).exists()
        with scratch_folder("verify", str(tmp_path)) as made:
            assert made.is_dir() and not left.exists()
            assert (used / "deep").is_dir() and theirs.is_dir() and link.is_symlink()
            with scratch_folder("tune", str(tmp_path)) as other:
                assert made.is_dir() and other != made  # in use by this very process
        assert not made.exists() and (used / "deep").is_dir()
    finally:
        for child in (killed, working):
            child.kill()
            child.communicate()


def test_a_killed_verification_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """The command itself: its folder is there while it works, and gone when the next one has begun."""
    task = tmp_path / "task.py"
    task.write_text(TASK)
    kernel = tmp_path / "kernel.py"
    kernel.write_text(TASK.replace("class Model(", "class ModelNew("))
    command = [sys.executable, "-m", "foundry.cli", "verify", str(task), str(kernel), "--target", "cpu"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "FOUNDRY_HOME": str(tmp_path / "home")}
    child = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        left = until(lambda: next(tmp_path.glob(f"foundry-verify-*/{IN_USE}"), None), "a folder").parent
    finally:
        child.kill()
        child.wait()
    with scratch_folder("verify", str(tmp_path)):
        assert not left.exists()


@pytest.mark.parametrize("name, is_kept", [("plain", True), ("two words", False), ("it's", False), ("größe", False)])
def test_a_path_that_would_need_quotes_is_replaced(name: str, is_kept: bool, tmp_path: Path) -> None:
    with plain_folder(tmp_path / name, "inductor") as folder:
        assert (folder == tmp_path / name) is is_kept
        assert is_kept or folder.is_dir()
    assert is_kept or not folder.exists()
