"""The device as this machine describes it, and ceilings measured once."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foundry.knowledge.codec import decode
from foundry.knowledge.device import Ceilings, Device
from foundry.knowledge.errors import MissingTool
from foundry.tools.machine import device as device_module
from foundry.tools.machine.ceilings import ceilings, with_ceilings, with_known_ceilings
from foundry.tools.machine.device import describe, usable_cores
from foundry.tools.targets.cpu.describe import _last_level_cache_bytes
from foundry.tools.targets.cuda import describe as cuda_module

needs_nvcc = pytest.mark.skipif(cuda_module.nvcc_path() is None, reason="nvcc is not installed")


def test_the_cpu_is_described_without_torch() -> None:
    cpu = describe("cpu")
    assert cpu.target == "cpu"
    assert cpu.present
    assert 1 <= cpu.cores <= len(os.sched_getaffinity(0))
    assert cpu.vector_bytes in (16, 32, 64)
    assert _last_level_cache_bytes() >= 1 << 18  # read from the system; the fixture `own_cache` is in its place
    assert cpu.memory_bytes > 1 << 28
    assert "g++" in cpu.facts["compiler"] or "gcc" in cpu.facts["compiler"].lower()


def test_affinity_caps_the_cores() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_control_group_quota_caps_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr(device_module, "_cgroup_folders", lambda: [tmp_path])
    assert usable_cores() == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores() == len(os.sched_getaffinity(0))


def test_a_missing_compiler_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingTool, match=r"g\+\+ \(sudo apt-get install g\+\+\)") as caught:
        describe("cpu")
    assert caught.value.exit_code == 3


@needs_nvcc
def test_cuda_without_a_gpu_is_compile_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_module, "gpu_facts", dict)
    cuda = describe("cuda")
    assert (cuda.present, cuda.arch, cuda.name) == (False, "sm_90", "none (compile only)")
    assert describe("auto").target == "cpu"
    assert with_ceilings(cuda) is cuda
    with pytest.raises(MissingTool):
        ceilings(cuda)


@needs_nvcc
def test_auto_takes_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"name": "H", "memory": 1, "cores": 132, "cache": 2, "major": 9, "minor": 0, "shared_per_block": 232448}
    monkeypatch.setattr(cuda_module, "gpu_facts", lambda: {**answer, "driver": 13000, "uuid": "0e1b7a2c-6f2f"})
    gpu = describe("auto")
    assert (gpu.target, gpu.arch, gpu.cores, gpu.facts["driver"]) == ("cuda", "sm_90", 132, "CUDA 13.0")
    assert (gpu.key, gpu.unit) == ("cuda:H:132", "cuda:H:132:0e1b7a2c-6f2f")


DRIVER = """
#include <cstring>
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* device, int) { return *device = 0; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGetName(char* name, int, int) { strcpy(name, "NVIDIA H200"); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = 1 << 30; return 0; }
int cuDeviceGetAttribute(int* value, int, int) { *value = 9; return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetUuid@VERSION@(unsigned char* bytes, int) { for (int i = 0; i < 16; ++i) bytes[i] = i; return 0; }
}
"""


@needs_nvcc
@pytest.mark.parametrize("version", ["_v2", ""])
def test_the_driver_is_asked_for_the_uuid(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for libcuda; drivers before CUDA 11.4 know the first version of the call only."""
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=DRIVER.replace("@VERSION@", version), text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    cuda_module.gpu_facts.cache_clear()
    try:
        assert describe("cuda").uuid == describe("cuda").facts["uuid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    finally:
        cuda_module.gpu_facts.cache_clear()


def test_a_silent_driver_is_not_a_machine_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '#include <unistd.h>\nextern "C" int cuInit(int) { return pause(); }'
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setattr(cuda_module, "SECONDS_OF_DRIVER", 0.3)
    cuda_module.gpu_facts.cache_clear()
    try:
        with pytest.raises(MissingTool, match=r"the GPU's driver gave no answer in 0.3 s"):
            cuda_module.visible_gpus()
    finally:
        cuda_module.gpu_facts.cache_clear()


@pytest.fixture(scope="module")
def cpu_with_ceilings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Device, Path, float]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOUNDRY_HOME", str(home))
        start = time.monotonic()
        found = with_ceilings(describe("cpu"))
        return found, home, time.monotonic() - start


def test_ceilings_are_plausible_and_kept(
    cpu_with_ceilings: tuple[Device, Path, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, home, _ = cpu_with_ceilings
    assert device.ceilings is not None
    rates = device.ceilings
    assert 1e9 < rates.copy_bytes_per_s <= rates.cache_bytes_per_s < 1e14
    assert 1e9 < rates.ieee_flops_per_s == rates.tf32_flops_per_s <= rates.half_flops_per_s < 1e14
    assert 0 < rates.launch_ms < 10
    (kept,) = (home / "ceilings").iterdir()
    assert decode(Ceilings, kept.read_bytes()) == rates
    monkeypatch.setenv("FOUNDRY_HOME", str(home))
    monkeypatch.setenv("PATH", "/nonexistent")  # a second measurement would need the compiler
    assert ceilings(dataclasses.replace(device, ceilings=None)) == rates
    kept.write_text("{")
    with pytest.raises(MissingTool):
        ceilings(dataclasses.replace(device, ceilings=None))


def test_the_floor_follows_the_slower_side(cpu_with_ceilings: tuple[Device, Path, float]) -> None:
    device, _, _ = cpu_with_ceilings
    assert device.ceilings is not None
    traffic = 100 * device.cache_bytes
    assert device.floor_ms(0, traffic, "ieee") == pytest.approx(1e3 * traffic / device.ceilings.copy_bytes_per_s)
    assert device.floor_ms(1e15, 8, "half") == pytest.approx(1e18 / device.ceilings.half_flops_per_s)


@pytest.mark.gpu
def test_the_gpu_is_described_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if cuda_module.nvcc_path() is None or not describe("cuda").present:
        pytest.skip("no NVIDIA GPU here")
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path))
    gpu = with_ceilings(describe("cuda"))
    assert gpu.ceilings is not None
    rates = gpu.ceilings
    assert rates.half_flops_per_s > 1.5 * rates.tf32_flops_per_s > 1.5 * rates.ieee_flops_per_s > 1.5e12
    assert gpu.ceilings.copy_bytes_per_s > 1e11


@pytest.mark.gpu
def test_a_gpu_is_told_by_its_uuid_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's and PyTorch's are one, and CUDA_VISIBLE_DEVICES moves both."""
    if cuda_module.nvcc_path() is None or not describe("cuda").present:
        pytest.skip("no NVIDIA GPU here")
    import torch

    expected = [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]
    found = []
    for name in expected:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"GPU-{name}")
        cuda_module.gpu_facts.cache_clear()
        found.append(describe("cuda").uuid)
    cuda_module.gpu_facts.cache_clear()
    assert found == expected and len(set(found)) == len(found)


def test_measuring_again_keeps_the_better_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ceilings taken on a busy machine must not stay low, nor good ones be spoilt by a busy second look."""
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path))
    device = describe("cpu")
    rates = iter(
        [
            Ceilings(10e9, 900e9, 5e11, 5e11, 5e11, 0.001, "2026-01-01"),
            Ceilings(80e9, 300e9, 4e11, 4e11, 4e11, 0.002, "x"),
        ]
    )
    monkeypatch.setattr("foundry.tools.targets.cpu.build.measure_cpu", lambda _: next(rates))
    assert ceilings(device).copy_bytes_per_s == 10e9
    better = ceilings(device, again=True)
    assert better.half_flops_per_s == 5e11
    assert (better.copy_bytes_per_s, better.cache_bytes_per_s, better.launch_ms) == (80e9, 900e9, 0.001)
    assert ceilings(device) == better


def test_ceilings_without_a_rate_of_today_are_measured_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path))
    device = describe("cpu")
    rates = iter([Ceilings(10e9, 10e9, 5e11, 5e11, rate, 0.001, "2026-01-01") for rate in (5e11, 6e11)])
    monkeypatch.setattr("foundry.tools.targets.cpu.build.measure_cpu", lambda _: next(rates))
    ceilings(device)
    (kept,) = (tmp_path / "ceilings").iterdir()
    old = json.loads(kept.read_text())
    del old["half_flops_per_s"]
    kept.write_text(json.dumps(old))
    assert with_known_ceilings(device).ceilings is None
    assert ceilings(device).half_flops_per_s == 6e11
    assert json.loads(kept.read_text())["half_flops_per_s"] == 6e11


def test_each_gpu_keeps_ceilings_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One of two like GPUs may be throttled or shared by others."""
    monkeypatch.setenv("FOUNDRY_HOME", str(tmp_path))
    rates = iter([Ceilings(rate, rate, 5e13, 4e14, 8e14, 0.001, "2026-01-01") for rate in (4e12, 3e12)])
    monkeypatch.setattr("foundry.tools.targets.cuda.build.measure_cuda", lambda _: next(rates))
    monkeypatch.setattr("foundry.tools.targets.cuda.build.start_cuda", lambda: None)
    first = Device("cuda", "NVIDIA H200", "sm_90", 132, 60 << 20, 16, 141 << 30, uuid="0e1b7a2c")
    second = dataclasses.replace(first, uuid="5c3e9d11")
    assert [ceilings(gpu).copy_bytes_per_s for gpu in (first, second, first)] == [4e12, 3e12, 4e12]


def test_lanes_share_the_cores() -> None:
    """In processes of their own: the share is for good."""
    script = "import os; from foundry.tools.machine.device import take_share_of_cores; "
    script += "take_share_of_cores({part}, {parts}); print(*sorted(os.sched_getaffinity(0)))"

    def cores(part: int, parts: int) -> list[int]:
        command = [sys.executable, "-c", script.format(part=part, parts=parts)]
        return [
            int(core) for core in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        ]

    here = sorted(os.sched_getaffinity(0))
    assert cores(0, 1) == here
    if len(here) >= 2:
        assert cores(0, 2) + cores(1, 2) == here and abs(len(cores(0, 2)) - len(cores(1, 2))) <= 1
    assert cores(0, len(here) + 1) == here  # more lanes than cores: they share all
