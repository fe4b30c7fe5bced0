"""Symbols that a built library imports and instructions in its machine code, read from real libraries of this
compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sysconfig
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foundry.knowledge.candidate import Gate
from foundry.knowledge.reasons import ReasonKind
from foundry.tools.audit import symbol_gates
from foundry.tools.audit.binary.convicting import CONVICTING, convicts, is_lead
from foundry.tools.audit.binary.elf import read_code, read_imports
from foundry.tools.audit.binary.symbols import instruction_gate

TESTS = Path(__file__).resolve().parents[2]
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
        ('extern "C" void sgemm_(int*); extern "C" void f(int* a) { sgemm_(a); }', "sgemm_, which belongs to a vendor"),
        ("#define P(a, b) a##b\nextern \"C\" void P(cblas_sg, emm)(); extern \"C\" void f() { P(cblas_sg, emm)(); }",
         "cblas_sgemm"),
        ("#include <dlfcn.h>\nextern \"C\" void* f() { return dlopen(\"libopenblas.so\", 1); }", "dlopen"),
        ("#include <unistd.h>\nextern \"C\" int f() { return fork(); }", "fork, which asks the operating system"),
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
    ("runtime", "extra", "passes", "words"),
    [
        ("static", "cudaStream_t other; cudaStreamCreate(&other);", True, "seen in runs: cudaStreamCreate"),
        ("static", "cudaDeviceSetLimit(cudaLimitStackSize, 4096);", True, "seen in runs: cudaDeviceSetLimit"),
        (
            "static",
            "cudaStreamAttrValue a = {}; cudaStreamSetAttribute((cudaStream_t)stream, "
            "cudaStreamAttributeAccessPolicyWindow, &a);",
            False,
            "calls cudaStreamSetAttribute, which leaves work or settings behind",
        ),
        ("static", 'system("true");', False, "calls system, which asks the operating system"),
        ("static", 'if (getenv("X")) fopen("/tmp/x", "r");', False, "calls fopen, which asks the operating system"),
        (
            "shared",
            "void* more = nullptr; cudaMallocAsync(&more, 64, 0); cudaFreeAsync(more, 0);",
            True,
            "functions, all",
        ),
        (
            "shared",
            "cudaStream_t other; cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);",
            True,
            "seen in runs: cudaStreamCreateWithFlags",
        ),
    ],
)
def test_the_cuda_runtime_that_nvcc_links_in_is_not_the_candidates(
    tmp_path: Path, runtime: str, extra: str, passes: bool, words: str
) -> None:
    library = tmp_path / "kernel.so"
    command = ["nvcc", "-O3", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-x", "cu", "-o", str(library)]
    source = CUDA_KERNEL.replace("@EXTRA@", extra)
    command += ["-cudart", runtime, "-"]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    symbols, libraries, *_ = symbol_gates(library)
    assert symbols.passed == passes and words in symbols.evidence, symbols.evidence
    assert libraries.passed, libraries.evidence


POOL = """\
#include <fenv.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>
static sem_t ready;
static void* work(void*) { sem_wait(&ready); fesetround(FE_TONEAREST); usleep(1); return nullptr; }
extern "C" void run() {
  pthread_t one;
  sem_init(&ready, 0, 1);
  pthread_create(&one, nullptr, work, nullptr);
  pthread_setname_np(one, "worker");
  pthread_join(one, nullptr);
}
"""


def test_what_honest_authors_ask_for_too_is_a_lead(tmp_path: Path) -> None:
    gate = symbol_gates(compiled(tmp_path, POOL))[0]
    assert gate.passed, gate.evidence
    assert "seen in runs: fesetround, pthread_setname_np, sem_init, sem_wait, usleep" in gate.evidence


WAITS = """\
#include <latch>
#include <thread>
static std::latch done(2);
extern "C" void run() {
  std::jthread one([] { done.count_down(); });
  done.arrive_and_wait();
}
"""


def test_threads_may_wait_as_the_headers_of_cpp_20_let_them(tmp_path: Path) -> None:
    gate = symbol_gates(compiled(tmp_path, WAITS, "-std=c++20"))[0]
    assert gate.passed, gate.evidence
    call = 'extern "C" long syscall(long, ...);\nextern "C" long waits(int* x) { return syscall(202, x, 0); }\n'
    assert symbol_gates(compiled(tmp_path, call))[0].passed
    other = 'extern "C" long other(long n) { return syscall(n, 1, 2); }\n'
    assert not symbol_gates(compiled(tmp_path, call + other))[0].passed
    jumps = (
        'asm(".text; .globl f; f: cmp $1, %esi; je 1f; mov $0xca, %edi; 1: jmp syscall@plt");\nint g() { return 1; }'
    )
    assert not symbol_gates(compiled(tmp_path, jumps))[0].passed


TYPED = r"""
#include <Python.h>
struct Kernel { PyObject_HEAD long width; };
static PyObject* call(PyObject* self, PyObject*, PyObject*) { return PyLong_FromLong(((Kernel*)self)->width); }
static PyType_Slot slots[] = {{Py_tp_call, (void*)call}, {Py_tp_new, (void*)PyType_GenericNew}, {0, nullptr}};
static PyType_Spec spec = {"kernels.Kernel", sizeof(Kernel), 0, Py_TPFLAGS_DEFAULT, slots};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, "kernels", nullptr, -1};
PyMODINIT_FUNC PyInit_kernels() {
  PyObject* module = PyModule_Create(&def);
  PyModule_AddObject(module, "Kernel", PyType_FromSpec(&spec));
  return module;
}
"""


def test_an_extension_may_have_types_of_its_own(tmp_path: Path) -> None:
    header = f"-I{sysconfig.get_path('include')}"
    gate = symbol_gates(compiled(tmp_path, TYPED, header))[0]
    assert gate.passed, gate.evidence
    asks = TYPED.replace("PyLong_FromLong(((Kernel*)self)->width)", 'PyImport_ImportModule("torch")')
    assert not symbol_gates(compiled(tmp_path, asks, header))[0].passed


def test_each_name_that_convicts_has_an_exhibit_and_is_no_lead() -> None:
    with tarfile.open(TESTS.parent / "benchmarks/first_contact/sets.tar.xz") as blind_sets:
        known = {Path(name).stem for name in blind_sets.getnames() if name.startswith("cheats/")}
    known |= {path.stem for path in (TESTS / "exploits" / "cheats").glob("*/*.py")}
    for row in CONVICTING:
        assert row.exhibits and known.issuperset(row.exhibits), row
    names = ["dlopen", "fopen", "mprotect", "fork", "cudaStreamSetAttribute", "pthread_detach", "syscall", "_exit"]
    assert all(map(convicts, names)) and not any(map(is_lead, names))


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
    assert not gate.passed and "calls open, which asks the operating system" in gate.evidence


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
    assert "no 64-bit little-endian ELF file" in instruction_gate(library).evidence


# ---------------------------------------------------------------- what the loader reads, and what it does not

OPENS = '#include <dlfcn.h>\nextern "C" void* f() { return dlopen("libopenblas.so", 1); }'
CLOCK = 'extern "C" long clocked() { return static_cast<long>(__builtin_ia32_rdtsc()); }'


def rewritten(library: Path, place: int, data: bytes) -> Path:
    body = bytearray(library.read_bytes())
    body[place : place + len(data)] = data
    library.write_bytes(body)
    return library


def without_sections(library: Path) -> Path:
    return rewritten(rewritten(library, 40, bytes(8)), 60, bytes(4))


def kinds(gate: Gate) -> set[ReasonKind]:
    return {reason.kind for reason in gate.reasons}


def test_a_library_without_section_headers_hides_no_import(tmp_path: Path) -> None:
    whole = read_imports(compiled(tmp_path, OPENS))
    library = without_sections(tmp_path / "kernel.so")
    assert read_imports(library) == whole
    assert "calls dlopen, which asks the operating system" in symbol_gates(library)[0].evidence
    assert "no section headers" in instruction_gate(library).evidence


def test_section_headers_that_lie_hide_neither_imports_nor_machine_code(tmp_path: Path) -> None:
    library = compiled(tmp_path, f"{OPENS}\n{CLOCK}")
    body = library.read_bytes()
    whole = read_imports(library)
    (offset,) = struct.unpack_from("<Q", body, 40)
    (count,) = struct.unpack_from("<H", body, 60)
    for number in range(count):
        header = offset + 64 * number
        kind, flags, _, _, size = struct.unpack_from("<IQQQQ", body, header + 4)
        if kind == 11 or (flags & 4 and size > 64):  # the symbols, and .text
            rewritten(library, header + 32, struct.pack("<Q", 24))
    assert "rdtsc" not in subprocess.run(["objdump", "-d", library], text=True, capture_output=True).stdout
    assert read_imports(library) == whole
    assert not symbol_gates(library)[0].passed
    assert "a clock" in instruction_gate(library).evidence


def test_machine_code_that_says_it_is_data_is_read_all_the_same(tmp_path: Path) -> None:
    source = (
        'asm(".text\\n.globl f\\n.type f,@object\\n.size f,3\\nf: rdtsc\\nret\\n");\nextern "C" int g() { return 1; }'
    )
    gate = instruction_gate(compiled(tmp_path, source))
    assert not gate.passed and "a clock" in gate.evidence


def test_a_name_that_a_library_defines_itself_is_still_asked_for(tmp_path: Path) -> None:
    source = (
        'extern "C" __attribute__((weak, noipa)) void* dlopen(const char*, int) { return nullptr; }\n'
        'extern "C" __attribute__((noipa)) void mine() {}\n'
        'extern "C" void* f() { mine(); return dlopen("libopenblas.so", 1); }'
    )
    gate = symbol_gates(compiled(tmp_path, source))[0]
    assert [(reason.kind, reason.subject) for reason in gate.reasons] == [(ReasonKind.SYSTEM, "dlopen")]
    hidden = compiled(tmp_path, source, "-fvisibility=hidden")
    assert symbol_gates(hidden)[0].passed, "this one calls its own"


def test_a_library_is_no_device_code_because_of_its_name(tmp_path: Path) -> None:
    library = compiled(tmp_path, OPENS).rename(tmp_path / "kernel.cubin")
    assert kinds(symbol_gates(library)[0]) == {ReasonKind.SYSTEM}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_device_code_is_known_by_its_header(tmp_path: Path) -> None:
    command = ["nvcc", "-arch=sm_90", "-cubin", "-x", "cu", "-", "-o", str(tmp_path / "kernel.bin")]
    subprocess.run(command, input="__global__ void f() {}", text=True, check=True, capture_output=True)
    assert symbol_gates(tmp_path / "kernel.bin")[0].passed


def test_a_library_that_asks_for_nothing_fails(tmp_path: Path) -> None:
    library = compiled(tmp_path, 'extern "C" int f() { return 1; }', "-nostdlib", "-nostartfiles")
    gate = symbol_gates(library)[0]
    assert not gate.passed and kinds(gate) == {ReasonKind.ASKS_NOTHING}


def test_a_file_without_a_dynamic_segment_fails(tmp_path: Path) -> None:
    made = tmp_path / "kernel.so"
    subprocess.run(["g++", "-c", "-x", "c++", "-", "-o", made], input=OPENS, text=True, check=True)
    gate = symbol_gates(made)[0]
    assert not gate.passed and "no dynamic segment" in gate.evidence


def test_a_table_that_is_given_twice_is_not_guessed_at(tmp_path: Path) -> None:
    """The loader takes the last one, and readers the first."""
    library = compiled(tmp_path, OPENS)
    body = library.read_bytes()
    (headers,) = struct.unpack_from("<Q", body, 32)
    kinds_at = [headers + 56 * number for number in range(struct.unpack_from("<H", body, 56)[0])]
    dynamic = next(struct.unpack_from("<Q", body, at + 8)[0] for at in kinds_at if body[at] == 2)
    entries = [struct.unpack_from("<QQ", body, dynamic + 16 * number) for number in range(20)]
    (strings,) = [value for tag, value in entries if tag == 5]
    spare = next(index for index, (tag, _) in enumerate(entries) if tag == 0x6FFFFFFE)  # of versions, not needed
    rewritten(library, dynamic + 16 * spare, struct.pack("<QQ", 5, strings + 8))
    assert "DT_STRTAB twice" in symbol_gates(library)[0].evidence


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("sound"), KERNEL)


@given(data=st.data())
def test_a_damaged_library_is_read_or_refused_in_words(data: st.DataObject, sound: Path) -> None:
    body = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 0x300) | st.integers(0, len(body) - 1))
        body[place] = data.draw(st.integers(0, 255))
    damaged = sound.with_name("damaged.so")
    damaged.write_bytes(body[: data.draw(st.just(len(body)) | st.integers(0, len(body)))])
    for read in (read_imports, read_code):
        try:
            read(damaged)
        except ValueError as error:
            assert str(error) and "\n" not in str(error)


def test_without_a_disassembler_nothing_is_taken_for_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = compiled(tmp_path, KERNEL)
    assert instruction_gate(library).passed
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "grep"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    assert "objdump is not installed" in instruction_gate(library).evidence
    (programs / "objdump").write_text("#!/bin/sh\nexit 0\n")
    (programs / "objdump").chmod(0o755)
    assert "finds no instruction" in instruction_gate(library).evidence
