"""Describes the device that kernels run on, and the host; read from the system, without torch."""

from __future__ import annotations

import functools
import importlib.metadata
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Literal

from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.targets import BUILT_IN, CPU, find_target, load_part

SECONDS_TO_ANSWER = 20.0


def describe(target: TargetName | Literal["auto"] = "auto") -> Device:
    """The device of `target`; "auto" is a target with a device of its own where one and its compiler are present, else
    the CPU.

    Without a GPU, cuda gives a Device with present=False: kernels compile for it and nothing runs. Raises MissingTool
    when the target's compiler is not installed.
    """
    if target == "auto":
        apart = (traits for traits in BUILT_IN.values() if not traits.uses_host_cores)
        target = next((traits.name for traits in apart if load_part(traits.toolchain)().is_here()), CPU.name)
    found: Device = load_part(find_target(target).toolchain)().describe()
    return replace(found, target=target)


def take_share_of_cores(part: int, parts: int) -> None:
    """Confines this process and its children to the share `part` (from 0) of `parts` equal shares of the cores.

    So the compilers and threads of several such processes do not slow each other down. Does nothing if there are fewer
    cores than parts.
    """
    cores = sorted(os.sched_getaffinity(0))
    if parts > 1 and len(cores) >= parts:
        os.sched_setaffinity(0, cores[part * len(cores) // parts : (part + 1) * len(cores) // parts])


@functools.cache
def version_line(*command: str) -> str:
    """The line of `command`'s output that holds its version, "" when it does not run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), lines[0] if lines else "")


def torch_version() -> str:
    """The installed torch's version from its metadata, "" without one; importing it would cost a second."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def usable_cores() -> int:
    """CPUs this process may run on, capped by its control group's quota (a container often has fewer)."""
    allowed = len(os.sched_getaffinity(0))
    quota = _cgroup_cpu_quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def _cgroup_cpu_quota() -> float | None:
    """CPUs' worth of time the control group grants; None when there is no limit. Versions 2 and 1."""
    for folder in _cgroup_folders():
        quota, _, period = read_file(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    old = Path("/sys/fs/cgroup/cpu")
    quota, period = read_file(old / "cpu.cfs_quota_us").strip(), read_file(old / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _cgroup_folders() -> list[Path]:
    """This process's group and its parents, innermost first (version 2)."""
    root = Path("/sys/fs/cgroup")
    line = next((line for line in read_file("/proc/self/cgroup").splitlines() if line.startswith("0::")), "0::/")
    own = root / line.removeprefix("0::").lstrip("/")
    return [own, *(parent for parent in own.parents if parent == root or root in parent.parents)]


def memory_bytes() -> int:
    """Physical memory, or the control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [read_file(folder / "memory.max").strip() for folder in _cgroup_folders()]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def read_file(path: str | Path) -> str:
    """A system file's text, "" where this kernel does not have it."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
