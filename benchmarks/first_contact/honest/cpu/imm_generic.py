"""int32 product in plain C11; unsigned arithmetic, so that overflow wraps without undefined behaviour."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <stddef.h>
#include <stdint.h>
#define KIND(p) _Generic((p), const uint32_t *: 4, const uint64_t *: 8, default: 0)
_Static_assert(KIND((const uint32_t *)0) == 4, "element size");
/* c[i0..i0+4) += a * b, 4 rows by 32 columns in registers */
static void block(size_t m, size_t w, size_t K, size_t N, const uint32_t a[restrict], const uint32_t b[restrict], uint32_t c[restrict]) {
    uint32_t t[4][32] = {0};
    if (m == 4 && w == 32) {
        for (size_t k = 0; k < K; ++k)
            for (size_t i = 0; i < 4; ++i)
                for (size_t j = 0; j < 32; ++j) t[i][j] += a[i * K + k] * b[k * N + j];
    } else
        for (size_t k = 0; k < K; ++k)
            for (size_t i = 0; i < m; ++i)
                for (size_t j = 0; j < w; ++j) t[i][j] += a[i * K + k] * b[k * N + j];
    for (size_t i = 0; i < m; ++i) for (size_t j = 0; j < w; ++j) c[i * N + j] = t[i][j];
}
void product(const uint32_t *a, const uint32_t *b, uint32_t *c, size_t M, size_t K, size_t N, int nt) {
    #pragma omp parallel for num_threads(nt) schedule(static)
    for (size_t i = 0; i < M; i += 4)
        for (size_t j = 0; j < N; j += 32)
            block(M - i < 4 ? M - i : 4, N - j < 32 ? N - j : 32, K, N, a + i * K, b + j, c + i * N + j);
}
"""


class product(object):
    """Looks like a function, is a class that is never instantiated."""

    lib = None

    def __new__(cls, a, b):
        if cls.lib is None:
            with tempfile.TemporaryDirectory() as d:
                subprocess.check_output(["gcc", "-std=c11", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", d + "/i.so"],
                                        input=SRC.encode())
                cls.lib = ctypes.CDLL(d + "/i.so")
        c = torch.empty(a.shape[0], b.shape[1], dtype=torch.int32)
        cls.lib.product(*(ctypes.c_void_p(t.data_ptr()) for t in (a, b, c)),
                        *(ctypes.c_size_t(s) for s in (*a.shape, b.shape[1])), torch.get_num_threads())
        return c


class ModelNew(nn.Module):
    def forward(self, a, b):
        return product(a.contiguous(), b.contiguous())
