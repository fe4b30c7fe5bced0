"""Child processes that can always be ended: limits, whole-tree usage and killing, commands with a deadline.

Linux only. A child runs in a session of its own, so that one signal reaches all it started; what left the session is
found through /proc. Nothing here trusts the child to cooperate.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
POLL_S = 0.1  # how often a watched tree's memory is read
OUTPUT_BYTES = 4 << 20  # a child's output beyond this is dropped

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Limits:
    """What one child and everything it starts may use. `tasks` counts processes and threads together."""

    wall_s: float = 60.0
    memory_bytes: int = 8 << 30
    cpu_s: int = 600
    tasks: int = 512
    file_bytes: int = 4 << 30


@dataclass(frozen=True)
class Usage:
    """Private memory (bytes; shared files not counted) and number of processes and threads of a tree."""

    memory_bytes: int
    tasks: int


@dataclass(frozen=True)
class Finished:
    """How a command ended. `reason` is "" when it exited by itself, else why it was killed."""

    returncode: int
    output: str
    seconds: float
    reason: str = ""


def machine_memory_bytes() -> int:
    """Memory this process may use: the machine's, or the control group's limit where that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text()))
    return total


def confine(limits: Limits) -> None:
    """Called in a freshly forked child: own session, no core file, CPU and file limits, dies with its parent.

    Memory is watched from outside instead, because RLIMIT_AS makes torch fail to reserve address space.
    """
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for kind, value in _resource_limits(limits).items():
        _lower(kind, value)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, whatever session it moved to."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """prctl(2); raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it, parents first; empty when it is gone."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        current = waiting.pop(0)
        try:
            threads = list(Path(f"/proc/{current}/task").iterdir())
        except OSError:
            continue
        found.append(current)
        for thread in threads:
            with contextlib.suppress(OSError):
                waiting += [int(child) for child in (thread / "children").read_text().split()]
    return found


def usage(pid: int) -> Usage:
    """Memory and tasks of the tree below `pid`."""
    memory = tasks = 0
    for member in descendants(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{member}/statm").read_text().split()
            memory += (int(fields[1]) - int(fields[2])) * PAGE_BYTES
            tasks += sum(1 for _ in Path(f"/proc/{member}/task").iterdir())
    return Usage(memory, tasks)


def excess(pid: int, limits: Limits) -> str:
    """Why the tree below `pid` must end, in words, or ""."""
    now = usage(pid)
    if now.memory_bytes > limits.memory_bytes:
        return f"needs more than {limits.memory_bytes / 1e9:.1f} GB of memory"
    if now.tasks > limits.tasks:
        return f"started more than {limits.tasks} processes and threads"
    return ""


def kill_tree(pid: int) -> None:
    """SIGKILL to `pid`, its process group and every descendant; repeated until no new one shows up."""
    seen: set[int] = set()
    while fresh := [member for member in descendants(pid) if member not in seen]:
        seen.update(fresh)
        for member in fresh:  # stop first: a stopped process cannot fork away
            _signal(member, signal.SIGSTOP)
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    for member in seen:
        _signal(member, signal.SIGKILL)


def describe_exit(status: int) -> str:
    """A wait status in words: `exited with code 3`, `was killed by SIGSEGV`."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return f"was killed by {signal.Signals(number).name}"
        except ValueError:
            return f"was killed by signal {number}"
    return f"exited with code {os.WEXITSTATUS(status)}"


def run_command(
    argv: Sequence[str],
    limits: Limits,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> Finished:
    """Runs a command to its end or its limits, standard output and error together, and leaves nothing behind.

    Blocking, at most `limits.wall_s` and a moment. Raises FileNotFoundError when the program does not exist.
    """
    start = time.monotonic()
    output = os.memfd_create("output")
    source = os.memfd_create("input")
    os.write(source, stdin)
    os.lseek(source, 0, os.SEEK_SET)
    try:
        child = subprocess.Popen(
            list(argv), stdin=source, stdout=output, stderr=output, cwd=cwd, env=env, start_new_session=True
        )
        for kind, value in _resource_limits(limits).items():
            with contextlib.suppress(OSError):
                resource.prlimit(child.pid, kind, (value, value))
        reason = _watch(child, limits, output, start + limits.wall_s)
        kill_tree(child.pid)
        returncode = child.wait()
        text = os.pread(output, OUTPUT_BYTES, 0).decode(errors="replace")
    finally:
        os.close(output)
        os.close(source)
    return Finished(returncode, text, time.monotonic() - start, reason)


def _watch(child: subprocess.Popen[bytes], limits: Limits, output: int, deadline: float) -> str:
    """Waits for the child; returns why it has to be killed, or "" when it ended."""
    handle = os.pidfd_open(child.pid)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return f"did not finish in {limits.wall_s:g} s"
            if select.select([handle], [], [], min(left, POLL_S))[0]:
                return ""
            if os.fstat(output).st_size > OUTPUT_BYTES:
                return f"wrote more than {OUTPUT_BYTES >> 20} MB of output"
            if reason := excess(child.pid, limits):
                return reason
    finally:
        os.close(handle)


def _resource_limits(limits: Limits) -> dict[int, int]:
    return {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: max(limits.tasks, 4096),  # counts all of the user's; the tree's own are watched
    }


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)
