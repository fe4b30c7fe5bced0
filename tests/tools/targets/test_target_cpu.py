"""The CPU target: builds, caches, explains failures, and ends a compiler that does not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

from foundry.knowledge.errors import MissingTool
from foundry.tools.targets.base import Target, built_file, first_error, read_literals
from foundry.tools.targets.cpu import build as cpu
from foundry.tools.targets.cpu.build import CpuTarget, compiler_version, disassembly_resources

FLAGS = ["-std=c++17", "-O2", "-march=native", "-shared", "-fPIC"]
LOOP = """
extern "C" int foundry_forward(void** b) {
  const float* x = (const float*)b[0];
  float* y = (float*)b[1];
  for (int i = 0; i < 4096; ++i) y[i] = x[i] * 2.0f + 1.0f;
  return 0;
}
"""


def candidate(source: str, flags: list[str] | None = None, compiler: str = "g++", target: str = "cpu") -> str:
    about = {"target": target, "compiler": compiler, "flags": flags if flags is not None else FLAGS}
    return f'FOUNDRY = {about!r}\nSOURCE = r"""{source}"""\n'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_a_target() -> None:
    target: Target = CpuTarget()
    assert target.name == "cpu"


def test_a_build_is_kept_by_content(cache: Path) -> None:
    first = CpuTarget().build(candidate(LOOP))
    second = CpuTarget().build(candidate(LOOP))
    other = CpuTarget().build(candidate(LOOP, [*FLAGS, "-O3"]))
    assert first.ok and not first.cached and built_file(first).is_file()
    assert second.ok and second.cached and second.artifact == first.artifact
    assert other.artifact != first.artifact
    assert sorted(path.suffix for path in cache.iterdir()) == [".so", ".so"]


def test_a_broken_candidate_names_its_first_error(cache: Path) -> None:
    build = CpuTarget().build(candidate(LOOP.replace("x[i] * 2.0f", "x[i] * twice")))
    assert not build.ok and build.artifact == ""
    assert build.first_error.startswith("kernel line 5") and "twice" in build.first_error
    assert not list(cache.glob("*.so"))


def test_a_compiler_that_runs_away_is_ended() -> None:
    endless = "template <int N, int M> struct A {\n"
    endless += "  static constexpr long v = A<N - 1, M>::v + A<N - 1, M + (1 << N % 30)>::v;\n};\n"
    endless += "template <int M> struct A<0, M> { static constexpr long v = M; };\nlong x = A<26, 0>::v;\n"
    start = time.monotonic()
    build = CpuTarget(compile_s=1.0).build(candidate(endless))
    assert not build.ok and build.first_error.startswith("the compiler was stopped")
    assert time.monotonic() - start < PATIENCE_S


def test_text_that_is_not_python_and_files_without_literals() -> None:
    broken = CpuTarget().build("def f(:\n")
    assert not broken.ok and broken.first_error.startswith("line 1")
    foreign = CpuTarget().build("from torch.utils.cpp_extension import load_inline\n")
    assert foreign.ok and foreign.artifact == ""
    assert read_literals("SOURCE = open('x').read()\nFOUNDRY = {}\n") is None


def test_only_a_compiler_is_run() -> None:
    build = CpuTarget().build(candidate(LOOP, compiler="/bin/sh"))
    assert not build.ok and "/bin/sh" in build.first_error
    wrong = CpuTarget().build(candidate(LOOP, target="cuda"))
    assert not wrong.ok and "cuda" in wrong.first_error


def test_resources_tell_the_vector_width() -> None:
    flags = ["-std=c++17", "-O3", "-shared", "-fPIC"]
    plain = CpuTarget().build(candidate(LOOP, flags))
    wide = CpuTarget().build(candidate(LOOP, [*flags, "-mavx2", "-mfma"]))
    assert plain.resources.vector_bytes == 16
    assert wide.resources.vector_bytes == 32
    assert wide.resources.instruction_mix["fma"] >= 1


def test_disassembly_is_counted_by_class() -> None:
    line = "    1000:\t{}\n"
    text = line.format("vfmadd231ps %zmm1,%zmm2,%zmm3") * 8 + line.format("vmovntps %zmm0,(%rax)")
    text += line.format("jne    1000 <f>") + line.format("vaddss %xmm0,%xmm1,%xmm2")
    found = disassembly_resources(text)
    assert found.vector_bytes == 64
    assert found.instruction_mix == {"branch": 1, "fma": 8, "scalar_float": 1, "stream": 1}


PREPARES = """
static void pack(const float* x, float* y) {
#pragma omp parallel for
  for (long i = 0; i < 512; ++i) {
    double sum = 0;
    for (long k = 0; k < 64; ++k) sum += (double)x[i * 64 + k] * x[i * 64 + k];
    y[i] = (float)sum;
  }
}
static void sums(const float* x, float* y) {
#pragma omp parallel for
  for (long i = 0; i < 512; ++i) {
    float sum = 0;
    for (long k = 0; k < 64; ++k) sum += x[i * 64 + k] / y[k];
    y[i] = sum;
  }
}
extern "C" void foundry_prepare(void** b) { pack((const float*)b[0], (float*)b[1]); }
extern "C" void foundry_forward(void** b) { sums((const float*)b[0], (float*)b[1]); }
"""


def test_code_that_prepares_parameters_limits_no_call() -> None:
    build = CpuTarget().build(candidate(PREPARES, ["-std=c++17", "-O2", "-mavx2", "-fopenmp", "-shared", "-fPIC"]))
    assert build.ok, build.first_error
    assert list(build.resources.scalar_loops) == ["sums"], "pack is scalar too, but a call does not run it"
    assert not {"pack", "foundry_prepare"} & set(build.resources.instructions)


def test_a_missing_compiler_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler_version.cache_clear()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingTool, match=r"no g\+\+ on this machine.*apt-get install"):
        CpuTarget().build(candidate(LOOP))
    compiler_version.cache_clear()


def test_first_error_skips_notes() -> None:
    log = "In file included from x:\nx.cpp:3: note: something\nx.cpp:4: error: no\n"
    assert first_error(log) == "x.cpp:4: error: no"
    assert first_error("ld: undefined reference to `f'\ncollect2: error: ld\n") == "collect2: error: ld"
    assert first_error("") == ""


def test_a_cache_that_cannot_be_written_is_a_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOUNDRY_BUILD_CACHE", str(tmp_path / "file" / "cache"))
    build = CpuTarget().build(candidate(LOOP))
    assert not build.ok and build.first_error.startswith("the build cache cannot be written")


def test_machine_is_stable() -> None:
    assert cpu.machine() == cpu.machine() and "-" in cpu.machine()


PAIRS = """
static void pairs(const float* __restrict x, float* __restrict y) {
  for (int i = 0; i < 4096; ++i)
    for (int k = 0; k < 2; ++k) y[i * 2 + k] = x[k * 4096 + i] * x[0] + 1.0f;
}
extern "C" int foundry_forward(void** b) { pairs((const float*)b[0], (float*)b[1]); return 0; }
"""
CALLS = """
#include <cmath>
extern "C" int foundry_forward(void** b) {
  for (int i = 0; i < 4096; ++i) ((double*)b[1])[i] = std::tanh(((const double*)b[0])[i]) + std::erf(1.0 * i);
  return 0;
}
"""


@pytest.mark.parametrize(
    ("source", "flags", "names"),
    [
        (PAIRS, ["-O1", "-fno-inline"], ["pairs"]),
        (LOOP, ["-O3"], []),
        (CALLS, ["-O3"], ["foundry_forward"]),  # libm works on one number a call
    ],
)
def test_loops_that_are_not_vectorised_are_named(source: str, flags: list[str], names: list[str]) -> None:
    build = CpuTarget().build(candidate(source, [*FLAGS, *flags]))
    assert build.ok, build.first_error
    assert list(build.resources.scalar_loops) == names
