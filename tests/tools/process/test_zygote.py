"""Workers start in milliseconds, end with everything they started, and never outlive the main process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Protocol

import pytest
from tests.waiting import PATIENCE_S, is_gone, until

from foundry.knowledge.errors import MissingTool
from foundry.tools.process import zygote as warm_process
from foundry.tools.process.channel import (
    Channel,
    ChannelClosed,
    ChannelGarbled,
    ChannelTimeout,
    map_memory,
    memory,
    seal,
)
from foundry.tools.process.child import Limits
from foundry.tools.process.messages import asking
from foundry.tools.process.procfs import cpu_ns
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.zygote import Worker, WorkerDied, Zygote

ENTRIES = """
import ctypes, os, subprocess, sys, threading, time

def serve(channel):
    while True:
        message, handles = channel.receive()
        globals()[message["do"]](channel, message, handles)

def echo(channel, message, handles):
    channel.send({**message, "pid": os.getpid(), "key": os.environ.get("SECRET_KEY"), "cwd": os.getcwd(),
        "gpus": [os.environ.get(name) for name in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")]})

def count(channel, message, handles):
    channel.send({"says": "done", "answer": "one"})

def rest(channel, message, handles):
    for _ in range(3):
        channel.send_text(b'{"says":"pause"}')
        assert channel.receive() == ({}, [])
    channel.send({"may": message["may_pause"]})

def hang(channel, message, handles):
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: time.sleep(10)

def spin(channel, message, handles):
    while True: pass

def crash(channel, message, handles):
    ctypes.string_at(0)

def quit(channel, message, handles):
    os._exit(0)

def fail(channel, message, handles):
    raise ValueError("no such kernel")

def flood(channel, message, handles):
    end = time.monotonic() + 0.5
    while time.monotonic() < end: os.write(1, b"x" * 65536)
    channel.send({"flooded": True})

def leave(channel, message, handles):
    code = "import subprocess as s; print(s.Popen(['sleep', '1000'], start_new_session=True, stdout=-3, stderr=-3).pid)"
    pid = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True).stdout
    channel.send({"left": int(pid)})

def eat(channel, message, handles):
    kept = []
    while True: kept.append(b"x" * (50 << 20))

def garble(channel, message, handles):
    channel._socket.send(b"J{]")
    time.sleep(10)
"""

ROOMY = Limits(wall_s=PATIENCE_S, memory_bytes=1500 << 20)
QUICK = Limits(wall_s=0.5, memory_bytes=1500 << 20)  # of what hangs
START_CPU_S = 0.2  # of a worker, for which nothing is imported again: PyTorch alone takes two


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    folder = tmp_path_factory.mktemp("entries")
    (folder / "worker_entries.py").write_text(ENTRIES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECRET_KEY", "sk-1")
        patch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        patch.setenv("CUDA_VISIBLE_DEVICES", "1")
        warm = Zygote.start(threads=2, preload=["ctypes"], later=[], environment={"PYTHONPATH": str(folder)})
        yield warm
        warm.close()


def fork(plain: Zygote, limits: Limits = ROOMY) -> Worker:
    return plain.fork("worker_entries:serve", limits)


def test_a_worker_numbers_the_gpus_as_the_locking_process_does(plain: Zygote) -> None:
    worker = fork(plain)
    assert worker.request({"do": "echo"})[0]["gpus"] == ["PCI_BUS_ID", "1"]
    worker.end()


def test_of_several_gpus_workers_see_the_one_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of a warm process that was started again see it too. A single GPU keeps the name that the user gave
    it."""
    (tmp_path / "worker_entries.py").write_text(ENTRIES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    warm = Zygote.begin(threads=1, preload=["ctypes"], later=[], environment={"PYTHONPATH": str(tmp_path)})
    warm.settle()  # so that no trial of its own starts it again meanwhile
    seen = []
    for files, asked in (({"GPU-a": "/dev/null"}, "a"), ({"GPU-a": "/dev/null", "GPU-b": "/dev/full"}, "b")):
        monkeypatch.setattr(warm_process, "gpu_files", lambda files=files: files)
        for gpu in ("", "MIG-c", asked):
            warm.wait(gpu)
        for _ in range(2):
            worker = fork(warm)
            seen.append(worker.request({"do": "echo"})[0]["gpus"][1])
            worker.end()
            os.kill(warm.pid, signal.SIGKILL)
    warm.close()
    assert seen == ["1", "1", "GPU-b", "GPU-b"]


def test_a_worker_starts_quickly_and_alone(zygote: Zygote) -> None:
    """Compares both CPU times: nothing is imported again. The warm process has one thread, else it could not be
    forked."""
    zygote.settle()
    before = cpu_ns(zygote.pid)
    worker = zygote.fork("foundry.tools.process.sandbox:report", ROOMY, sandbox=Sandbox("task"))
    worker.request({})
    used, after = cpu_ns(worker.pid), cpu_ns(zygote.pid)
    worker.end()
    assert before is not None and used is not None and after is not None
    assert used + after - before < 1e9 * START_CPU_S
    assert len(list(Path(f"/proc/{zygote.pid}/task").iterdir())) == 1


def test_a_worker_sees_no_key(plain: Zygote, tmp_path: Path) -> None:
    worker = plain.fork("worker_entries:serve", ROOMY, directory=tmp_path)
    answer, _ = worker.request({"do": "echo", "text": "x" * 200_000})
    assert answer["text"] == "x" * 200_000 and answer["pid"] == worker.pid
    assert answer["key"] is None and answer["cwd"] == str(tmp_path)
    assert "SIGKILL" in worker.end() and is_gone(worker.pid)


@pytest.mark.parametrize(
    ("job", "outcome", "evidence"),
    [
        ("hang", "timeout", "did not finish in 0.5 s"),
        ("spin", "timeout", "did not finish in 0.5 s"),
        ("crash", "crash", "was killed by SIGSEGV"),
        ("quit", "crash", "exited with code 0"),
        ("fail", "crash", "exited with code 70: ValueError: no such kernel"),
        ("eat", "crash", "needs more than 1.6 GB of memory"),
        ("garble", "crash", "sent something that is no answer"),
    ],
)
def test_bad_workers_cost_one_request(plain: Zygote, job: str, outcome: str, evidence: str) -> None:
    worker = fork(plain, QUICK if outcome == "timeout" else ROOMY)
    with pytest.raises(WorkerDied) as died:
        worker.request({"do": job})
    assert died.value.outcome == outcome
    assert died.value.evidence.startswith(evidence)
    assert is_gone(worker.pid)
    assert fork(plain).request({"do": "echo"})[0]["do"] == "echo"


def test_a_worker_may_wait_between_its_steps_and_that_time_is_not_its_own(
    plain: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(waits_s), sleep=time.sleep)
    monkeypatch.setattr(warm_process, "time", clock)

    def pause() -> None:
        waits_s.append(10 * ROOMY.wall_s)  # more than the request may take

    answer, _ = fork(plain).request({"do": "rest"}, pause=pause)
    assert answer == {"may": True} and len(waits_s) == 3


class Counting(Protocol):
    def count(self) -> int: ...


def test_a_worker_that_gives_no_answer_to_a_typed_question_is_ended(plain: Zygote) -> None:
    worker = fork(plain)
    with pytest.raises(WorkerDied, match="sent something that is no answer: answer: Input should be a valid integer"):
        worker.ask(asking(Counting.count))
    assert not worker.alive


def test_a_flood_of_output_is_bounded(plain: Zygote) -> None:
    worker = fork(plain)
    assert worker.request({"do": "flood"})[0] == {"flooded": True}
    worker.excess()
    assert os.fstat(worker._errors).st_size <= 1 << 20
    worker.end()


def test_a_daemon_left_behind_is_killed(plain: Zygote) -> None:
    worker = fork(plain)
    left = worker.request({"do": "leave"})[0]["left"]
    worker.end()
    until(lambda: is_gone(left), "the end of the daemon")


@pytest.mark.parametrize(
    "last",
    [
        'worker.request({"do": "hang"})',
        '[warm._control.send({"op": "alive", "pid": worker.pid}) for _ in range(50)]; os.kill(os.getpid(), 9)',
    ],
    ids=["while a worker works", "before it has read an answer"],
)
def test_nothing_survives_a_killed_main_process(tmp_path: Path, last: str) -> None:
    (tmp_path / "worker_entries.py").write_text(ENTRIES)
    code = f"""
import os
from foundry.tools.process.child import Limits
from foundry.tools.process.zygote import Zygote
warm = Zygote.start(threads=1, preload=["ctypes"], later=[], environment={{"PYTHONPATH": {str(tmp_path)!r}}})
worker = warm.fork("worker_entries:serve", Limits())
left = worker.request({{"do": "leave"}})[0]["left"]
print(warm._child.pid, worker.pid, left, flush=True)
{last}
"""
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert main.stdout is not None
    pids = [int(pid) for pid in main.stdout.readline().split()]
    assert len(pids) == 3
    main.send_signal(signal.SIGKILL)
    main.wait()
    main.stdout.close()
    until(lambda: all(map(is_gone, pids)), "the end of all that it had started")


TELLS_WHAT_IS_LOADED = """
def loaded(channel, message, handles):
    channel.send({"loaded": sorted({"quick", "slow", "slower"} & set(sys.modules))})
"""


def test_who_is_early_comes_between_the_imports_that_go_on_in_the_background(tmp_path: Path) -> None:
    (tmp_path / "worker_entries.py").write_text(ENTRIES + TELLS_WHAT_IS_LOADED)
    (tmp_path / "quick.py").write_text("")
    for name in ("slow", "slower"):
        (tmp_path / f"{name}.py").write_text("import time; time.sleep(1.0)")
    warm = Zygote.begin(
        threads=1, preload=["quick"], later=["slow", "slower"], environment={"PYTHONPATH": str(tmp_path)}
    )
    warm.go_on()
    early = warm.fork("worker_entries:serve", ROOMY, early=True)
    assert "slower" not in early.request({"do": "loaded"})[0]["loaded"]
    warm.settle()
    again = warm.fork("worker_entries:serve", ROOMY, early=True)
    assert again.request({"do": "loaded"})[0]["loaded"] == ["quick", "slow", "slower"]
    warm.close()


def test_nobody_waits_for_what_only_others_need(tmp_path: Path) -> None:
    (tmp_path / "worker_entries.py").write_text(ENTRIES + TELLS_WHAT_IS_LOADED)
    for name in ("quick", "slow", "slower"):
        (tmp_path / f"{name}.py").write_text("")
    warm = Zygote.begin(
        threads=1, preload=["quick"], later=["slow", "slower"], environment={"PYTHONPATH": str(tmp_path)}
    )
    early = warm.fork("worker_entries:serve", ROOMY, early=True)
    assert early.request({"do": "loaded"})[0]["loaded"] == ["quick"]
    assert fork(warm).request({"do": "loaded"})[0]["loaded"] == ["quick", "slow", "slower"]
    warm.close()


def test_the_warm_process_keeps_compiled_modules_and_its_workers_leave_none(tmp_path: Path) -> None:
    (tmp_path / "worker_entries.py").write_text(ENTRIES)
    (tmp_path / "preloaded.py").write_text("")
    warm = Zygote.start(threads=1, preload=["preloaded"], later=[], environment={"PYTHONPATH": str(tmp_path)})
    fork(warm).request({"do": "echo"})
    warm.close()
    assert {path.name.split(".")[0] for path in tmp_path.glob("__pycache__/*")} == {"preloaded"}


def test_a_warm_process_that_is_not_needed_after_all_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time; time.sleep(1e6)")
    warm = Zygote.begin(threads=1, preload=["endless"], later=[], environment={"PYTHONPATH": str(tmp_path)})
    started = time.monotonic()
    warm.close()
    assert time.monotonic() - started < PATIENCE_S and is_gone(warm.pid)


def test_a_warm_process_that_cannot_start_says_why() -> None:
    with pytest.raises(MissingTool, match="No module named 'no_such_torch'"):
        Zygote.start(threads=1, preload=["no_such_torch"], later=[])


def test_channels_time_out_close_and_refuse_garbage() -> None:
    left, right = Channel.pair()
    with pytest.raises(ChannelTimeout):
        left.receive(0.01)
    for packet in (b"J[1]", b"J{", b"S999999999999", b"S5", b"\x00", b"J" + b"[" * 5000):
        right._socket.send(packet)
        with pytest.raises(ChannelGarbled):
            left.receive(1.0)
    handle = memory("tensor", 4096)
    right.send({"big": "y" * 100_000}, [handle])
    message, handles = left.receive(1.0)
    assert len(message["big"]) == 100_000 and len(handles) == 1
    view = map_memory(handles[0], 4096, writable=True)
    view[:3] = b"abc"
    view.close()
    seal(handle)
    assert map_memory(handle, 4096)[:3] == b"abc"
    with pytest.raises(OSError):
        os.ftruncate(handles[0], 10)
    with pytest.raises(OSError):
        os.write(handles[0], b"x")
    right.close()
    with pytest.raises(ChannelClosed):
        left.receive(1.0)
