"""Workers that hang, flood, fork, fill and flee cost one request, which ends by their limit; nothing stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S, is_gone, until

from foundry.tools.process import sandbox
from foundry.tools.process.child import Limits
from foundry.tools.process.linux import FILES, NETWORK, SYSCALLS, TEMPORARY
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker, WorkerDied, Zygote

ENTRIES = """
import ctypes, mmap, os, signal, subprocess, sys, threading, time

def serve(channel):
    while True:
        message, handles = channel.receive()
        globals()[message["do"]](channel)

def echo(channel):
    channel.send({"echo": os.getpid()})

def sleeps(channel):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(10)

def spins(channel):
    for _ in range(3): threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
    while True: pass

def stops(channel):
    os.kill(os.getpid(), signal.SIGSTOP)

def forks(channel):
    while True:
        try: os.fork()
        except OSError: pass

def flees(channel):
    # A process that is always about to be somewhere else: each one lives for a moment and leaves a child behind.
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
                if os.fork(): os._exit(0)
        except OSError: pass

def daemons(channel):
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            if os.fork(): os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1e6)
    channel.send({"started": True})

def leaves(channel):
    daemons(channel)
    os._exit(0)

def threads(channel):
    while True:
        try: threading.Thread(target=time.sleep, args=(1e6,)).start()
        except RuntimeError: time.sleep(10)

def talks(channel):
    while True: os.write(1, b"x" * 65536); os.write(2, b"y" * 65536)

def eats(channel):
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(kept[-1])), 1, 128 << 20)

def eats_together(channel):
    for _ in range(2): os.fork()
    eats(channel)

def shares(channel):
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 32 << 20))
        kept[-1].write(b"x" * (32 << 20))

def hides(channel):
    while True:
        handle = os.memfd_create("hidden")
        os.write(handle, b"x" * (32 << 20))

def fills_shared(channel):
    with open("/dev/shm/filled", "wb") as file:
        while True: file.write(b"x" * (16 << 20)); file.flush()

def fills(channel):
    number = 0
    while True:
        number += 1
        with open(f"file{number}", "wb") as file: file.write(b"x" * (32 << 20))

def fills_unnamed(channel):
    kept = []
    while True:
        kept.append(open("gone", "wb"))
        os.unlink("gone")
        kept[-1].write(b"x" * (32 << 20))
        kept[-1].flush()

def litters(channel):
    number = 0
    while True:
        number += 1
        open(f"file{number}", "wb").close()

def grows(channel):
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    with open("large", "wb") as file: file.truncate(1 << 40)

def crashes(channel):
    ctypes.string_at(0)

def aborts(channel):
    os.abort()

def exits(channel):
    os._exit(0)

def closes(channel):
    os.closerange(0, 256)
    time.sleep(1e6)
"""
WALL_S = 1.5
LIMITS = Limits(
    wall_s=PATIENCE_S,
    memory_bytes=700 << 20,
    shared_bytes=150 << 20,
    tasks=60,
    file_bytes=1 << 30,
    folder_bytes=100 << 20,
    folder_files=500,
)
HERE = sandbox.available().active
CONFINED = {FILES, NETWORK, SYSCALLS} <= set(HERE)
needs_all = pytest.mark.skipif(not CONFINED, reason="not all means of isolation are there: see foundry doctor")


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "hostile_entries.py").write_text(ENTRIES)
    return folder


@pytest.fixture(scope="module")
def zygote(code: Path) -> Iterator[Zygote]:
    warm = Zygote.start(threads=1, preload=["ctypes"], later=[], environment={"PYTHONPATH": str(code)})
    yield warm
    warm.close()


def fork(zygote: Zygote, code: Path, folder: Path) -> Worker:
    confined = Sandbox("candidate", readable=(str(code),), writable=(str(folder),))
    return zygote.fork("hostile_entries:serve", LIMITS, directory=folder, sandbox=confined)


def below(pid: int) -> list[int]:
    """Living processes of this warm process: its workers and whatever they left."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


@pytest.mark.parametrize(
    ("job", "evidence"),
    [
        ("sleeps", "did not finish in 1.5 s"),
        ("spins", "did not finish in 1.5 s"),
        ("stops", "did not finish in 1.5 s"),
        ("talks", "did not finish in 1.5 s"),
        ("forks", "started more than 60 processes and threads"),
        ("flees", "started more than 60 processes and threads"),
        ("threads", "started more than 60 processes and threads"),
        ("leaves", "exited with code 0"),
        ("eats", "needs more than 0.7 GB of memory|was killed|MemoryError|Cannot allocate"),
        ("eats_together", "needs more than 0.7 GB of memory|was killed|MemoryError"),
        ("shares", "holds more than 0.2 GB of shared memory"),
        ("hides", "holds more than 0.2 GB of shared memory"),
        ("fills", "wrote more than 0.1 GB of files"),
        ("fills_unnamed", "holds more than 0.2 GB of shared memory|wrote more"),
        ("litters", "wrote more than 500 files"),
        ("grows", "was killed by SIGXFSZ"),
        ("crashes", "was killed by SIGSEGV"),
        ("aborts", "was killed by SIGABRT"),
        ("exits", "exited with code 0"),
        ("closes", "did not finish|exited|was killed|SIGKILL"),
        pytest.param("fills_shared", "No space left on device|of shared memory", marks=needs_all),
    ],
)
def test_a_hostile_worker_costs_its_limit(zygote: Zygote, code: Path, tmp_path: Path, job: str, evidence: str) -> None:
    worker = fork(zygote, code, tmp_path)
    limit_s = WALL_S if "finish" in evidence else LIMITS.wall_s
    start = time.monotonic()
    with pytest.raises(WorkerDied) as died:
        worker.request({"do": job}, timeout_s=limit_s)
        worker.request({"do": "echo"}, timeout_s=limit_s)
    assert time.monotonic() - start < limit_s + PATIENCE_S / 2, died.value.evidence
    assert re.search(evidence, died.value.evidence), died.value.evidence
    assert below(zygote.pid) == []
    again = fork(zygote, code, tmp_path)
    assert again.request({"do": "echo"})[0] == {"echo": again.pid}
    again.end()
    shutil.rmtree(tmp_path)
    assert sum(1 for _ in Path("/dev/shm").glob("filled")) == 0


@needs_all
def test_what_a_worker_detaches_stays_in_sight_and_goes_with_it(zygote: Zygote, code: Path, tmp_path: Path) -> None:
    worker = fork(zygote, code, tmp_path)
    assert worker.request({"do": "daemons"})[0] == {"started": True}
    assert below(zygote.pid) == [worker.pid]
    worker.end()
    assert below(zygote.pid) == []


def test_four_at_a_time_none_is_blamed_for_another(zygote: Zygote, code: Path, tmp_path: Path) -> None:
    jobs = ["echo", "forks", "crashes", "echo", "exits", "sleeps", "leaves", "echo", "hides", "echo", "flees", "echo"]

    def one(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        worker = fork(zygote, code, folder)
        try:
            worker.request({"do": jobs[number]}, timeout_s=WALL_S if jobs[number] == "sleeps" else LIMITS.wall_s)
            return str(worker.request({"do": "echo"})[0]["echo"] == worker.pid)
        except WorkerDied as died:
            return died.evidence
        finally:
            worker.end()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(len(jobs))))
    assert [said for job, said in zip(jobs, found, strict=True) if job == "echo"] == ["True"] * 5, found
    assert not {"True"} & {said for job, said in zip(jobs, found, strict=True) if job != "echo"}, found
    assert below(zygote.pid) == []


def test_a_warm_process_that_is_killed_is_started_again(code: Path, tmp_path: Path) -> None:
    warm = Zygote.start(threads=1, preload=["ctypes"], later=[], environment={"PYTHONPATH": str(code)})
    try:
        worker = fork(warm, code, tmp_path)
        os.kill(warm.pid, 9)
        with pytest.raises(WorkerDied):
            worker.request({"do": "sleeps"})
        assert not worker.alive
        # what changes its credentials loses the order to die with its parent
        until(lambda: is_gone(worker.pid), "the end of a worker with the process that it was forked from")
        again = fork(warm, code, tmp_path)
        assert again.request({"do": "echo"})[0] == {"echo": again.pid}
        worker.end()
        again.end()
    finally:
        warm.close()


def test_a_plain_user_is_as_safe() -> None:
    """The means of isolation do not need root."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv to become somebody else")
    argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/env", "-i"]
    orders = json.dumps({"readable": ["/usr", "/lib", "/lib64", "/bin"]})
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("no Python that another user may run")
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(folder) / "launcher.py"
        launcher.write_text(Path(sandbox.LAUNCHER).read_text())
        Path(folder).chmod(0o755)
        done = subprocess.run([*argv, python, "-I", "-S", str(launcher), orders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    active = json.loads(done.stdout)["active"]
    assert [name for name in HERE if name not in (SYSCALLS, TEMPORARY)] == active
