"""C[b] = alpha * A[b] @ B[b]^T. Strides are passed to C++, so a transposed view needs no copy (inner stride 1 is required)."""
import ctypes
import enum
import os
import subprocess
import tempfile

import torch
import torch.nn as nn


class Status(enum.IntEnum):
    OK = 0
    BAD_STRIDE = 1


SOURCE = r"""
#include <cstdint>

struct Matrix { const float* p; int64_t batch, row, inner; };

template <int M, int N>
static inline void corner(const float* const* a, const float* const* b, int64_t k, float alpha, float* c, int64_t ldc) {
    constexpr int V = 8;
    float acc[M][N][V] = {};
    int64_t i = 0;
    for (; i + V <= k; i += V)
        for (int m = 0; m < M; ++m)
            for (int n = 0; n < N; ++n)
                for (int l = 0; l < V; ++l) acc[m][n][l] += a[m][i + l] * b[n][i + l];
    for (int m = 0; m < M; ++m)
        for (int n = 0; n < N; ++n) {
            float* s = acc[m][n];
            for (int64_t t = i; t < k; ++t) s[0] += a[m][t] * b[n][t];
            c[m * ldc + n] = alpha * (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
        }
}

extern "C" int bmm_nt(const Matrix* a, const Matrix* b, float* c, int64_t batch, int64_t m, int64_t n, int64_t k, float alpha) {
    if (a->inner != 1 || b->inner != 1) return 1;
    #pragma omp parallel for collapse(2) schedule(static)
    for (int64_t z = 0; z < batch; ++z)
        for (int64_t i = 0; i < m; i += 2)
            for (int64_t j = 0; j < n; j += 4) {
                const float *pa[2], *pb[4];
                const int64_t mm = m - i < 2 ? m - i : 2, nn = n - j < 4 ? n - j : 4;
                for (int64_t t = 0; t < mm; ++t) pa[t] = a->p + z * a->batch + (i + t) * a->row;
                for (int64_t t = 0; t < nn; ++t) pb[t] = b->p + z * b->batch + (j + t) * b->row;
                float* out = c + (z * m + i) * n + j;
                if (mm == 2 && nn == 4) corner<2, 4>(pa, pb, k, alpha, out, n);
                else
                    for (int64_t s = 0; s < mm; ++s)
                        for (int64_t t = 0; t < nn; ++t) corner<1, 1>(pa + s, pb + t, k, alpha, out + s * n + t, n);
            }
    return 0;
}
"""


class Matrix(ctypes.Structure):
    _fields_ = [("p", ctypes.c_void_p), ("batch", ctypes.c_int64), ("row", ctypes.c_int64), ("inner", ctypes.c_int64)]

    @classmethod
    def of(cls, t: torch.Tensor) -> "Matrix":
        return cls(t.data_ptr(), *t.stride())


def _build():
    d = tempfile.mkdtemp()
    with open(os.path.join(d, "bmm.cpp"), "w") as f:
        f.write(SOURCE)
    subprocess.run(["g++", "-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-o", d + "/bmm.so", d + "/bmm.cpp"], check=True)
    return ctypes.CDLL(d + "/bmm.so").bmm_nt


_bmm = _build()


class ModelNew(nn.Module):
    def forward(self, a, b):
        if a.stride(-1) != 1:
            a = a.contiguous()
        if b.stride(-1) != 1:
            b = b.contiguous()
        z, m, k = a.shape
        n = b.shape[1]
        c = torch.empty(z, m, n)
        i64 = ctypes.c_int64
        rc = _bmm(ctypes.byref(Matrix.of(a)), ctypes.byref(Matrix.of(b)), ctypes.c_void_p(c.data_ptr()), i64(z), i64(m), i64(n), i64(k), ctypes.c_float(0.125))
        if rc != Status.OK:
            raise RuntimeError(Status(rc).name)
        return c
