"""Environment variables of the warm process and its workers: settings that steady timings, and an allowed part of
the user's."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from foundry.knowledge.home import foundry_home

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"

# Some processes would otherwise take large temporaries of eager PyTorch by mmap and others not. Page faults then make
# the same code several times slower, and every speedup over it a fiction. Passive waiting keeps the threads of one
# process from spinning on the cores while another one is timed.
STEADY = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "67108864",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "OMP_DYNAMIC": "false",
    "OPENBLAS_NUM_THREADS": "1",  # one NumPy thread: others would be lost in a fork
    # TorchInductor reads these when it is imported. With a fresh cache it would otherwise test the processor's vector
    # instructions by seven compilations and as many processes that import torch: 14 s, and then the same code.
    "TORCHINDUCTOR_VEC_ISA_OK": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    # Hardware queues that streams share. A host makes one context after the other, for all its GPUs: with the default 8
    # in 0.15 s and 0.06 s to end it, with 1 in 0.08 and 0.025 s (H200). With 2 two streams still overlap.
    "CUDA_DEVICE_MAX_CONNECTIONS": "2",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # a test for GPUs must not initialise CUDA before a fork
}
# No other variable of the user, above all no key, reaches code that a model may have written.
ALLOWED = frozenset(
    {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "FOUNDRY_HOME"}
    | {"LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "FOUNDRY_BUILD_CACHE"}
    | {VISIBLE_GPUS, "CUDA_DEVICE_ORDER"}  # choose the first GPU, which is the one that is locked
    | {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "TORCH_CUDA_ARCH_LIST"}
)


def bytecode_place() -> dict[str, str]:
    """The variable that names a folder for the warm process's compiled modules; empty if torch's already lie beside
    its sources or could, and without torch.

    Some installers (uv) compile nothing ahead. Without write access to the installation, every start would compile
    two thousand modules, which takes three times as long as importing them.
    """
    found = importlib.util.find_spec("torch")
    if found is None or not found.origin:
        return {}
    largest = Path(found.origin).parent / "_dynamo" / "__init__.py"
    is_compiled = Path(importlib.util.cache_from_source(str(largest))).exists()
    if is_compiled or os.access(largest.parent, os.W_OK):
        return {}
    return {"PYTHONPYCACHEPREFIX": str(foundry_home() / "bytecode")}
