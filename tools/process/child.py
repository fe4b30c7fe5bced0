"""Child processes that can always be ended: limits, use of memory by a whole process tree, killing, deadlines.

Linux only. A child runs in a session of its own, so that one signal reaches all it started; processes that left the
session are found through /proc. Nothing here trusts the child to cooperate.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foundry.tools.process.sandbox import confine_command

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
POLL_S = 0.1  # seconds between two readings of a watched tree's memory
OUTPUT_BYTES = 4 << 20  # bytes; a child's further output is dropped
DATA_ROOM_BYTES = 1 << 30  # bytes of private memory that one process may reserve beyond its limit, without a GPU

_GPU = Path("/dev/nvidiactl")  # present with NVIDIA's driver, which reserves address space by the terabyte
_HELD_OPEN = ("/memfd:", "/dev/shm/")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Limits:
    """Limits of one child together with everything it starts. `tasks` counts processes and threads together.

    `shared_bytes` is memory without a private owner: mappings that can be inherited, files without a name.
    `file_bytes` is the size of one file, `folder_bytes` and `folder_files` the contents of all watched folders
    together.
    """

    wall_s: float = 60.0
    memory_bytes: int = 8 << 30
    cpu_s: int = 600
    tasks: int = 512
    file_bytes: int = 4 << 30
    shared_bytes: int = 1 << 50
    folder_bytes: int = 1 << 50
    folder_files: int = 50_000


@dataclass(frozen=True)
class Usage:
    """Private memory and ownerless memory in bytes (files on disk not counted), number of processes and threads."""

    memory_bytes: int
    shared_bytes: int
    tasks: int


@dataclass(frozen=True)
class Finished:
    """The end of a command. `reason` is "" if it exited by itself, else why it was killed."""

    returncode: int
    output: str
    seconds: float
    reason: str = ""


def machine_memory_bytes() -> int:
    """Memory in bytes that this process may use: the machine's, or the control group's limit if that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(name).read_text()))
    return total


def confine(limits: Limits, *, expendable: bool = False) -> None:
    """Limits a freshly forked child: own session, no core file, CPU and file limits, death with its parent.

    Memory of all processes together is watched from outside, because RLIMIT_AS makes torch fail to reserve address
    space; a limit on its private memory keeps one process from outrunning the watch. The child adopts the orphans of
    its descendants, so that they are seen and counted. If the machine runs out of memory all the same, an
    `expendable` child is killed first.
    """
    os.setsid()
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    adopt_orphans()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000" if expendable else "500")
    for kind, value in _resource_limits(limits).items():
        _lower(kind, value)
    if not _GPU.exists():
        reserved = _status(os.getpid()).get("VmData", 0)
        _lower(resource.RLIMIT_DATA, limits.memory_bytes + reserved + DATA_ROOM_BYTES)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, in any session."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """Calls prctl(2) for this process; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(pid: int, limit: int = 1 << 20) -> list[int]:
    """`pid` and every process below it, parents first, about `limit` at most; empty if it is gone."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) <= limit:
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


def usage(pid: int, tasks_limit: int = 1 << 20) -> Usage:
    """Memory and tasks of the tree below `pid`; counting stops soon after `tasks_limit` is passed."""
    memory = mapped = held = tasks = 0
    for member in descendants(pid, tasks_limit):
        status = _status(member)
        memory += status.get("RssAnon", 0)
        mapped += status.get("RssShmem", 0)
        held += _held_open(member)
        tasks += status.get("Threads", 0)
    return Usage(memory, max(mapped, held), tasks)


def excess(pid: int, limits: Limits) -> str:
    """The limit (memory, shared memory, number of processes) that the process tree below `pid` exceeds, in words; "" if
    none."""
    now = usage(pid, limits.tasks)
    if now.memory_bytes > limits.memory_bytes and _held_together(pid) > limits.memory_bytes:
        return f"needs more than {limits.memory_bytes / 1e9:.1f} GB of memory"
    if now.shared_bytes > limits.shared_bytes:
        return f"holds more than {limits.shared_bytes / 1e9:.1f} GB of shared memory"
    if now.tasks > limits.tasks:
        return f"started more than {limits.tasks} processes and threads"
    return ""


def folder_excess(folder: Path, limits: Limits) -> str:
    """The limit (number of files, bytes) that the files in a folder exceed, in words; "" if none."""
    size = count = 0
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                if count > limits.folder_files:
                    return f"wrote more than {limits.folder_files} files"
    return f"wrote more than {limits.folder_bytes / 1e9:.1f} GB of files" if size > limits.folder_bytes else ""


def kill_tree(pid: int) -> None:
    """Sends SIGKILL to `pid`, its process group and every descendant, until no new one shows up.

    All are stopped first, because a stopped process cannot fork away. The kernel stops the group in one step, and a
    confined process cannot leave it; the others are stopped one by one.
    """
    _signal_group(pid, signal.SIGSTOP)
    seen: set[int] = set()
    while fresh := [member for member in descendants(pid) if member not in seen]:
        seen.update(fresh)
        for member in fresh:
            _signal(member, signal.SIGSTOP)
    _signal_group(pid, signal.SIGKILL)
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
    confined_to: Path | None = None,
    stop: Callable[[], str] = lambda: "",
) -> Finished:
    """Runs a command to its end or its limits, standard output and error together, and leaves no process behind.

    `stop` is called repeatedly and kills the command once it gives a reason. With `confined_to` the command reads
    only its own installation, writes only to that folder, and has no network, as far as the kernel can do so.
    Blocking, at most `limits.wall_s` and a moment. Raises FileNotFoundError if the program does not exist.
    """
    start = time.monotonic()
    if confined_to is not None:
        argv = confine_command(argv, confined_to, path=None if env is None else env.get("PATH"))
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
        reason = _watch(child, limits, output, deadline=start + limits.wall_s, folder=confined_to, stop=stop)
        kill_tree(child.pid)
        returncode = child.wait()
        text = os.pread(output, OUTPUT_BYTES, 0).decode(errors="replace")
    finally:
        os.close(output)
        os.close(source)
    return Finished(returncode, text, time.monotonic() - start, reason)


def _watch(
    child: subprocess.Popen[bytes],
    limits: Limits,
    output: int,
    deadline: float,
    folder: Path | None,
    stop: Callable[[], str],
) -> str:
    """Waits for the child; returns why it must be killed, or "" if it ended."""
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
            if reason := stop() or excess(child.pid, limits) or (folder and folder_excess(folder, limits)):
                return reason
    finally:
        os.close(handle)


def _resource_limits(limits: Limits) -> dict[int, int]:
    """The values for setrlimit(2): no core dumps, CPU seconds, file size, processes."""
    return {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NPROC: max(limits.tasks, 8192),  # counts all of the user's; the tree's own are watched
    }


def _status(pid: int) -> dict[str, int]:
    """Numbers of /proc/PID/status, sizes in bytes; empty for a process that is gone."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, text = line.partition(":")
            if name in ("RssAnon", "RssShmem", "VmData", "Threads"):
                number, *unit = text.split()
                found[name] = int(number) * (1024 if unit else 1)
    return found


def _held_together(pid: int) -> int:
    """Private memory in bytes of the tree below `pid`, with pages that a fork left to several processes counted once.

    `usage` is faster and counts such pages for each process. This takes some 10 ms for each GB.
    """
    total = 0
    for member in descendants(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
            total += next(1024 * int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon:"))
        except (OSError, StopIteration):  # the process is gone or hidden, or the kernel is older than 5.3
            total += _status(member).get("RssAnon", 0)
    return total


def _held_open(pid: int) -> int:
    """Bytes in a process's open files that have no name, or a name in shared memory only."""
    sizes: dict[tuple[int, int], int] = {}
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith(_HELD_OPEN) or target.endswith(" (deleted)"):
                    about = entry.stat()
                    sizes[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(sizes.values())


def _lower(kind: int, value: int) -> None:
    """Lowers a resource limit, soft and hard."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process group, which may already be gone."""
    with contextlib.suppress(OSError):
        os.killpg(pid, number)


def _signal(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process, which may already be gone."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)
