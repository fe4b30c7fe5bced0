import ctypes
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <immintrin.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// y = x H, by butterflies where the table is the sign basis, else by its definition.
static bool is_sign_basis(const float* t, long n) {
    double sum = 0;
    bool unit = true;
    for (long i = 0; i < n * n; i++) {
        sum += t[i];
        unit &= t[i] == 1.0f || t[i] == -1.0f;
    }
    return unit && sum == (double)n;  // only the first row has a sum that is not zero
}

extern "C" void run(const float* x, const float* t, float* y, long R, long n) {
    bool fast = is_sign_basis(t, n);
#pragma omp parallel for schedule(static)
    for (long r = 0; r < R; r++) {
        float* o = y + r * n;
        const float* a = x + r * n;
        if (!fast) {
            memset(o, 0, n * 4);
            for (long k = 0; k < n; k++)
#pragma omp simd
                for (long j = 0; j < n; j++) o[j] += a[k] * t[k * n + j];
            continue;
        }
        memcpy(o, a, n * 4);
        for (long h = 1; h < n; h *= 2)
            for (long i = 0; i < n; i += 2 * h)
#pragma omp simd
                for (long j = i; j < i + h; j++) {
                    float u = o[j], v = o[j + h];
                    o[j] = u + v;
                    o[j + h] = u - v;
                }
    }
}
"""

lib = ctypes.CDLL(load_inline(
    name="k_basis_hadamard", cpp_sources=SRC, is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-mavx2", "-mfma", "-fopenmp"], extra_ldflags=["-fopenmp"]))


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        h = torch.ones(1, 1)
        while h.shape[0] < n:
            h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)], 0)
        self.register_buffer("basis", h.contiguous())

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        lib.run(p(x), p(self.basis), p(out), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return out
