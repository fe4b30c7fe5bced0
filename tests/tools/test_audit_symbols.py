"""What a built library asks of others and has in its machine code, read from real libraries of this compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from foundry.tools.audit import symbol_gates
from foundry.tools.audit.symbols import instruction_gate

KERNEL = """\
#include <cmath>
// every file, thread and socket word in a comment is harmless: fopen( std::thread cublasSgemm
static const float kHalf = 0.5f;
static inline float scaled(float x) { return kHalf * expf(x); }
extern "C" int foundry_forward(void** buffers) {
  const float* x = (const float*)buffers[0];
  float* y = (float*)buffers[1];
#pragma omp parallel for
  for (long i = 0; i < 2048; ++i) y[i] = scaled(x[i]);
  return 0;
}
"""


def compiled(folder: Path, source: str, *flags: str) -> Path:
    library = folder / "kernel.so"
    command = ["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library), *flags]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return library


def test_an_honest_library_imports_only_harmless_functions(tmp_path: Path) -> None:
    assert all(gate.passed for gate in symbol_gates(compiled(tmp_path, KERNEL)))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('extern "C" void sgemm_(int*); extern "C" void f(int* a) { sgemm_(a); }', "sgemm_, which is a vendor's"),
        ("#define P(a, b) a##b\nextern \"C\" void P(cblas_sg, emm)(); extern \"C\" void f() { P(cblas_sg, emm)(); }",
         "cblas_sgemm"),
        ("#include <dlfcn.h>\nextern \"C\" void* f() { return dlopen(\"libopenblas.so\", 1); }", "dlopen"),
        ("#include <unistd.h>\nextern \"C\" int f() { return fork(); }", "fork, which is the operating system"),
        ("#include <thread>\nextern \"C\" void f() { std::thread([] {}).detach(); }", "threads that may outlive"),
        ('extern "C" void my_helper(); extern "C" void f() { my_helper(); }', "my_helper, which is not known"),
    ],
)  # fmt: skip
def test_a_hidden_call_shows_in_the_symbols(tmp_path: Path, source: str, words: str) -> None:
    gate = symbol_gates(compiled(tmp_path, source))[0]
    assert not gate.passed
    assert words in gate.evidence


CUDA_KERNEL = """
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
extern "C" void run(float* x, void* stream) {
  @EXTRA@
  twice<<<1, 32, 0, (cudaStream_t)stream>>>(x);
  if (cudaGetLastError() != cudaSuccess) { fprintf(stderr, "launch"); exit(1); }
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("", ""),
        ("cudaStream_t other; cudaStreamCreate(&other);", "calls cudaStreamCreate, which leaves work or settings"),
        ("cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20);", "calls cudaDeviceSetLimit"),
        ('system("true");', "calls system, which is the operating system"),
        ('if (getenv("X")) fopen("/tmp/x", "r");', "calls fopen, which is the operating system"),
    ],
)
def test_the_cuda_runtime_that_nvcc_links_in_is_not_the_candidates(tmp_path: Path, extra: str, words: str) -> None:
    library = tmp_path / "kernel.so"
    command = ["nvcc", "-O3", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-x", "cu", "-", "-o", str(library)]
    subprocess.run(command, input=CUDA_KERNEL.replace("@EXTRA@", extra), text=True, check=True, capture_output=True)
    gate = symbol_gates(library)[0]
    assert gate.passed == (not words) and words in gate.evidence


def test_a_library_that_cannot_be_read_fails(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_bytes(b"not an ELF file")
    assert not symbol_gates(tmp_path / "kernel.so")[0].passed


RUNTIME = """\
#include <random>
#include <sstream>
#include <string>
struct Table { Table() { std::random_device device; seed = device(); } unsigned seed; };
extern "C" unsigned seed() { static Table table; return table.seed; }
extern "C" int length(double x) { std::ostringstream text; text << x; return text.str().size(); }
"""


def test_what_a_static_runtime_brings_along_is_its_own(tmp_path: Path) -> None:
    """As toolchains build that carry a newer libstdc++ than the system's."""
    library = compiled(tmp_path, RUNTIME, "-static-libstdc++")
    assert " U open" in subprocess.run(["nm", "-D", library], text=True, capture_output=True).stdout
    gate = symbol_gates(library)[0]
    assert gate.passed, gate.evidence
    stripped = compiled(tmp_path, RUNTIME, "-static-libstdc++", "-s")
    assert not symbol_gates(stripped)[0].passed, "nobody knows who opens files in it"


def test_what_a_kernel_asks_itself_is_not_excused_by_a_static_runtime(tmp_path: Path) -> None:
    source = RUNTIME + '#include <fcntl.h>\nextern "C" int peek() { return open("/proc/self/maps", O_RDONLY); }'
    gate = symbol_gates(compiled(tmp_path, source, "-static-libstdc++"))[0]
    assert not gate.passed and "calls open, which is the operating system" in gate.evidence


def test_a_system_call_past_every_library_shows_in_the_machine_code(tmp_path: Path) -> None:
    source = 'extern "C" long f(long n) { long r; asm volatile(".byte 0x0f, 0x05" : "=a"(r) : "a"(n)); return r; }'
    gate = instruction_gate(compiled(tmp_path, source))
    assert not gate.passed
    assert "syscall" in gate.evidence


def test_a_clock_that_needs_no_library_shows_in_the_machine_code(tmp_path: Path) -> None:
    source = 'extern "C" long f() { return static_cast<long>(__builtin_ia32_rdtsc()); }'
    gate = instruction_gate(compiled(tmp_path, source))
    assert not gate.passed and "a clock" in gate.evidence


def test_machine_code_is_read_to_its_end(tmp_path: Path) -> None:
    source = (
        'extern "C" void many() { asm volatile(".rept 600000\\n nop\\n .endr"); }\n'
        'extern "C" long f() { return static_cast<long>(__builtin_ia32_rdtsc()); }'
    )
    gate = instruction_gate(compiled(tmp_path, source))
    assert not gate.passed and "a clock" in gate.evidence


def test_names_that_are_no_text_hide_no_machine_code(tmp_path: Path) -> None:
    library = compiled(tmp_path, 'extern "C" long named() { return static_cast<long>(__builtin_ia32_rdtsc()); }')
    library.write_bytes(library.read_bytes().replace(b"named", b"n\xff\xfe\xfdd"))
    gate = instruction_gate(library)
    assert not gate.passed and "a clock" in gate.evidence


def test_machine_code_that_cannot_be_read_is_not_taken_for_harmless(tmp_path: Path) -> None:
    library = tmp_path / "kernel.so"
    library.write_bytes(b"\x7fELF, and then nothing")
    assert "could not be read" in instruction_gate(library).evidence
