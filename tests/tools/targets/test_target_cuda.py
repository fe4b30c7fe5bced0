"""The CUDA target: builds kept by content, resources from ptxas, occupancy as NVIDIA's own calculator gives it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from foundry.knowledge.compiler.cuda.module import FLAGS
from foundry.knowledge.device import Device
from foundry.tools.grade.runner.cuda_events import time_calls
from foundry.tools.targets.base import built_file
from foundry.tools.targets.cuda.build import CudaTarget, parse_ptxas, resource_lines
from foundry.tools.targets.cuda.occupancy import occupancy

H200 = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")
KERNEL = """
extern "C" __global__ void __launch_bounds__(256) foundry_double(const float* x, float* y) {
    __shared__ float held[256];
    held[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * 256 + threadIdx.x] = 2.0f * held[255 - threadIdx.x];
}
"""


def candidate(source: str, **about: object) -> str:
    launches = {"foundry_double": {"grid": [40, 1, 1], "block": [256, 1, 1], "shared_bytes": 4096}}
    facts = {"target": "cuda", "compiler": "nvcc", "flags": list(FLAGS), "launches": launches, **about}
    return f'FOUNDRY = {facts!r}\n\nSOURCE = r"""{source}"""\n'


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "build"))


@needs_nvcc
def test_build_reports_resources_and_is_kept() -> None:
    target = CudaTarget(H200)
    build = target.build(candidate(KERNEL))
    assert build.ok and not build.cached and built_file(build).stat().st_size > 500
    facts = build.resources.kernels["foundry_double"]
    assert facts["shared_bytes"] == 1024 + 4096 and 4 <= facts["registers"] <= 64
    assert build.resources.occupancy == 1.0 and build.resources.spill_bytes == 0
    line = resource_lines(build.resources, "sm_90")[0]
    assert "no spills" in line and "40 blocks of 256 threads" in line and "occupancy 100 %" in line
    again = target.build(candidate(KERNEL))
    assert again.ok and again.cached and again.resources == build.resources
    assert target.build(candidate(KERNEL.replace("2.0f", "3.0f"))).artifact != build.artifact


@needs_nvcc
def test_the_portable_architecture_compiles() -> None:
    build = CudaTarget(Device("cuda", "A100", "sm_80", 108, 40 << 20, 16, 0, present=False)).build(candidate(KERNEL))
    assert build.ok, build.first_error


@needs_nvcc
def test_the_first_error_is_one_line() -> None:
    build = CudaTarget(H200).build(candidate(KERNEL.replace("held[threadIdx.x] =", "held[threadIdx.x] = unknown +")))
    assert not build.ok and "unknown" in build.first_error and "\n" not in build.first_error


@needs_nvcc
def test_a_compiler_that_never_ends_is_stopped() -> None:
    endless = "template <int N> struct T { static constexpr int v = T<N - 1>::v + T<N - 2>::v * 0; };\n"
    endless += "template <int A, int B> constexpr int f() { if constexpr (A == 0) return B; else return f<A - 1, B>() "
    endless += "+ f<A - 1, B + (1 << A)>(); }\n__global__ void k(int* x) { *x = f<20, 0>(); }\n"
    start = time.monotonic()
    build = CudaTarget(H200, compile_s=2.0).build(candidate(endless))
    assert not build.ok and "stopped" in build.first_error
    assert time.monotonic() - start < PATIENCE_S


def test_foreign_files_and_refused_flags() -> None:
    target = CudaTarget(H200)
    assert target.build("import torch\n").ok
    assert "line 1" in target.build("def (:\n").first_error
    assert "cpu" in target.build(candidate(KERNEL, target="cpu")).first_error
    assert "not allowed" in target.build(candidate(KERNEL, flags=["-cubin", "--run"])).first_error
    assert "-cubin" in target.build(candidate(KERNEL, flags=["-O3"])).first_error


# registers, shared bytes (static and dynamic), threads -> blocks, by NVIDIA's cuda_occupancy.h for sm_90
NVIDIA = [(32, 0, 256, 8), (128, 57344, 256, 2), (168, 132000, 384, 1), (239, 60000, 256, 1), (255, 0, 128, 2)]
NVIDIA += [(40, 1184, 256, 6), (64, 16384, 512, 2), (96, 100000, 192, 2), (33, 0, 1024, 1)]


@pytest.mark.parametrize(("registers", "shared", "threads", "blocks"), NVIDIA)
def test_occupancy_is_nvidias(registers: int, shared: int, threads: int, blocks: int) -> None:
    assert occupancy("sm_90", registers, shared, threads).blocks == blocks


def test_spills_are_read_from_ptxas() -> None:
    log = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90'\n"
        "ptxas info    : Function properties for k\n"
        "    200 bytes stack frame, 120 bytes spill stores, 80 bytes spill loads\n"
        "ptxas info    : Used 128 registers, used 1 barriers, 48 bytes smem\n"
    )
    assert parse_ptxas(log) == {"k": {"registers": 128, "spill_bytes": 200, "shared_bytes": 48}}
    json.dumps(parse_ptxas(log))


def test_no_calls_are_not_timed() -> None:
    with pytest.raises(ValueError, match="at least one"):
        time_calls(lambda: None, 0)
