"""The GPUs that this process may use; the driver is asked in a process of its own, and torch is not imported."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from foundry.knowledge.device import Device
from foundry.knowledge.errors import MissingTool, UsageError
from foundry.tools.machine.device import torch_version, version_line

NO_GPU = "none (compile only)"
SECONDS_OF_DRIVER = 90.0  # cuInit took more than 20 s where 26 programs made contexts on two H200s at once
INSTALL_NVCC = "pip install nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl"

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


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it; none without a driver."""
    count = int(gpu_facts().get("count", 0))
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
    gpu_facts.cache_clear()
    return len(chosen)


def nvcc_path() -> Path | None:
    """nvcc on the PATH, in $CUDA_HOME, in the usual place, or from NVIDIA's pip packages."""
    found = shutil.which("nvcc")
    if found:
        return Path(found)
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    candidates = [Path(home) / "bin" / "nvcc"]
    candidates += sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/nvcc"))
    return next((path for path in candidates if path.is_file()), None)


def describe_cuda() -> Device:
    """The first visible GPU as a Device; an absent H200-like sm_90 if there is none. Raises MissingTool without
    nvcc."""
    nvcc = nvcc_path()
    if nvcc is None:
        raise MissingTool("no CUDA compiler: the cuda target needs nvcc", INSTALL_NVCC)
    facts = {"compiler": version_line(str(nvcc), "--version"), "nvcc": str(nvcc), "torch": torch_version()}
    gpu = gpu_facts()
    if not gpu:  # the limits of the first device the kernel compiler is written for, so that kernels compile for it
        return Device(
            target="cuda",
            name=NO_GPU,
            arch="sm_90",
            cores=132,
            cache_bytes=60 << 20,
            vector_bytes=16,
            memory_bytes=0,
            present=False,
            facts=facts,
        )
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


def has_gpu() -> bool:
    """True if a GPU and nvcc are here."""
    return bool(nvcc_path() and gpu_facts())


@functools.cache
def gpu_facts() -> dict[str, int | str]:
    """The driver's facts of the first device that CUDA_VISIBLE_DEVICES shows; {} without a driver or a device.

    Raises MissingTool if a driver does not answer: such a machine is busy or broken, and may have a GPU.
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
