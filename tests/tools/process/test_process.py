"""Commands that hang, fork, flood and eat memory end at their limit and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from foundry.tools.process.child import Limits, descendants, kill_tree, run_command, usage

SMALL = Limits(wall_s=0.6, memory_bytes=400 << 20, cpu_s=20, tasks=20)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_a_command_returns_its_output_and_code() -> None:
    done = run_command(["sh", "-c", "cat; echo two >&2; exit 3"], SMALL, stdin=b"one\n")
    assert (done.returncode, done.output, done.reason) == (3, "one\ntwo\n", "")


def test_a_sleeping_command_and_its_detached_child_are_killed(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    code = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        f"open({str(noted)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(60)"
    )
    start = time.monotonic()
    done = run_command(python(code), SMALL)
    assert done.reason == "did not finish in 0.6 s"
    assert done.returncode < 0
    assert time.monotonic() - start < 2.0
    time.sleep(0.1)
    assert not alive(int(noted.read_text()))


def test_memory_is_limited() -> None:
    eater = "b = []\nwhile True: b.append(bytearray(20 << 20)); b[-1][::4096] = b'x' * len(b[-1][::4096])"
    done = run_command(python(eater), Limits(wall_s=20, memory_bytes=300 << 20))
    assert done.reason == "needs more than 0.3 GB of memory"


def test_a_flood_of_output_is_cut() -> None:
    done = run_command(["sh", "-c", "yes"], Limits(wall_s=20))
    assert done.reason == "wrote more than 4 MB of output"


def test_a_fork_bomb_is_stopped() -> None:
    bomb = "import os, time\nfor i in range(40): os.fork() or time.sleep(30)\ntime.sleep(30)"
    done = run_command(python(bomb), SMALL)
    assert done.reason in ("started more than 20 processes and threads", "did not finish in 0.6 s")


def test_the_tree_is_seen_and_killed() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True)
    while len(descendants(child.pid)) < 3:
        time.sleep(0.01)
    assert usage(child.pid).tasks == 3
    assert 0 < usage(child.pid).memory_bytes < 100 << 20
    members = descendants(child.pid)
    kill_tree(child.pid)
    child.wait()
    time.sleep(0.1)
    assert not any(alive(pid) for pid in members)
    assert usage(os.getpid()).memory_bytes > 0
