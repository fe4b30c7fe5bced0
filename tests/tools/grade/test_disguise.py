"""Clocks that tell another time, in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.forking import Forks

from foundry.tools.grade.runner.disguise import OtherClocks

pytestmark = pytest.mark.skipif(not OtherClocks.work_here(), reason="the clocks are changed on Linux on x86-64 only")

# As the thread of PyTorch's profiler does, which asks every five seconds.
WAITING = """
#include <chrono>
#include <condition_variable>
#include <thread>
static int count;
extern "C" int woken() { return count; }
extern "C" void start() {
    std::thread([] {
        static std::mutex mutex;
        static std::condition_variable changed;
        std::unique_lock<std::mutex> lock(mutex);
        for (;; ++count) changed.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(20));
    }).detach();
}
"""
UNDER_OTHER_CLOCKS = """
import ctypes, json, select, sys, time
from foundry.tools.grade.runner.disguise import OtherClocks

def passed():
    before = time.time(), time.monotonic()
    select.select([], [], [], 0.3)  # the kernel measures this by its own clock
    return time.time() - before[0], time.monotonic() - before[1]

waiting = ctypes.CDLL(sys.argv[1])
waiting.start()
begun = time.time()
found = [passed()]
for factor in (1 / 1024, 1000.0):
    count = waiting.woken()
    with OtherClocks(factor):
        found += [passed(), waiting.woken() - count]
print(json.dumps([*found, passed(), time.time() - begun]))
"""


def test_threads_that_wait_until_a_time_of_day_sleep_while_clocks_are_slow(forks: Forks, tmp_path: Path) -> None:
    library = tmp_path / "waiting.so"
    command = ["g++", "-O1", "-shared", "-fPIC", "-pthread", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=WAITING, text=True, check=True)
    done = forks(UNDER_OTHER_CLOCKS, library)
    before, slow, slow_count, fast, fast_count, after, whole = json.loads(done.stdout)
    assert all(0.29 < seconds < 3.0 for seconds in (*before, *after))
    assert all(seconds < 0.01 for seconds in slow) and all(seconds > 200.0 for seconds in fast)
    assert slow_count < 10 and fast_count < 10, "it woke over and over"
    assert 1.1 < whole < 10.0
