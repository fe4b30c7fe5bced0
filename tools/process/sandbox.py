"""Policies of confinement: which files, devices and processes candidates, tasks and compilers may reach.

A candidate reads the installation of Python and torch and facts about the machine, and writes to folders of its own.
It sees neither the user's home, the run with its seeds and receipts, other candidates, nor any other process, and it
has no network. The user's own task keeps the file system and loses only the network. Neither can use a GPU that is
not its own. A compiler reads its own installation and writes to one folder, so that nothing else can be included
into a kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foundry import tools
from foundry.tools.process import linux
from foundry.tools.process.channel import Channel, ChannelClosed
from foundry.tools.process.environment import VISIBLE_GPUS
from foundry.tools.process.linux import FILES, MEANS, MEMORY, NETWORK, SIGNALS, SYSCALLS, Confinement, Orders
from foundry.tools.process.procfs import gpu_files
from foundry.tools.process.seccomp import Form, program

LAUNCHER = str(Path(linux.__file__).resolve())
PROBE_S = 20.0  # seconds allowed for trying the sandbox
ALL_USABLE = 2  # score of a sandbox in which Python and the GPU work
# Filters for tools that need more sockets than the default filter allows.
LOCAL_TOOL, OPEN_TOOL = "seccomp with local sockets", "seccomp without sockets"
NOBODY = 0x7FFFFFFF  # no process has this number: a process limited to signalling it can signal only its own group
ENTERED: list[Confinement] = []  # confinement of this process, once it has entered one
NVIDIA_CONTROL, NVIDIA_MEMORY = Path("/dev/nvidiactl"), Path("/dev/nvidia-uvm")

_SOCKETS = ("/run",)  # folders of services' sockets
_DRIVER_IN_RUN = "/run/opengl-driver"  # NixOS keeps drivers there
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/opt/cuda", "/opt/intel", "/opt/nvidia", "/opt/rh", _DRIVER_IN_RUN),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/ssl/openssl.cnf", "/etc/crypto-policies", "/etc/pki/tls/openssl.cnf"),
)
_MACHINE = (
    *(f"/proc/{name}" for name in ("cpuinfo", "meminfo", "stat", "loadavg", "version", "uptime", "filesystems")),
    *("/proc/devices", "/proc/modules", "/proc/driver", "/proc/sys", "/sys"),
)
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
_GPU_DEVICES = ("nvidia*", "dxg", "dri")  # patterns below /dev
_TOOLS = ("g++", "c++", "gcc", "cc", "clang++", "ld", "as", "nvcc", "ninja")
_PARTS_OF_A_TOOL = ("bin", "lib", "lib64", "libexec", "include", "nvvm", "targets")
_TOO_WIDE = ("/", "/home", "/root", "/tmp", "/var", "/etc", "/mnt", "/srv", "/opt", "/run")
_OWN_ROOMS = ("__init__.py", "tools", "knowledge")  # parts of this package; its folder may hold runs as well


@dataclass(frozen=True)
class Sandbox:
    """The confinement of one worker: its form, and paths that it reaches beyond the form. `openable` cannot be
    listed."""

    form: Form
    readable: tuple[str, ...] = ()
    openable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    temporary: str = ""  # an empty folder that appears as /tmp


def enter(sandbox: Sandbox, means: Collection[str] = MEANS) -> Confinement:
    """Confines this process, which has one thread, by those `means` that work on this machine.

    Means that work by half (a user namespace without rights in it) are found by `available` and not tried again.
    """
    done = linux.confine(_orders(sandbox, means))
    ENTERED.append(done)
    return done


def _orders(sandbox: Sandbox, means: Collection[str]) -> Orders:
    """The kernel-level orders for a sandbox."""
    guarded = 0 if SIGNALS in means else NOBODY if "tool" in sandbox.form else os.getpid()
    filtered = program(sandbox.form, only_signals_to=guarded, own=os.getpid()).hex() if SYSCALLS in means else ""
    if sandbox.form == "task":
        alone = NETWORK in means and not filtered
        closed = _foreign_gpus() if FILES in means else ()
        return Orders(namespaces=alone, capabilities=True, files=False, closed=closed, program=filtered)
    orders = _candidate_orders()
    return replace(
        orders,
        namespaces=NETWORK in means,
        files=FILES in means,
        program=filtered,
        readable=(*orders.readable, *sandbox.readable),
        openable=(*orders.openable, *sandbox.openable),
        writable=(*orders.writable, *sandbox.writable),
        temporary=sandbox.temporary,
    )


def from_message(given: Mapping[str, Any]) -> Sandbox:
    """The sandbox in a message to the warm process."""
    paths = {name: tuple(given[name]) for name in ("readable", "openable", "writable")}
    return Sandbox(given["form"], temporary=given["temporary"], **paths)


def report(channel: Channel) -> None:
    """Entry of a worker that reports its confinement and how much works in it.

    The score is 0 for nothing, 1 for Python, ALL_USABLE for Python and the GPU, if there is one.
    """
    channel.receive()
    needed = [sys.executable, LAUNCHER]
    if "torch" in sys.modules:
        needed.append(str(sys.modules["torch"].__file__))
    works = 0
    if all(os.access(path, os.R_OK) for path in needed):
        works = ALL_USABLE if not NVIDIA_CONTROL.exists() or gpu_answers() else 1
    channel.send({"active": ENTERED[-1].active, "refused": ENTERED[-1].refused, "works": works})
    with contextlib.suppress(ChannelClosed):
        channel.receive()  # stays alive for inspection until the caller closes the channel


def gpu_answers() -> bool:
    """True if the driver starts in this process and gives it a context on the first device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    context = ctypes.c_void_p()
    return bool(driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0)


@functools.cache
def available() -> Confinement:
    """The means that work for a candidate on this machine, tried once in a process of its own (40 ms)."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            orders = Orders(readable=_SYSTEM, temporary=folder, program=program("candidate").hex())
            argv = [sys.executable, "-I", "-S", LAUNCHER, json.dumps(asdict(orders))]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
        said = json.loads(done.stdout)
        return Confinement(list(said["active"]), dict(said["refused"]))
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        return Confinement(refused={name: f"could not be tried: {error}" for name in MEANS})


def confine_command(argv: Sequence[str], folder: Path, *, path: str | None = None) -> list[str]:
    """The command line that runs a compiler confined, or `argv` unchanged where no means works (see `available`).

    Confined, it has no network, reads its installation and the system's libraries, and writes only to `folder`. Each
    holds as far as its means works here. Raises FileNotFoundError if there is no such program on `path`.
    """
    program_path = shutil.which(argv[0], path=path)
    if program_path is None:
        raise FileNotFoundError(argv[0])
    means = available().active
    if not means:
        return list(argv)
    orders = Orders(
        namespaces=NETWORK in means,
        readable=tuple(_distinct([*_SYSTEM, *_parts_of(program_path), *_cuda_homes(), *_MACHINE])),
        writable=(str(folder),),
        devices=_DEVICES,
        program=program("candidate").hex() if SYSCALLS in means else "",
    )
    return [*_launched(orders), *argv]


def confine_tool(tool: Sequence[str], watched: Sequence[str], asked: Sandbox, means: Collection[str]) -> list[str]:
    """The command line of a tool that starts a program and watches it, both confined.

    The program is confined as without the tool, by the `means` that work for candidates here, except for TCP to the
    tool. Both share a network, shared memory and temporary files of their own. Only the program has rules about
    files and system calls: file rules hold for one process's folder in /proc, and it must be the one that names its
    threads. Without a private network the two are not confined.
    """
    if NETWORK not in means:
        return [*tool, *watched]
    own = [part for path in tool[:1] for part in (*_parts_of(path), str(Path(path).resolve().parent))]
    form: Form = "open tool" if OPEN_TOOL in means else "local tool" if LOCAL_TOOL in means else "tool"
    kept = means if form == "tool" else {*means, SYSCALLS}
    orders = _orders(replace(asked, form=form, readable=(*asked.readable, *own)), kept)
    hidden = () if Path(_DRIVER_IN_RUN).exists() else _SOCKETS
    around = replace(orders, loopback=True, files=False, program="", hidden=hidden)
    private = (linux.SHARED_MEMORY, linux.TEMPORARY_FILES) if MEMORY in means else ()
    inside = replace(orders, namespaces=False, loopback=True, writable=(*orders.writable, *private))
    return [*_launched(around), *tool, *_launched(inside), *watched]


def _launched(orders: Orders) -> list[str]:
    """The beginning of a command line that runs the rest confined."""
    return [sys.executable, "-I", "-S", LAUNCHER, json.dumps(asdict(orders))]


def prepare_gpu() -> None:
    """Lets the driver's own tool make its device files, which a confined process may no longer do."""
    tool = shutil.which("nvidia-modprobe")
    if tool and NVIDIA_CONTROL.exists() and not NVIDIA_MEMORY.exists():
        subprocess.run([tool, "-u", "-c", "0"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S)


def prepare() -> None:
    """Computes in the warm process what all workers have in common; called again after more modules are imported."""
    _foreign_gpus.cache_clear()
    _candidate_orders.cache_clear()
    _candidate_orders()
    program("task")


@functools.cache
def _foreign_gpus() -> tuple[str, ...]:
    """Device files of GPUs that CUDA_VISIBLE_DEVICES does not name; empty if it names one by anything but a known UUID.

    A process that can open them initialises all of them: half of cuInit's time belongs to the other of two H200s.
    """
    files = gpu_files()
    own = [name.strip() for name in os.environ.get(VISIBLE_GPUS, "").split(",")]
    return tuple(path for uuid, path in files.items() if uuid not in own) if {*own} <= {*files} else ()


@functools.cache
def _candidate_orders() -> Orders:
    """Resources that every candidate reaches; computed once in the warm process, which has imported torch."""
    named = [word for name in ("CC", "CXX") for word in os.environ.get(name, "").split()[:1]]
    tools = [part for name in (*_TOOLS, *named) for part in _parts_of(shutil.which(name) or "")]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    gpu = [str(path) for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern)]
    gpu = [path for path in gpu if path not in _foreign_gpus()]
    return Orders(
        readable=tuple(_distinct([*_SYSTEM, *_python(), *_narrow([*tools, *_cuda_homes(), *libraries]), *_MACHINE])),
        writable=("/dev/shm",) if gpu else (),
        devices=(*_DEVICES, *gpu),
        thread_names=bool(gpu),
    )


def _python() -> list[str]:
    """Folders of the interpreter, installed packages, this package, and packages loaded from elsewhere."""
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    places += [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    places = list(_narrow(places))
    package = Path(tools.__file__).parent.parent  # not resolved: a link may lead to it
    rooms = [str(package / room) for room in _OWN_ROOMS]
    loaded = [name for name in sys.modules if "." not in name and name not in ("foundry", "__main__")]
    for name in loaded:
        for folder in [*getattr(sys.modules[name], "__path__", [])]:
            if not any(Path(folder).is_relative_to(place) for place in places):
                rooms.append(str(folder))
    return [*places, *rooms]


def own_package(folder: Path) -> dict[str, str]:
    """Environment by which a confined Python program finds this package: links to its parts in a `folder` that it may
    list.

    Python lists a package's folder to import from it, and a working copy of this package may hold anything.
    """
    package = Path(tools.__file__).parent.parent
    links = folder / "imports" / "foundry"
    links.mkdir(parents=True, exist_ok=True)
    for room in _OWN_ROOMS:
        if not (links / room).exists():
            (links / room).symlink_to(package / room)
    found = [str(links.parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def _cuda_homes() -> list[str]:
    """Folders of the CUDA toolkit."""
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    return [*_narrow(named), *_parts_of(shutil.which("nvcc") or "")]


def _parts_of(tool: str) -> list[str]:
    """Folders of an installed tool, beside its bin folder: both as it is named and where links lead."""
    if not tool:
        return []
    homes = {Path(tool).parent.parent, Path(tool).resolve().parent.parent}
    parts = [str(home / part) for home in homes for part in _PARTS_OF_A_TOOL if (home / part).exists()]
    # Installed as Python packages, each part of CUDA has a folder of its own; conda keeps the C library beside its bin.
    siblings = [str(home.parent) for home in homes if home.parent.name == "nvidia"]
    return [*parts, *siblings, *(str(path) for home in homes for path in home.glob("*-linux-gnu"))]


def _narrow(paths: Iterable[str]) -> list[str]:
    """The paths without those that contain a home directory or more."""
    home = Path.home()
    found = [Path(path) for path in paths if path]
    return [str(path) for path in found if str(path) not in _TOO_WIDE and not home.is_relative_to(path)]


def _distinct(paths: Iterable[str]) -> list[str]:
    """The existing paths, each once, without those inside another one.

    A link to a folder counts as inside another path only if its target is inside too: drivers are installed so.
    """
    kept: list[tuple[Path, Path]] = []  # (path as named, path with links resolved)
    for path in sorted({Path(path) for path in paths}):
        real = path.resolve()
        if path.exists() and not any(path.is_relative_to(name) and real.is_relative_to(end) for name, end in kept):
            kept.append((path, real))
    return [str(path) for path, _ in kept]
