"""Lists the capabilities of this machine, each missing one with the command that adds it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foundry.knowledge.device import Device
from foundry.knowledge.devices import FIRST, has_constants
from foundry.knowledge.errors import FoundryError
from foundry.knowledge.home import foundry_home
from foundry.tools.process.linux import CAPABILITIES, FILES, MEMORY, NETWORK, SIGNALS, SYSCALLS, TEMPORARY
from foundry.tools.process.sandbox import available

State = Literal["ok", "missing", "limited"]


@dataclass(frozen=True)
class Capability:
    """One line of `foundry doctor`: what this machine can do. `climb` is the command that improves it, or ""."""

    what: str
    state: State
    detail: str
    climb: str = ""
    needed: bool = False  # without it nothing works


def examine() -> list[Capability]:
    """Looks at Python, compilers, devices, profilers, isolation and places; changes nothing, imports no torch."""
    return [*_toolchain(), *_devices(), *_profilers(), *_isolation(), *_places()]


def first_line(*command: str) -> str:
    """The first non-empty output line of a command, "" when it cannot run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()), "")


def _toolchain() -> list[Capability]:
    """Findings about Python, torch, g++ and nvcc; a missing one says how to install it."""
    python = f"{platform.python_version()} at {sys.executable}"
    findings = [Capability("python", "ok", python, needed=True)]
    try:
        findings.append(Capability("torch", "ok", importlib.metadata.version("torch"), needed=True))
    except importlib.metadata.PackageNotFoundError:
        findings.append(
            Capability("torch", "missing", "no torch in this environment", "pip install torch", needed=True)
        )
    gxx = first_line("g++", "--version")
    findings.append(
        Capability("c++ compiler", "ok", gxx, needed=True)
        if gxx
        else Capability("c++ compiler", "missing", "the cpu target needs g++", "sudo apt-get install g++", needed=True)
    )
    nvcc = shutil.which("nvcc") or ""
    findings.append(
        Capability("cuda compiler", "ok", _last_line(nvcc, "--version"))
        if nvcc
        else Capability(
            "cuda compiler",
            "missing",
            "the cuda target needs nvcc",
            "pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl",
        )
    )
    return findings


def _last_line(*command: str) -> str:
    """The last line that a command prints; "" if it prints nothing."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def _devices() -> list[Capability]:
    """Findings about the processor and the first GPU."""
    from foundry.tools.machine.device import describe

    findings = []
    try:
        cpu = describe("cpu")
        detail = (
            f"{cpu.name}, {cpu.cores} threads, {cpu.vector_bytes * 8}-bit vectors, {cpu.cache_bytes >> 20} MB cache"
        )
        findings.append(Capability("cpu", "ok", detail, needed=True))
    except FoundryError as error:
        findings.append(Capability("cpu", "missing", error.problem, error.remedy, needed=True))
    try:
        gpu = describe("cuda")
        if gpu.present:
            findings.append(Capability("gpu", "ok", f"{gpu.name}, {gpu.arch}, {gpu.cores} SMs"))
            findings.append(_constants(gpu))
        else:
            findings.append(
                Capability("gpu", "limited", "none here: --target cuda compiles and reports, nothing is timed")
            )
    except FoundryError as error:
        findings.append(Capability("gpu", "missing", error.problem, error.remedy))
    return findings


def _constants(gpu: Device) -> Capability:
    """Reports if the constants that choose CUDA kernels were measured on this card or are another card's."""
    if has_constants(gpu):
        return Capability("kernel constants", "ok", f"measured on {gpu.name}")
    note = f"those of {FIRST}, with rates scaled to the ceilings of this card; the tuner chooses the rest"
    return Capability("kernel constants", "limited", note)


def _profilers() -> list[Capability]:
    """Findings about the ladder of profilers: compiler report, Nsight Compute, perf."""
    ncu = shutil.which("ncu")
    objdump = shutil.which("objdump")
    findings = [
        Capability("profiler: compiler report and roofline", "ok", "always")
        if objdump
        else Capability(
            "profiler: compiler report and roofline",
            "limited",
            "roofline only: objdump reads the instruction mix, and a kernel that builds itself is refused unread",
            "sudo apt-get install binutils",
        )
    ]
    if ncu:
        findings.append(Capability("profiler: Nsight Compute", "ok", ncu))
    else:
        findings.append(Capability("profiler: Nsight Compute", "missing", "needs a GPU and the ncu command"))
    if shutil.which("perf"):
        findings.append(Capability("profiler: functions on the CPU", "ok", "perf"))
    else:
        climb = "sudo apt-get install linux-perf"
        findings.append(Capability("profiler: functions on the CPU", "missing", "needs perf", climb))
    return findings


# What each of the kernel's means does for a candidate, and what lets it work where it does not.
_MEANS: dict[str, tuple[str, str]] = {
    NETWORK: (
        "no network, no view of other processes",
        "sudo sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
        " (in a container: allow unshare in its seccomp profile)",
    ),
    MEMORY: ("a small /dev/shm of its own", ""),
    TEMPORARY: ("a /tmp of its own", ""),
    CAPABILITIES: ("none of root's rights", ""),
    FILES: (
        "reads Python, torch and compilers, writes to its own folder; compilers read no other files",
        "Linux 5.13 or later, started with landlock among lsm=",
    ),
    SIGNALS: ("signals nobody else", "Linux 6.12 or later; until then the system call filter refuses them"),
    SYSCALLS: (
        "no sockets, no tracing, no new namespaces, cannot leave its process group",
        "a kernel with CONFIG_SECCOMP_FILTER on x86-64 or aarch64",
    ),
}


def _isolation() -> list[Capability]:
    """The Linux kernel's means of isolation, each active or missing; tried on a process."""
    here = available()
    findings = [Capability("isolation: session, limits, environment", "ok", "always")]
    for name, (effect, climb) in _MEANS.items():
        if name in here.active:
            findings.append(Capability(f"isolation: {name}", "ok", effect))
            continue
        why = here.refused.get(name, "comes with the network namespace" if name in (MEMORY, TEMPORARY) else "not tried")
        findings.append(Capability(f"isolation: {name}", "missing", f"not active ({why}): {effect}", climb))
    return findings


def _places() -> list[Capability]:
    """Findings about Foundry's home and the scratch folder: free space, and whether they can be written."""
    home = foundry_home()
    findings = []
    for what, folder in (("home", home), ("scratch", Path(tempfile.gettempdir()))):
        nearest = next(path for path in [folder, *folder.parents] if path.exists())
        free_gb = shutil.disk_usage(nearest).free / 1e9
        writable = os.access(nearest, os.W_OK)
        state: State = "ok" if writable and free_gb > 1.0 else "limited"
        note = f"{folder}, {free_gb:.0f} GB free" + ("" if writable else ", not writable")
        findings.append(Capability(what, state, note, "" if writable else "set FOUNDRY_HOME to a folder you may write"))
    return findings
