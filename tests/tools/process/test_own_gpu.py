"""A process can use the GPU that it runs on and no other of the host."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from foundry.tools.process import procfs, sandbox
from foundry.tools.process.child import Limits, run_command
from foundry.tools.process.linux import FILES, SYSCALLS, Orders
from foundry.tools.process.procfs import gpu_files
from foundry.tools.process.sandbox import Sandbox
from foundry.tools.process.seccomp import Form
from foundry.tools.process.zygote import Zygote

WRITING = """
import os
for path in ("/dev/full", "/dev/null", "/dev/shm/foundry-written", "/proc/self/comm", "one/file", "/dev/stdout"):
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        if path != "/dev/stdout":
            os.write(file, b"x")
        print("written", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
os.rename("one/file", "two/moved")
os.remove("/dev/shm/foundry-written")
"""


@pytest.mark.skipif(FILES not in sandbox.available().active, reason=f"no {FILES} on this machine")
def test_a_device_that_is_closed_cannot_be_opened_and_all_else_can_be_written(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    orders = Orders(namespaces=False, capabilities=True, files=False, closed=("/dev/full", "/dev/no-such-device"))
    argv = [sys.executable, "-I", "-S", sandbox.LAUNCHER, json.dumps(asdict(orders)), sys.executable, "-c", WRITING]
    done = run_command(argv, Limits(wall_s=20), cwd=tmp_path)
    assert done.output.splitlines() == ["Permission denied", *["written"] * 5]
    assert done.returncode == 0 and (tmp_path / "two" / "moved").exists(), done.output


def test_other_gpus_are_closed_where_a_process_sees_its_own_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"GPU-a": "/dev/null", "GPU-b": "/dev/zero", "GPU-c": "/dev/full"}
    monkeypatch.setattr(sandbox, "gpu_files", lambda: files)
    monkeypatch.setattr(sandbox, "_GPU_DEVICES", ("null", "zero", "full"))
    monkeypatch.setattr(sandbox, "_DEVICES", ())
    closed = {}
    try:
        for named in ("GPU-b", "GPU-c, GPU-a", "1", "", "GPU-b,1", "MIG-b"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
            sandbox.prepare()
            task = sandbox._orders(Sandbox("task"), [FILES])
            left = {*sandbox._orders(Sandbox("candidate"), [FILES]).devices}
            assert left.isdisjoint(task.closed) and left | {*task.closed} == {*files.values()}
            assert not sandbox._orders(Sandbox("task"), [SYSCALLS]).closed
            closed[named] = task.closed
    finally:
        monkeypatch.undo()
        sandbox.prepare()
    assert closed["GPU-b"] == ("/dev/null", "/dev/full") and closed["GPU-c, GPU-a"] == ("/dev/zero",)
    assert not any(paths for named, paths in closed.items() if named not in ("GPU-b", "GPU-c, GPU-a"))


LISTED = """Model: \t\t NVIDIA H200
IRQ:   \t\t 187
GPU UUID: \t {uuid}
Bus Location: \t 0000:1b:00.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""


def test_the_kernels_driver_lists_which_file_is_which_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for uuid, minor in (("GPU-9062b6bf-6d3a-41e2-d8e1-a502ac7a65be", 3), ("GPU-????????-????", 0)):
        (tmp_path / uuid).mkdir()
        (tmp_path / uuid / "information").write_text(LISTED.format(uuid=uuid, minor=minor))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "information").write_text("Model: \t\t Unknown\n")
    monkeypatch.setattr(procfs, "_GPUS", tmp_path)
    assert gpu_files() == {
        "GPU-9062b6bf-6d3a-41e2-d8e1-a502ac7a65be": "/dev/nvidia3",
        "GPU-????????-????": "/dev/nvidia0",  # one that was not used yet
    }
    monkeypatch.setattr(procfs, "_GPUS", tmp_path / "no driver")
    assert gpu_files() == {}


OPENING = """
import os
from foundry.tools.process.sandbox import gpu_answers

def look(channel):
    message, _ = channel.receive()
    said = {}
    for path in message["paths"]:
        try:
            os.close(os.open(path, os.O_RDWR))
            said[path] = "opened"
        except OSError as error:
            said[path] = error.strerror
    channel.send({"said": said, "answers": gpu_answers()})
"""


@pytest.mark.gpu
@pytest.mark.skipif(len(gpu_files()) < 2, reason="the kernel does not list two GPUs")
@pytest.mark.parametrize("form", ["task", "candidate"])
def test_a_process_uses_its_own_gpu_and_cannot_open_another(form: Form, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "opening_entries.py").write_text(OPENING)
    warm = Zygote.begin(threads=1, preload=["ctypes"], later=[], environment={"PYTHONPATH": str(tmp_path)})
    asked = Sandbox(form, writable=(str(tmp_path),), temporary=str(tmp_path / "tmp"))
    try:
        for own, file in gpu_files().items():
            warm.wait(own.removeprefix("GPU-"))
            worker = warm.fork("opening_entries:look", Limits(wall_s=30), sandbox=asked)
            answer, _ = worker.request({"paths": [*gpu_files().values()]}, timeout_s=PATIENCE_S)
            worker.end()
            others = {path: "Permission denied" for path in gpu_files().values()}
            assert answer["said"] == {**others, file: "opened"} and answer["answers"]
    finally:
        warm.close()
