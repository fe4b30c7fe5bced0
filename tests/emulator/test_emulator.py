"""The CUDA emulator: right kernels give right results, wrong synchronisation is found."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.emulator.emulator import EmulationError, build_emulation, emulation_source

from foundry.knowledge.compiler.cuda.launches import ALL_BLOCKS, Launch
from foundry.knowledge.compiler.file.texts import read_library_text

ROW_SUM = """
extern "C" __global__ void __launch_bounds__(128) row_sum(const float* __restrict__ x, float* __restrict__ y, int n) {
    extern __shared__ float parts[];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[(long long)blockIdx.x * n + i];
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    BARRIER
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (unsigned w = 0; w < blockDim.x / 32; ++w) total += parts[w];
        y[blockIdx.x] = total;
    }
}
"""
HAND_OVER = """
alignas(16) __device__ unsigned cells[20] = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u,
                                             ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u};
extern "C" __global__ void hand_over(const float* __restrict__ x, float* __restrict__ y, int n) {
    const int next = (blockIdx.x + 1) % 5;  // whose sum this block makes
    float* const to = (float*)cells + 4 * next;
    const float* const from = (float*)cells + 4 * blockIdx.x;
    if (threadIdx.x < 4) {
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += x[next * n + i];
        exchange::give(to + threadIdx.x, sum);
        float4 given = READ;
        WAIT
        if (threadIdx.x == 0) y[blockIdx.x] = given.w;
    }
}
"""
LAUNCH = Launch("row_sum", (5, 1, 1), (128, 1, 1), ("x", "y", 300), shared_bytes=64)
CLUSTER_SUM = """
extern "C" __global__ void row_sum(const float* __restrict__ x, float* __restrict__ y, int n) {
    extern __shared__ float part[];
    const int rank = blockIdx.x % 4;
    if (threadIdx.x == 0) {
        part[0] = 0.0f;
        for (int i = rank; i < n; i += 4) part[0] += x[blockIdx.x / 4 * n + i];
    }
    BARRIER
    float total = 0.0f;
    for (int other = 0; other < 4; ++other) total += *cluster::peer(part, other);
    if (rank == 0 && threadIdx.x == 0) y[blockIdx.x / 4] = total;
    LAST
}
"""
CLUSTERS = Launch("row_sum", (20, 1, 1), (32, 1, 1), ("x", "y", 300), shared_bytes=64, cluster=4)
BOTH_HALVES = "cluster::arrive(); cluster::wait();"
DRIVER = """
import sys, numpy
from pathlib import Path
from tests.emulator.emulator import run_emulation
x = numpy.arange(1500, dtype=numpy.float32).reshape(5, 300)
y = numpy.full(5, numpy.nan, dtype=numpy.float32)
run_emulation(Path(sys.argv[1]), ["x", "y"], {"x": x.ctypes.data, "y": y.ctypes.data})
print(bool((y == x.sum(1)).all()))
"""


def emulate(source: str, tmp_path: Path, order: int = 0, launch: Launch = LAUNCH) -> subprocess.CompletedProcess[str]:
    library, names = build_emulation(source, [launch], tmp_path)
    assert names == ["x", "y"]
    env = {**os.environ, "EMULATOR_ORDER": str(order)}
    return subprocess.run([sys.executable, "-c", DRIVER, str(library)], capture_output=True, text=True, env=env)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_shuffles_barriers_and_shared_memory(tmp_path: Path, order: int) -> None:
    done = emulate(ROW_SUM.replace("BARRIER", "__syncthreads();"), tmp_path, order)
    assert done.stdout.strip() == "True", done.stderr


def test_a_missing_barrier_changes_the_result(tmp_path: Path) -> None:
    assert emulate(ROW_SUM.replace("BARRIER", ""), tmp_path).stdout.strip() == "False"


def test_a_divergent_barrier_is_found(tmp_path: Path) -> None:
    split = "if (threadIdx.x < 64) {\n __syncthreads();\n } else {\n __syncthreads();\n }"
    done = emulate(ROW_SUM.replace("BARRIER", split), tmp_path)
    assert done.returncode == 97 and "divergent barrier" in done.stderr


def test_a_lane_outside_its_mask_is_found(tmp_path: Path) -> None:
    done = emulate(ROW_SUM.replace("BARRIER", "__syncthreads();").replace("0xffffffffu", "0x0000ffffu"), tmp_path)
    assert done.returncode == 97 and "mask" in done.stderr


@pytest.mark.parametrize("order", [0, 1])
def test_blocks_of_a_cluster_read_each_other(tmp_path: Path, order: int) -> None:
    source = CLUSTER_SUM.replace("BARRIER", BOTH_HALVES).replace("LAST", BOTH_HALVES)
    done = emulate(source, tmp_path, order, CLUSTERS)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize("missing", ["BARRIER", "LAST"])
def test_a_missing_barrier_of_a_cluster_changes_the_result(tmp_path: Path, missing: str) -> None:
    source = CLUSTER_SUM.replace(missing, "").replace("BARRIER", BOTH_HALVES).replace("LAST", BOTH_HALVES)
    assert emulate(source, tmp_path, launch=CLUSTERS).stdout.strip() == "False"


@pytest.mark.parametrize(
    ("waits", "right"), [("while (!exchange::are_there(given)) given = READ;", "True"), ("", "False")]
)
def test_blocks_that_run_at_once_wait_for_what_another_gives(tmp_path: Path, waits: str, right: str) -> None:
    given = HAND_OVER.replace("WAIT", waits).replace("READ", "exchange::read(from)")
    launch = replace(LAUNCH, kernel="hand_over", cluster=ALL_BLOCKS)
    text = f"#define DEVICE\n#define FOUNDRY_NAN NAN\n{read_library_text('cuda/rows/exchange.cuh')}\n{given}"
    assert emulate(text, tmp_path, launch=launch).stdout.strip() == right


def test_a_compile_error_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="error") as caught:
        build_emulation(ROW_SUM.replace("BARRIER", "undeclared();"), [LAUNCH], tmp_path)
    assert "\n" not in str(caught.value)


def test_workspace_and_buffers_are_told_apart() -> None:
    launch = Launch("k", (1, 1, 1), (32, 1, 1), ("in", "workspace+256", 7))
    text, names = emulation_source("", [launch])
    assert names == ["in"] and "workspace + 256" in text and "7LL" in text
