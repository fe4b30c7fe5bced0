"""Which device kernels run on: read from the system, without torch and without touching the GPU in this process."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Literal

from foundry.knowledge.device import Device, TargetName
from foundry.knowledge.errors import MissingTool, UsageError

NO_GPU = "none (compile only)"
SECONDS_TO_ANSWER = 20.0
SECONDS_OF_DRIVER = 90.0  # cuInit took more than 20 s where 26 programs made contexts on two H200s at once

INSTALL_GXX = "sudo apt-get install g++"
INSTALL_NVCC = "pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl"

# The micro-architecture levels of the x86-64 psABI, highest first.
_X86_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    ("x86-64-v2", {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
)

# Asks the driver in a process of its own: a process that called cuInit cannot fork workers that use the GPU.
_ASK_DRIVER = """
import ctypes, json, uuid
cuda = ctypes.CDLL("libcuda.so.1")
if cuda.cuInit(0): raise SystemExit(1)
device, name, total, value = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_int()
if cuda.cuDeviceGet(ctypes.byref(device), 0): raise SystemExit(1)
cuda.cuDeviceGetName(name, 256, device)
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
def attribute(number):
    cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value
version, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
cuda.cuDriverGetVersion(ctypes.byref(version))
# The second version gives a MIG instance's own; drivers before 11.4 have the first only.
get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
known = get_uuid(raw, device) == 0
count = ctypes.c_int()
cuda.cuDeviceGetCount(ctypes.byref(count))
print(json.dumps({
    "uuid": str(uuid.UUID(bytes=bytes(raw))) if known else "", "count": count.value,
    "name": name.value.decode(), "memory": total.value, "cores": attribute(16), "cache": attribute(38),
    "major": attribute(75), "minor": attribute(76), "shared_per_block": attribute(97), "driver": version.value,
}))
"""


def describe(target: TargetName | Literal["auto"] = "auto") -> Device:
    """The device of `target`; "auto" is cuda where a GPU and nvcc are present, else cpu.

    Without a GPU, cuda gives a Device with present=False: kernels compile for it and nothing runs. Raises MissingTool
    when the target's compiler is not installed.
    """
    if target == "auto":
        target = "cuda" if nvcc_path() and _gpu() else "cpu"
    return _describe_cuda() if target == "cuda" else _describe_cpu()


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it; none without a driver."""
    count = int(_gpu().get("count", 0))
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [name.strip() for name in named.split(",")][:count] if named else [str(number) for number in range(count)]


def chosen_gpus(asked: str) -> list[str]:
    """The GPUs of `--gpus`, each as CUDA_VISIBLE_DEVICES names it: "all", how many, or a list of numbers among those
    that this process may use ("0,1"). Raises UsageError."""
    here = visible_gpus()
    if not here:
        raise UsageError(f"--gpus {asked}: no kernel would run on a GPU here", "see `foundry doctor`")
    if asked == "all":
        return here
    numbers = [int(word) if word.strip().isdigit() else -1 for word in asked.split(",")]
    if "," not in asked and numbers[0] >= 1:
        numbers = list(range(numbers[0]))
    if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise UsageError(f"--gpus {asked}", "all, how many, or which: 0,1")
    if max(numbers) >= len(here):
        raise UsageError(f"--gpus {asked}: {len(here)} are here")
    return [here[number] for number in numbers]


def see_gpus(asked: str) -> int:
    """Lets this process, and what it starts, see the GPUs of `--gpus` and no other; how many they are. "" leaves all as
    it is, and one is used. Raises UsageError."""
    if not asked:
        return 1
    chosen = chosen_gpus(asked)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    _gpu.cache_clear()
    return len(chosen)


def take_share_of_cores(part: int, parts: int) -> None:
    """From now on this process, and what it starts, runs on one of `parts` equal shares of the cores, so that the
    compilers and threads of several such processes do not slow each other down."""
    cores = sorted(os.sched_getaffinity(0))
    if parts > 1 and len(cores) >= parts:
        os.sched_setaffinity(0, cores[part * len(cores) // parts : (part + 1) * len(cores) // parts])


def gxx_path() -> Path:
    """The system's C++ compiler; raises MissingTool with the command that installs it."""
    found = shutil.which("g++")
    if not found:
        raise MissingTool("no C++ compiler: the cpu target needs g++", INSTALL_GXX)
    return Path(found)


def nvcc_path() -> Path | None:
    """nvcc on the PATH, in $CUDA_HOME, in the usual place, or from NVIDIA's pip packages."""
    found = shutil.which("nvcc")
    if found:
        return Path(found)
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    candidates = [Path(home) / "bin" / "nvcc"]
    candidates += sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvcc"))
    return next((path for path in candidates if path.is_file()), None)


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


# ---------------------------------------------------------------- CPU


def _describe_cpu() -> Device:
    gxx = gxx_path()
    name, flags = _cpu_model()
    return Device(
        target="cpu",
        name=name,
        arch=_cpu_arch(flags),
        cores=usable_cores(),
        cache_bytes=_last_level_cache_bytes(),
        vector_bytes=_vector_bytes(flags),
        memory_bytes=_memory_bytes(),
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
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("model name", "Model") and not name:
            name = " ".join(value.split())
        elif key in ("flags", "Features") and not flags:
            flags = set(value.split())
    return name or platform.processor() or platform.machine(), flags


def _cpu_arch(flags: set[str]) -> str:
    if platform.machine() not in ("x86_64", "AMD64"):
        return platform.machine()
    return next((level for level, needed in _X86_LEVELS if needed <= flags), "x86-64")


def _vector_bytes(flags: set[str]) -> int:
    if "avx512f" in flags:
        return 64
    return 32 if "avx" in flags else 16


def usable_cores() -> int:
    """CPUs this process may run on, capped by its control group's quota (a container often has fewer)."""
    allowed = len(os.sched_getaffinity(0))
    quota = _cgroup_cpu_quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def _cgroup_cpu_quota() -> float | None:
    """CPUs' worth of time the control group grants; None when there is no limit. Versions 2 and 1."""
    for folder in _cgroup_folders():
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    old = Path("/sys/fs/cgroup/cpu")
    quota, period = _read(old / "cpu.cfs_quota_us").strip(), _read(old / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _cgroup_folders() -> list[Path]:
    """This process's group and its parents, innermost first (version 2)."""
    root = Path("/sys/fs/cgroup")
    line = next((line for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "0::/")
    own = root / line.removeprefix("0::").lstrip("/")
    return [own, *(parent for parent in own.parents if parent == root or root in parent.parents)]


def _caches() -> str:
    """Each level of one core's data caches, "L1 32K, L2 1024K, L3 32768K"; "" when the system does not say."""
    found = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        if _read(index / "type").strip() != "Instruction":
            found[_read(index / "level").strip()] = _read(index / "size").strip()
    return ", ".join(f"L{level} {size}" for level, size in sorted(found.items()) if level and size)


def _last_level_cache_bytes() -> int:
    """Sum over the distinct last-level caches that the usable CPUs reach; 8 MiB when the system does not say."""
    sizes: dict[tuple[int, str], int] = {}
    for cpu in os.sched_getaffinity(0):
        for index in Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            if _read(index / "type").strip() != "Instruction":
                level = int(_read(index / "level").strip() or 0)
                sizes[level, _read(index / "shared_cpu_list").strip()] = _size(_read(index / "size"))
    if not sizes:
        return 8 << 20
    last = max(level for level, _ in sizes)
    return sum(size for (level, _), size in sizes.items() if level == last)


def _size(text: str) -> int:
    """ "32768K" -> bytes."""
    text = text.strip()
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text and text[-1] in units else int(text or 0)


def _memory_bytes() -> int:
    """Physical memory, or the control group's limit where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_read(folder / "memory.max").strip() for folder in _cgroup_folders()]
    return min([total, *(int(limit) for limit in limits if limit.isdigit())])


def _read(path: str | Path) -> str:
    """A system file's text, "" where this kernel does not have it."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- GPU


def _describe_cuda() -> Device:
    nvcc = nvcc_path()
    if nvcc is None:
        raise MissingTool("no CUDA compiler: the cuda target needs nvcc", INSTALL_NVCC)
    facts = {"compiler": version_line(str(nvcc), "--version"), "nvcc": str(nvcc), "torch": torch_version()}
    gpu = _gpu()
    if not gpu:  # the limits of the first device the library is written for, so that kernels compile for it
        return Device("cuda", NO_GPU, "sm_90", 132, 60 << 20, 16, 0, present=False, facts=facts)
    driver = int(gpu["driver"])
    facts["driver"] = f"CUDA {driver // 1000}.{driver % 1000 // 10}"
    facts["uuid"] = str(gpu["uuid"])
    facts["shared_per_block"] = str(gpu["shared_per_block"])
    return Device(
        target="cuda",
        name=str(gpu["name"]),
        arch=f"sm_{gpu['major']}{gpu['minor']}",
        cores=int(gpu["cores"]),
        cache_bytes=int(gpu["cache"]),
        vector_bytes=16,
        memory_bytes=int(gpu["memory"]),
        facts=facts,
        uuid=str(gpu["uuid"]),
    )


@functools.cache
def _gpu() -> dict[str, int | str]:
    """What the driver says of the first device that CUDA_VISIBLE_DEVICES shows, {} when there is no driver or none.

    Raises MissingTool when a driver is there and stays silent: that is a busy or broken machine, not one without a GPU.
    """
    argv = [sys.executable, "-I", "-c", _ASK_DRIVER]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_OF_DRIVER)
        answer: dict[str, int | str] = json.loads(done.stdout) if done.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        what = f"the GPU's driver gave no answer in {SECONDS_OF_DRIVER:g} s"
        raise MissingTool(what, "try again when fewer programs start on it, or use --target cpu") from None
    except (OSError, ValueError):
        return {}
    return answer
