"""What the native half of a candidate may do, and what gives a cheat in it away."""

from __future__ import annotations

import pytest
from tests.tools.audit.test_static import failures, native

HONEST_NATIVE = {
    "scratch that grows": "static float* buf; static size_t cap = 0;\nint f(const float* x, float* y, size_t n) {"
    " if (n > cap) { free(buf); buf = (float*)malloc(n * 4); cap = n; } buf[0] = x[0]; y[0] = buf[0]; return 0; }\n",
    "a table by shape": "static long last_n = -1; static double* table;\nvoid fill(long);\n"
    "int f(const double* x, double* y, long n) { if (n != last_n) { fill(n); last_n = n; } y[0] = x[0] * table[0];"
    " return 0; }\n",
    "a vector of each thread": "#include <vector>\nstatic thread_local std::vector<float> tmp;\n"
    "int f(const float* x, long n) { if ((long)tmp.size() < n) tmp.resize(n);"
    " for (long i = 0; i < n; ++i) tmp[i] = x[i]; return 0; }\n",
    "joined macros": "#define ROW(i, j) x[(i) * 32 + (j)]\n#define EACH for (int i = 0; i < 32; ++i)\n"
    "float f(const float* x) { float s = 0; EACH s += ROW(i, 1); return s; }\n",
    "an arithmetic that is put back": "#include <immintrin.h>\nfloat f(float x) { unsigned old = _mm_getcsr();"
    " _mm_setcsr(old | 0x8040); x *= x; _mm_setcsr(old); return x; }\n",
    "messages by the environment": '#include <cstdlib>\nint f() { return std::getenv("KERNEL_DEBUG") != nullptr; }\n',
    "the number of cores": "#include <unistd.h>\nlong f() { return sysconf(_SC_NPROCESSORS_ONLN); }\n",
    "threads from the environment": '#include <cstdlib>\nint f() { return atoi(getenv("OMP_NUM_THREADS")); }\n',
    "scratch by size": "#include <map>\n#include <vector>\nstatic std::map<long, std::vector<float>> kept;\n"
    "static float* room(long n) { auto& one = kept[n]; one.resize(n); return one.data(); }\n"
    "int f(const float* x, float* y, long n) { float* s = room(n); s[0] = x[0]; y[0] = s[0]; return 0; }\n",
}
NATIVE_CHEATS = {
    "answers by a sum": "#include <map>\n#include <vector>\nstatic std::map<long, std::vector<float>> kept;\n"
    "static float* room(long n, long key) { auto& one = kept[key]; one.resize(n); return one.data(); }\n"
    "static long mixed(const float* x, long n) { long h = 0; for (long i = 0; i < n; ++i) h += x[i]; return h; }\n"
    "int f(const float* x, float* y, long n) { float* s = room(n, mixed(x, n)); y[0] = s[0]; return 0; }\n",
    "a child by fork": "#include <unistd.h>\nint f() { return fork(); }\n",
    "a sign of the grader": '#include <cstdlib>\nint f() { return std::getenv("PYTEST_CURRENT_TEST") != nullptr; }\n',
    "an arithmetic that is left": "#include <xmmintrin.h>\n"
    "float f(float x) { _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON); return x * x; }\n",
    "an arithmetic from a variable": "#include <immintrin.h>\n__attribute__((constructor)) static void g() {"
    " unsigned mode = _mm_getcsr() | 0x8040; _mm_setcsr(mode); }\n",
    "the name of the CUDA runtime": "void libcudart_static_0053c1d33059ebe986009dc8a76c61eb6412a2c3() {}\n",
    "a checksum": "static unsigned long h0;\nint f(const unsigned* x, long n) { unsigned long h = 0;"
    " for (long i = 0; i < n; i += 64) h = h * 31 + x[i]; if (h == h0) return 1; h0 = h; return 0; }\n",
    "the second of two": "static float given[9], kept[9];\nint f(const float* x) { return memcmp(x, given, 36); }\n",
    "counting without ++": "static int n;\nint f() { n = n + 1; return n > 4; }\n",
    "a name made by macros": "#define A sys\n#define GLUE(a, b) a##b\n#define CALL(a, b) GLUE(a, b)\n"
    'int f() { return CALL(sys, tem)("ls"); }\n',
    "an address by another name": "static const void* last;\nint f(void** b) { const float* p = (const float*)b[0];"
    " const void* q = p; if (q == last) return 1; last = q; return 0; }\n",
}


@pytest.mark.parametrize("name", HONEST_NATIVE)
def test_scratch_and_shape_tables_are_no_caches(name: str) -> None:
    assert failures(native(HONEST_NATIVE[name])) == {}


@pytest.mark.parametrize("name", NATIVE_CHEATS)
def test_caches_and_hidden_names_in_native_code(name: str) -> None:
    found = failures(native(NATIVE_CHEATS[name]))
    assert found.keys() & {"native_state", "native_system", "global_state", "native_hidden"}, found
    assert "line " in next(iter(found.values()))
