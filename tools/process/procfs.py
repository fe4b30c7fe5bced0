"""Reads the kernel's view of a process: caught signals, threads, children, sockets, patched machine code, CPU time.

Nothing here asks Python objects, which code in the process could have replaced. Linux; free of torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import sysconfig
import time
import types
from collections.abc import Iterator
from ctypes import CDLL, c_int, c_void_p, create_string_buffer, string_at
from pathlib import Path

_CPUCLOCK_SCHED = 2  # include/linux/posix-timers.h: the clock of a whole process, ended threads included
# stmxcsr, or with 0x8040, ldmxcsr: the body of crtfastmath.o on x86-64
_FAST_MATH = re.compile(rb"\x0f\xae\x5c.{1,24}?\x40\x80\x00\x00.{0,24}?\x0f\xae\x54", re.DOTALL)
_WRITING = os.O_WRONLY | os.O_RDWR
_GPUS = Path("/proc/driver/nvidia/gpus")  # NVIDIA's driver: one folder for each GPU
# Offsets of the C function in CPython's objects: PyCFunctionObject.m_ml and PyMethodDescrObject.d_method.
_METHOD_TABLES = ((types.BuiltinFunctionType, 16), (types.MethodDescriptorType, 40))
_HAS_KNOWN_LAYOUT = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
_SIGACTION = CDLL(None).sigaction  # glibc's and musl's structure begin with the handler
_SIGACTION.argtypes = [c_int, c_void_p, c_void_p]
_SIGACTION_BYTES = 256
_INTERNET = {
    value
    for name in ("AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK")
    if (value := getattr(socket, name, None)) is not None
}


def cpu_ns(pid: int) -> int | None:
    """CPU time in ns of all threads of a process, ended ones too; None if it is gone or hidden."""
    try:
        return time.clock_gettime_ns(((~pid) << 3) | _CPUCLOCK_SCHED)
    except OSError:
        return None


def gpu_files() -> dict[str, str]:
    """Maps the UUID of each GPU listed by NVIDIA's driver, as CUDA_VISIBLE_DEVICES takes it, to its device file."""
    found = {}
    for described in _GPUS.glob("*/information"):
        with contextlib.suppress(OSError):
            facts = dict(re.findall(r"^([\w ]+?)\s*:\s*(\S+)", described.read_text(), re.MULTILINE))
            if {"GPU UUID", "Device Minor"} <= {*facts}:
                found[facts["GPU UUID"]] = f"/dev/nvidia{facts['Device Minor']}"
    return found


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[bool]:
    """Stops a process for the `with` body; yields True if that worked. Processes that it started go on."""
    is_stopped = bool(pid)
    try:
        if pid:
            os.kill(pid, signal.SIGSTOP)
    except (ProcessLookupError, PermissionError):
        is_stopped = False
    try:
        yield is_stopped
    finally:
        if is_stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def end(pid: int, patience_s: float) -> None:
    """Kills a process, and returns when it holds no memory any more, or after so many seconds."""
    stop = time.monotonic() + patience_s
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if pid:
            os.kill(pid, signal.SIGKILL)
        while pid and time.monotonic() < stop and _status_bytes(pid, "VmRSS"):
            time.sleep(0.01)


def forget_peak(pid: int) -> int | None:
    """Resets the peak of a process's memory; returns the bytes that it holds now, None if the system refuses."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return None
    return _status_bytes(pid, "VmRSS")


def peak_bytes(pid: int) -> int | None:
    """The most memory in bytes that a process held since `forget_peak`; None if unknown."""
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, field: str) -> int | None:
    """One size in /proc/PID/status, in bytes; None if it is not there."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def entry_point(function: object) -> int:
    """The address of the machine code of a C function object; 0 for other objects, and on unknown layouts."""
    if _HAS_KNOWN_LAYOUT:
        for kind, offset in _METHOD_TABLES:
            if isinstance(function, kind):
                table = c_void_p.from_address(id(function) + offset).value
                return (c_void_p.from_address(table + 8).value or 0) if table else 0
    return 0


def arithmetic() -> dict[str, str]:
    """Tests how this thread's floating-point unit treats denormal numbers and rounds.

    Both are settings of the thread, which a library can change when it is loaded (`-ffast-math` when linking does).
    """
    smallest = sys.float_info.min
    nearly_half = 3 * 2.0**-54
    keeps = smallest / 2 != 0.0 and smallest / 2 * 2.0**60 != 0.0
    rounds = 1.0 + nearly_half > 1.0 and -1.0 - nearly_half < -1.0 and 1.0 + 2.0**-54 == 1.0
    return {
        "denormal numbers": "kept" if keeps else "flushed to zero",
        "rounding": "to nearest" if rounds else "in another direction",
    }


def flushes_by_flag(known: frozenset[str]) -> bool:
    """True if a mapped library outside the known ones was linked with -ffast-math.

    GCC before 13 puts a start-up function into such a library that sets flush-to-zero for the thread that loads it
    (gcc.gnu.org/bugzilla, 55522), which its author hardly knows. Read from memory: the file may be gone.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/") and fields[5] not in known:
            begin, end = (int(part, 16) for part in fields[0].split("-"))
            if _FAST_MATH.search(string_at(begin, end - begin)):
                return True
    return False


def signal_masks() -> dict[str, int]:
    """Signals that are ignored and blocked, as bit masks."""
    masks: dict[str, int] = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("SigIgn", "SigBlk"):
            masks[name] = int(value, 16)
    return masks


def signal_handlers() -> dict[int, int]:
    """Address of each signal's handler as the kernel has it; 0 is the default and 1 "ignored"."""
    found: dict[int, int] = {}
    action = create_string_buffer(_SIGACTION_BYTES)
    for number in signal.valid_signals():
        if _SIGACTION(int(number), None, action) == 0:
            found[int(number)] = c_void_p.from_buffer(action).value or 0
    return found


def file_of(address: int) -> str:
    """The file whose machine code is mapped at an address, "" if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        begin, _, end = fields[0].partition("-")
        if int(begin, 16) <= address < int(end, 16):
            return fields[5] if len(fields) == 6 and "x" in fields[1] else ""
    return ""


def children() -> dict[int, str]:
    """Running children: pid -> command ("" if a sandbox hides it). Ended children that were not waited for do not
    count."""
    found: dict[int, str] = {}
    for thread in _entries("/proc/self/task"):
        with contextlib.suppress(OSError):
            for child in Path(f"/proc/self/task/{thread}/children").read_text().split():
                if _runs(int(child)):
                    found[int(child)] = _command(child)
    return found


def _runs(child: int) -> bool:
    """True if a child process of this one has not ended."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _command(child: str) -> str:
    """The command name of a process; "" if it is gone."""
    try:
        return Path(f"/proc/{child}/comm").read_text().strip()
    except OSError:
        return ""


def open_files() -> dict[str, str]:
    """Open files by number: `socket:internet`, `socket:local`, `writes PATH`, or the name in /proc."""
    found: dict[str, str] = {}
    for number in _entries("/proc/self/fd"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            name = str(Path(f"/proc/self/fd/{number}").readlink())
            if name.startswith("socket:"):
                name += ":" + _family(int(number))
            elif name.startswith("/") and not name.startswith(("/dev/", "/memfd:", "/proc/")):
                lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
                flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags"))
                name = f"writes {name}" if flags & _WRITING else name
            found[number] = name
    return found


def mapped_code() -> frozenset[str]:
    """Paths of files whose machine code is mapped."""
    found: set[str] = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
            found.add(fields[5])
    return frozenset(found)


def patched_code() -> list[str]:
    """Files whose machine code in memory differs from that on disk, because it was patched. Takes 10 ms."""
    found: list[str] = []
    path = ""
    is_code = False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            fields = line.split(None, 5)
            if "-" in fields[0] and not fields[0].endswith(":"):
                path = fields[5].strip() if len(fields) == 6 else ""
                is_code = "x" in fields[1] and path.startswith("/") and not path.startswith("/dev/")
            elif is_code and fields[0] == "Anonymous:" and fields[1] != "0":
                found.append(path)
    return found


def close_all_but(kept: set[int]) -> None:
    """Closes every other open file of this process."""
    for number in _entries("/proc/self/fd"):
        if int(number) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(number))


def _family(number: int) -> str:
    """ "internet" or "local": the kind of a socket."""
    with socket.socket(fileno=os.dup(number)) as copy:
        return "internet" if copy.family in _INTERNET else "local"


def _entries(folder: str) -> list[str]:
    """The names in a folder; empty if it cannot be read."""
    try:
        return [entry.name for entry in Path(folder).iterdir()]
    except OSError:
        return []
