"""The processor: read from the system, without torch."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from foundry.knowledge.device import Device
from foundry.knowledge.errors import MissingTool
from foundry.tools.machine.device import memory_bytes, read_file, torch_version, usable_cores, version_line

INSTALL_GXX = "sudo apt-get install g++"

# The micro-architecture levels of the x86-64 psABI, highest first.
_X86_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    ("x86-64-v2", {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
)


def gxx_path() -> Path:
    """The system's C++ compiler; raises MissingTool with the command that installs it."""
    found = shutil.which("g++")
    if not found:
        raise MissingTool("no C++ compiler: the cpu target needs g++", INSTALL_GXX)
    return Path(found)


def describe_cpu() -> Device:
    """The processor here as a Device: name, x86 level, cores, caches, compiler. Raises MissingTool without g++."""
    gxx = gxx_path()
    name, flags = _cpu_model()
    return Device(
        target="cpu",
        name=name,
        arch=_cpu_arch(flags),
        cores=usable_cores(),
        cache_bytes=_last_level_cache_bytes(),
        vector_bytes=_vector_bytes(flags),
        memory_bytes=memory_bytes(),
        facts={
            "compiler": version_line(str(gxx), "--version"),
            "caches": _caches(),
            "system": f"{platform.system()} {platform.release()}",
            "torch": torch_version(),
        },
    )


def _cpu_model() -> tuple[str, set[str]]:
    """Name and feature flags of the first CPU in /proc/cpuinfo."""
    name, flags = "", set[str]()
    for line in read_file("/proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Model") and not name:
            name = " ".join(value.split())
        elif key in ("flags", "Features") and not flags:
            flags = set(value.split())
    return name or platform.processor() or platform.machine(), flags


def _cpu_arch(flags: set[str]) -> str:
    """The highest x86-64 level that the processor's flags reach ("x86-64-v3"), or the machine's name on another
    architecture."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return platform.machine()
    return next((level for level, needed in _X86_LEVELS if needed <= flags), "x86-64")


def _vector_bytes(flags: set[str]) -> int:
    """Bytes of a vector register: 64 with AVX-512, 32 with AVX, else 16."""
    if "avx512f" in flags:
        return 64
    return 32 if "avx" in flags else 16


def _caches() -> str:
    """Each level of one core's data caches, "L1 32K, L2 1024K, L3 32768K"; "" when the system does not say."""
    found = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if read_file(index / "type").strip() != "Instruction":
            found[read_file(index / "level").strip()] = read_file(index / "size").strip()
    return ", ".join(f"L{level} {size}" for level, size in sorted(found.items()) if level and size)


def _last_level_cache_bytes() -> int:
    """Sum over the distinct last-level caches that the usable CPUs reach; 8 MiB when the system does not say."""
    sizes: dict[tuple[int, str], int] = {}
    for cpu in os.sched_getaffinity(0):
        for index in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            if read_file(index / "type").strip() != "Instruction":
                level = int(read_file(index / "level").strip() or 0)
                sizes[level, read_file(index / "shared_cpu_list").strip()] = _size(read_file(index / "size"))
    if not sizes:
        return 8 << 20
    last = max(level for level, _ in sizes)
    return sum(size for (level, _), size in sizes.items() if level == last)


def _size(text: str) -> int:
    """ "32768K" -> bytes."""
    text = text.strip()
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text and text[-1] in units else int(text or 0)
