"""Commands that hang, fork, flood and eat memory end at their limit and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.waiting import PATIENCE_S, is_gone, until

from foundry.tools.process.child import Limits, descendants, kill_tree, run_command, usage

SMALL = Limits(wall_s=PATIENCE_S, memory_bytes=400 << 20, cpu_s=20, tasks=20)
HANG_S = 1000  # of what never ends by itself while a test waits for its end


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_returns_its_output_and_code() -> None:
    done = run_command(["sh", "-c", "cat; echo two >&2; exit 3"], SMALL, stdin=b"one\n")
    assert (done.returncode, done.output, done.reason) == (3, "one\ntwo\n", "")


def test_a_sleeping_command_and_its_detached_child_are_killed(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    noted.touch()
    code = (
        "import os, subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '{HANG_S}'], start_new_session=True)\n"
        f"open({str(noted)!r}, 'w').write(str(child.pid))\n"
        f"time.sleep({HANG_S})"
    )
    for limit_s in (0.6, 6.0, 60.0):  # a busy machine may need longer for a Python that starts its child
        done = run_command(python(code), replace(SMALL, wall_s=limit_s))
        assert done.reason == f"did not finish in {limit_s:g} s"
        assert done.returncode < 0 and done.seconds < HANG_S / 2
        if noted.read_text():
            break
    until(lambda: is_gone(int(noted.read_text())), "the end of the detached child")


def test_memory_that_a_fork_shares_counts_once() -> None:
    code = (
        "import os, time\n"
        "held = b'x' * (250 << 20)\n"
        "for number in range(3):\n"
        "    if not os.fork():\n"
        "        own = b'y' * ({own} << 20)\n"
        "        time.sleep(0.5)\n"
        "        os._exit(0)\n"
        "for number in range(3):\n"
        "    os.wait()\n"
    )
    done = run_command(python(code.format(own=8)), SMALL)
    assert (done.returncode, done.reason) == (0, ""), "250 MB and 3 times 8 are less than 400"
    done = run_command(python(code.format(own=80)), SMALL)
    assert done.reason == "needs more than 0.4 GB of memory"


def test_memory_is_limited() -> None:
    eater = "b = []\nwhile True: b.append(bytearray(20 << 20)); b[-1][::4096] = b'x' * len(b[-1][::4096])"
    done = run_command(python(eater), Limits(wall_s=PATIENCE_S, memory_bytes=300 << 20))
    assert done.reason == "needs more than 0.3 GB of memory"


def test_a_flood_of_output_is_cut() -> None:
    done = run_command(["sh", "-c", "yes"], Limits(wall_s=PATIENCE_S))
    assert done.reason == "wrote more than 4 MB of output"


def test_a_fork_bomb_is_stopped() -> None:
    bomb = f"import os, time\nfor i in range(40): os.fork() or time.sleep({HANG_S})\ntime.sleep({HANG_S})"
    assert run_command(python(bomb), SMALL).reason == "started more than 20 processes and threads"


def test_the_tree_is_seen_and_killed() -> None:
    child = subprocess.Popen(["sh", "-c", f"sleep {HANG_S} & sleep {HANG_S} & wait"], start_new_session=True)
    until(lambda: len(descendants(child.pid)) == 3, "three processes")
    assert usage(child.pid).tasks == 3
    assert 0 < usage(child.pid).memory_bytes < 100 << 20
    members = descendants(child.pid)
    kill_tree(child.pid)
    child.wait()
    until(lambda: all(map(is_gone, members)), "the end of all three")
    assert usage(os.getpid()).memory_bytes > 0
