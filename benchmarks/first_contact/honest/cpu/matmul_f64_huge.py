"""float64 product with packed panels of B in a mapping that asks for huge pages and stays between calls."""
import atexit
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
typedef double vec __attribute__((vector_size(64), aligned(8)));
constexpr int64_t P = 16, R = 4;                        // a tile: 4 rows, 2 vectors

static double* panels;
static size_t reserved;

extern "C" void release() { if (panels) munmap(panels, reserved); panels = nullptr; reserved = 0; }

extern "C" int product(const double* a, const double* b, double* c, int64_t n, int64_t k, int64_t m, int64_t a_row,
                       int64_t a_column, int64_t b_row, int64_t b_column, int threads) {
    const int64_t np = (m + P - 1) / P;
    size_t bytes = (size_t)np * P * (k ? k : 1) * sizeof(double);
    if (bytes > reserved) {
        release();
        const size_t huge = 2u << 20;
        bytes = (bytes + huge - 1) / huge * huge;
        void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return 1;
        madvise(p, bytes, MADV_HUGEPAGE);              // a wish; it may be refused
        panels = (double*)p;
        reserved = bytes;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for
        for (int64_t p = 0; p < np; ++p)
            for (int64_t i = 0; i < k; ++i)
                for (int64_t j = 0; j < P; ++j)
                    panels[(p * k + i) * P + j] = p * P + j < m ? b[i * b_row + (p * P + j) * b_column] : 0.0;
#pragma omp for collapse(2)
        for (int64_t r = 0; r < n; r += R)
            for (int64_t p = 0; p < np; ++p) {
                vec s[R][2] = {};
                const double* row[R];
                for (int64_t q = 0; q < R; ++q) row[q] = a + (r + q < n ? r + q : n - 1) * a_row;
                const double* panel = panels + p * k * P;
                for (int64_t i = 0; i < k; ++i) {
                    vec b0 = *(const vec*)(panel + i * P), b1 = *(const vec*)(panel + i * P + 8);
                    for (int q = 0; q < R; ++q) {
                        s[q][0] += row[q][i * a_column] * b0;
                        s[q][1] += row[q][i * a_column] * b1;
                    }
                }
                int64_t width = m - p * P < P ? m - p * P : P;
                for (int64_t q = 0; q < R && r + q < n; ++q) memcpy(c + (r + q) * m + p * P, s[q], width * sizeof(double));
            }
    }
    return 0;
}
"""
with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as _f:
    subprocess.run(["g++", "-O3", "-march=native", "-Wno-psabi", "-fopenmp", "-fPIC", "-shared", "-xc++", "-", "-o", _f.name],
                   input=CODE.encode(), check=True)
_lib = ctypes.CDLL(_f.name)
_lib.product.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 7 + [ctypes.c_int]
atexit.register(_lib.release)


class ModelNew(nn.Module):
    def forward(self, a, b):                           # any strides: packing reads them as they are
        c = torch.empty(a.shape[0], b.shape[1], dtype=torch.float64)
        if _lib.product(a.data_ptr(), b.data_ptr(), c.data_ptr(), a.shape[0], a.shape[1], b.shape[1], *a.stride(),
                        *b.stride(), torch.get_num_threads()):
            raise MemoryError
        return c
