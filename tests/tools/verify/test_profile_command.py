"""`foundry profile` as a user calls it: on the CPU with its real profiler, for CUDA as far as it goes without a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foundry.knowledge.compiler.cuda.module import FLAGS
from foundry.knowledge.device import TargetName
from foundry.knowledge.errors import FoundryError
from foundry.tools.grade.host import workbench
from foundry.tools.machine.device import describe
from foundry.tools.process.zygote import Zygote
from foundry.tools.targets.base import built_file
from foundry.tools.targets.cpu.build import CpuTarget
from foundry.tools.targets.cuda.disassembly import INSTALL, tool_path
from foundry.tools.verify.profile_command import ProfileRequest, profile_lines, run

TASK = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.exp(x) * 2

def get_inputs():
    return [torch.rand(256, 4096)]
"""
# The loop that takes the time is scalar; the other function's is too, and hardly runs.
CPU_SOURCE = """
#include <cmath>
extern "C" void slow(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = std::exp(x[i]) * 2.0f;
}
extern "C" void idle(const float* x, float* y, long n) {
    for (long i = 1; i < n; ++i) y[i] = y[i - 1] * 0.5f + x[i];
}
"""
CPU_KERNEL = f"""
import ctypes, os, torch
FOUNDRY = {{"target": "cpu", "compiler": "g++", "flags": ["-O2", "-shared", "-fPIC"]}}
SOURCE = r'''{CPU_SOURCE}'''
{{loading}}
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        LIBRARY.slow(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(x.numel()))
        return y
"""
CUDA_SOURCE = """
extern "C" __global__ void rows(const float* x, float* y, int m) {
    float sum = 0;
    for (int k = 0; k < m; ++k) sum += x[(size_t)(blockIdx.x * 256 + threadIdx.x) * m + k];
    y[blockIdx.x * 256 + threadIdx.x] = sum;
}
"""


Profiled = Callable[..., dict[str, Any]]


@pytest.fixture
def profiled(
    tmp_path: Path, make_home: Callable[[], Path], zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> Profiled:
    """The document of a kernel's profile."""
    monkeypatch.setenv("FOUNDRY_HOME", str(make_home()))
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "build"))
    (tmp_path / "task.py").write_text(TASK)

    def document(text: str, target: TargetName, rung: int = 4) -> dict[str, Any]:
        (tmp_path / "kernel.py").write_text(text)
        return run(ProfileRequest(tmp_path / "task.py", tmp_path / "kernel.py", target, None, rung), zygote)

    return document


def cpu_kernel() -> str:
    """A kernel file that loads the library that the target built."""
    text = CPU_KERNEL.replace("{loading}", "LIBRARY = None")
    artifact = str(built_file(CpuTarget().build(text)))
    return CPU_KERNEL.replace("{loading}", f"LIBRARY = ctypes.CDLL({artifact!r})")


def compiles_itself() -> str:
    """The same kernel in a file that builds its library into a temporary folder, and says nothing of how."""
    loading = """
import subprocess, tempfile
LIBRARY = tempfile.mktemp(suffix=".so")
subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", LIBRARY], input=SOURCE.encode(), check=True)
LIBRARY = ctypes.CDLL(LIBRARY)
"""
    return CPU_KERNEL.replace("{loading}", loading).replace("FOUNDRY = ", "ABOUT = ")


@pytest.mark.skipif(shutil.which("perf") is None, reason="times of single functions need perf")
@pytest.mark.parametrize("kernel", [pytest.param(cpu_kernel, marks=pytest.mark.slow), compiles_itself])
def test_a_cpu_kernel_is_profiled_function_by_function(profiled: Profiled, kernel: Callable[[], str]) -> None:
    found = profiled(kernel(), "cpu")
    if found["notes"]:
        pytest.skip(found["notes"][0])  # perf is here and may not look
    assert (found["rung"], found["rung_number"]) == ("times", 4)
    assert found["limiter"] == "instruction_mix" and found["action"]
    assert found["evidence"].startswith(("slow", "(libm"))
    names = [kernel["name"] for kernel in found["kernels"]]
    assert "slow" in names[:2] and "idle" not in names
    assert {one["name"]: one["cause"] for one in found["kernels"]}["slow"] == "scalar_loop"
    assert 0 < found["achieved_bytes_per_s"] < found["possible_bytes_per_s"]
    assert 0 < found["fraction_of_floor"] < 1 and found["ms"] > 0


def test_the_lower_rungs_run_nothing_and_a_kernel_that_fails_is_said_in_one_line(
    profiled: Profiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are ceilings measured again, as for a time below what can be: there is no time."""
    monkeypatch.setattr(workbench, "ceilings", lambda *_, **__: pytest.fail("measured again"))
    text = cpu_kernel().replace("LIBRARY = ", "raise SystemExit('it ran')  # LIBRARY = ")
    found = profiled(text, "cpu", 3)
    assert found["ms"] is None and found["rung"] == "instructions" and found["limiter"] is None
    assert {kernel["name"]: kernel["cause"] for kernel in found["kernels"]}["idle"] == "scalar_loop"
    with pytest.raises(FoundryError, match="the kernel does not run: SystemExit: it ran"):
        profiled(text, "cpu")


@pytest.mark.skipif(
    shutil.which("nvcc") is None or tool_path("nvdisasm") is None, reason=f"needs nvcc and a disassembler: {INSTALL}"
)
def test_a_cuda_kernel_is_profiled_without_a_gpu(profiled: Profiled) -> None:
    if describe("cuda").present:
        pytest.skip("a GPU is here")
    about = dict(target="cuda", compiler="nvcc", flags=list(FLAGS))
    text = f"import torch\nFOUNDRY = {about!r}\nSOURCE = r'''{CUDA_SOURCE}'''\nclass ModelNew: pass\n"
    found = profiled(text, "cuda")
    assert (found["rung"], found["limiter"], found["cause"]) == ("instructions", "memory_latency", "uncoalesced")
    assert profile_lines(found)[0].startswith("memory_latency (uncoalesced) on cuda:")
    assert found["kernels"][0]["name"] == "rows" and "no cuda device is here" in found["notes"][0]
