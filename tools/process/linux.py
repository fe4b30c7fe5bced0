# Importing pathlib would double the launcher's start time.
# ruff: noqa: PTH100, PTH103, PTH109, PTH110, PTH112, PTH120
"""Confines a process by system calls of the kernel: namespaces, capabilities, Landlock, seccomp.

Linux on x86-64 and aarch64. Uses only the standard library: this file is also run bare, in a Python without site
packages, as the launcher that confines a compiler (12 ms). Means that the kernel refuses are left out and named.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

NETWORK = "network namespace"
MEMORY = "private shared memory"
TEMPORARY = "private temporary files"
CAPABILITIES = "no capabilities"
FILES = "landlock files"
SIGNALS = "landlock signals"
SYSCALLS = "seccomp"
MEANS = (NETWORK, MEMORY, TEMPORARY, CAPABILITIES, FILES, SIGNALS, SYSCALLS)
LOOPBACK = "loopback"  # not a means of confinement: a network namespace gets it back

SHARED_MEMORY = "/dev/shm"
TEMPORARY_FILES = "/tmp"
SHARED_MEMORY_OPTIONS = b"size=256m,nr_inodes=4096,mode=1777"

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x20000, 0x08000000, 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
# mount_setattr(2), since Linux 5.12: it adds restrictions to a mount without having to know the existing ones.
_SYS_MOUNT_SETATTR, _MOUNT_READ_ONLY, _HERE, _RECURSIVELY = 442, 1, -100, 0x8000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
_CAPABILITY_VERSION_3 = 0x20080522
# The same numbers on every architecture.
_SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}

# Landlock's rights (include/uapi/linux/landlock.h), with the ABI version from which each exists.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_MAKE_DEVICES = (1 << 6) | (1 << 11)  # character and block devices: denied in writable folders too
_TCP = 0b11  # bind and connect, ABI 4
_SCOPES = 0b11  # abstract UNIX sockets and signals, ABI 6

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True)
class Orders:
    """Resources that a process may still reach. Paths that do not exist are ignored.

    `readable`: files and folders with all below, to read, list and execute; `openable`: the same without listing;
    `writable`: everything but devices; `devices`: read, write, ioctl. `temporary` is an empty folder that appears as
    /tmp. `hidden`: folders that appear empty. Without `files` the file system stays open but for `closed`, device
    files that cannot be opened to write. With `capabilities` the process keeps them. `program` is a seccomp filter
    in hexadecimal. With `loopback` the programs inside may talk to each other over a network that ends here. With
    `thread_names` a process may name its threads through /proc, as NVIDIA's driver does at its start (error 304 of
    CUDA otherwise).
    """

    namespaces: bool = True
    loopback: bool = False
    capabilities: bool = False
    files: bool = True
    thread_names: bool = False
    readable: tuple[str, ...] = ()
    openable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    temporary: str = ""
    hidden: tuple[str, ...] = ()
    program: str = ""


@dataclass
class Confinement:
    """The active means, and for each other means the reason why it is not active."""

    active: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def confine(orders: Orders) -> Confinement:
    """Confines this process and all it will start; call it while there is one thread. Never raises for a refusal."""
    done = Confinement()
    parent = os.getppid()
    death_signal = _death_signal()
    if orders.namespaces:
        _attempt(done, NETWORK, _enter_namespaces)
        if NETWORK in done.active:
            if orders.loopback:
                _attempt(done, LOOPBACK, _raise_loopback)
            _attempt(done, MEMORY, lambda: _private_shared_memory(orders.hidden))
            if MEMORY in done.active and orders.temporary:
                _attempt(done, TEMPORARY, lambda: _private_temporary_files(orders))
    with contextlib.suppress(OSError):
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if not orders.capabilities:
        _attempt(done, CAPABILITIES, _drop_capabilities)
    if orders.files:
        private = {MEMORY: SHARED_MEMORY, TEMPORARY: TEMPORARY_FILES}
        own = tuple(path for name, path in private.items() if name in done.active)
        _attempt(done, FILES, lambda: _restrict_files(orders, own, done))
    elif orders.closed:
        with contextlib.suppress(OSError):
            _close_devices(orders.closed)
    _keep_death_signal(parent, death_signal)
    if orders.program:
        _attempt(done, SYSCALLS, lambda: install_filter(bytes.fromhex(orders.program)))
    done.active.sort(key=(*MEANS, LOOPBACK).index)
    return done


def _death_signal() -> int:
    """The signal that this process gets when its parent dies, 0 for none."""
    number = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def _keep_death_signal(parent: int, number: int) -> None:
    """Sets the parent-death signal again: the kernel forgets it with a change of credentials, as in a new user
    namespace."""
    if number:
        with contextlib.suppress(OSError):
            prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # the parent died meanwhile
            os.kill(os.getpid(), number)


def landlock_abi() -> int:
    """The version of Landlock that the kernel offers, 0 for none."""
    version = int(libc.syscall(_SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))
    return max(version, 0)


def prctl(option: int, value: int) -> None:
    """Calls prctl(2) for this process; raises OSError."""
    _succeed(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def _attempt(done: Confinement, name: str, work: Callable[[], None]) -> None:
    """Runs one step of the confinement and books it as active, or as refused with the reason."""
    try:
        work()
        done.active.append(name)
    except OSError as error:
        done.refused[name] = f"{error.filename or error.strerror}: {os.strerror(error.errno or 0)}"


def _succeed(result: int, what: str) -> int:
    """Returns a system call's result; raises OSError if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, what, what)
    return result


# ---------------------------------------------------------------- namespaces and capabilities


def _enter_namespaces() -> None:
    """Enters a new network without interfaces, new System V memory and a new mount table.

    A user namespace lets an ordinary user do so; it also puts every process outside out of reach of ptrace and of
    /proc. If user namespaces are refused, a process with CAP_SYS_ADMIN does without one.
    """
    user, group = os.getuid(), os.getgid()
    ours = _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWNS
    if libc.unshare(ours | _CLONE_NEWUSER) != 0:
        _succeed(libc.unshare(ours), "unshare")
        return
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _write(path: str, text: str) -> None:
    """Writes text to an existing file, such as one in /proc."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _raise_loopback() -> None:
    """Switches on the loopback interface of a new network."""
    import socket  # imported here, because the launcher of a compiler does not need it

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        _succeed(libc.ioctl(plug.fileno(), ctypes.c_ulong(_SIOCSIFFLAGS), request), "ioctl")


def _private_shared_memory(hidden: tuple[str, ...]) -> None:
    """Mounts a small /dev/shm of its own, and empty folders over the hidden ones.

    The process can then neither fill the machine's memory through it nor leave a message for a later process.
    """
    place = os.path.realpath(SHARED_MEMORY).encode()
    _succeed(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    for path in (place, *(os.path.realpath(folder).encode() for folder in hidden if os.path.isdir(folder))):
        _succeed(libc.mount(b"tmpfs", path, b"tmpfs", flags, SHARED_MEMORY_OPTIONS), "mount")


def _private_temporary_files(orders: Orders) -> None:
    """Mounts an own folder as /tmp. Allowed paths inside the real /tmp are bound back to their places, links
    included."""
    named = (*orders.readable, *orders.openable, *orders.writable)
    writable = {os.path.realpath(path) for path in orders.writable}
    real = sorted({os.path.realpath(path) for path in named})
    links = sorted({os.path.abspath(path) for path in named} - {*real})
    inside = [path for path in (*real, *links) if path.startswith(f"{TEMPORARY_FILES}/") and os.path.exists(path)]
    kept = [(path, os.path.realpath(path), os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in inside]
    here = os.getcwd()
    try:
        _bind(orders.temporary, TEMPORARY_FILES)
        for path, leads_to, handle in kept:
            if path != leads_to and os.path.exists(path):  # the link is in a folder that was bound back
                continue
            if os.path.isdir(f"/proc/self/fd/{handle}"):
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_CLOEXEC, 0o600))
            _bind(f"/proc/self/fd/{handle}", path)
            if leads_to not in writable:  # the own folder around it is writable
                _make_read_only(path)
        with contextlib.suppress(OSError):  # the current folder may be hidden now
            os.chdir(here)
    finally:
        for _, _, handle in kept:
            os.close(handle)


def _bind(source: str, target: str) -> None:
    """Bind-mounts a folder or file, with all mounts below it, at another place."""
    flags = ctypes.c_ulong(_MS_BIND | _MS_REC)
    _succeed(libc.mount(source.encode(), target.encode(), None, flags, None), "mount")


def _make_read_only(path: str) -> None:
    """Makes a mount and all below it read-only."""
    attributes = struct.pack("=QQQQ", _MOUNT_READ_ONLY, 0, 0, 0)
    arguments = (ctypes.c_int(_HERE), path.encode(), ctypes.c_uint(_RECURSIVELY), attributes, ctypes.c_size_t(32))
    _succeed(libc.syscall(_SYS_MOUNT_SETATTR, *arguments), "mount_setattr")


def _drop_capabilities() -> None:
    """Gives up all capabilities of this thread."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _succeed(libc.syscall(_SYS_CAPSET[os.uname().machine], header, bytes(24)), "capset")


# ---------------------------------------------------------------- Landlock


def _restrict_files(orders: Orders, own: tuple[str, ...], done: Confinement) -> None:
    """Restricts files, TCP and signals by Landlock, as far as its version can."""
    abi = landlock_abi()
    if abi == 0:
        _succeed(-1, "landlock")
    everything = max(rights for version, rights in _ALL_FILES.items() if version <= abi)
    tcp = _TCP if abi >= 4 and not orders.loopback else 0
    attributes = struct.pack("=QQQ", everything, tcp, _SCOPES if abi >= 6 else 0)
    with _rules(attributes, 24 if abi >= 6 else 16 if abi >= 4 else 8) as rules:
        to_run = _EXECUTE | _READ_FILE
        for paths, rights in (
            (orders.readable, to_run | _READ_DIR),
            (orders.openable, to_run),
            ((*orders.writable, *own), everything & ~_MAKE_DEVICES),
            (orders.devices, _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV),
        ):
            for path in paths:
                _allow(rules, path, rights & everything)
        _allow_own_process(rules, everything & (_WRITE_FILE | _TRUNCATE) if orders.thread_names else 0)
    if abi >= 6:
        done.active.append(SIGNALS)
    else:
        done.refused[SIGNALS] = f"this kernel's Landlock has version {abi}, it needs 6"


@contextlib.contextmanager
def _rules(attributes: bytes, size: int) -> Iterator[int]:
    """A new set of Landlock rules: filled in the `with` body, in force for this process after it."""
    asked = libc.syscall(_SYS_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    rules = _succeed(asked, "landlock")
    try:
        yield rules
        _succeed(libc.syscall(_SYS_LANDLOCK_RESTRICT, rules, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(rules)


def _close_devices(closed: tuple[str, ...]) -> None:
    """Makes these files of /dev impossible to open for writing, as well as new files in / itself.

    Landlock's rules only allow, each a folder with all below, so everything else in / and /dev gets one. A kernel
    that cannot do so closes nothing: the code is the user's own, and only takes longer to start.
    """
    if landlock_abi() < 2:  # the first version cannot allow that files move from folder to folder
        return
    with _rules(struct.pack("=QQQ", _WRITE_FILE | _REFER, 0, 0), 8) as rules:
        for folder in ("/", "/dev"):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path != "/dev" and entry.path not in closed:
                        _allow(rules, entry.path, _WRITE_FILE | _REFER)


def _allow(rules: int, path: str, rights: int) -> None:
    """Adds one rule; a path that does not exist or may not be opened needs none."""
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _add_rule(rules, handle, rights)
    finally:
        os.close(handle)


def _add_rule(rules: int, handle: int, rights: int) -> None:
    """Adds the rights on an open file or folder to a Landlock rule set."""
    is_folder = os.fstat(handle).st_mode & 0o170000 == 0o040000
    rule = struct.pack("=Qi", rights if is_folder else rights & _OF_A_FILE, handle)
    libc.syscall(_SYS_LANDLOCK_ADD, rules, ctypes.c_int(1), rule, ctypes.c_uint32(0))


def _allow_own_process(rules: int, of_threads: int) -> None:
    """Allows /proc/self of this process only, with more rights to its threads' files.

    The folders stay open: a rule holds for the folder's entry in the kernel's cache, which may be dropped while it
    is unused.
    """
    for path, rights in (("/proc/self/", _READ_FILE | _READ_DIR), ("/proc/self/task/", of_threads)):
        if rights:
            with contextlib.suppress(OSError):
                _add_rule(rules, os.open(path, os.O_PATH | os.O_CLOEXEC), rights)


# ---------------------------------------------------------------- seccomp


def install_filter(program: bytes) -> None:
    """Installs a BPF program of 8-byte instructions; raises OSError. Needs no new privileges.

    Without SPEC_ALLOW older kernels switch off speculation for the process, which would slow what is timed.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    size = ctypes.sizeof(ctypes.c_void_p)
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    assert len(header) == 2 * size
    number = _SYS_SECCOMP.get(os.uname().machine)
    for flags in (_SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0):
        if number and libc.syscall(number, _SECCOMP_SET_MODE_FILTER, ctypes.c_uint(flags), header) == 0:
            return
    pointer = ctypes.cast(ctypes.create_string_buffer(header, len(header)), ctypes.c_void_p)
    _succeed(libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), pointer, 0, 0), "seccomp")


# ---------------------------------------------------------------- the launcher


def main(arguments: list[str]) -> None:
    """`ORDERS PROGRAM ARGUMENT...` becomes the program, confined; `ORDERS` alone prints which means would be active."""
    orders = Orders(**json.loads(arguments[0]))
    done = confine(orders)
    if len(arguments) == 1:
        print(json.dumps(asdict(done)))
        return
    try:
        os.execvp(arguments[1], arguments[1:])
    except OSError as error:
        print(f"{arguments[1]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
