"""Min-plus product. Variants of the row block are generated; the first call measures them on copies of the real shapes
and keeps the fastest. All variants give the same bits (a minimum does not round)."""
import ctypes
import os
import subprocess
import tempfile
import time

import torch
import torch.nn as nn

VARIANTS = [(1, 32), (2, 32), (4, 32), (6, 16), (4, 64)]

HEAD = r"""
#include <cstdint>
#include <cmath>
"""

KERNEL = r"""
static void block_%(R)d_%(W)d(const float* a, const float* b, float* c, int64_t rows, int64_t K, int64_t N, int64_t j, int64_t w) {
    float best[%(R)d][%(W)d];
    for (int r = 0; r < %(R)d; r++) for (int l = 0; l < %(W)d; l++) best[r][l] = INFINITY;
    float line[%(W)d] = {};
    for (int64_t k = 0; k < K; k++) {
        const float* p = b + k * N + j;
        if (w < %(W)d) { for (int64_t l = 0; l < w; l++) line[l] = p[l]; p = line; }
        for (int r = 0; r < %(R)d; r++) {
            const float v = a[(r < rows ? r : 0) * K + k];
            for (int l = 0; l < %(W)d; l++) {
                float s = v + p[l];
                best[r][l] = best[r][l] <= s ? best[r][l] : best[r][l] != best[r][l] ? best[r][l] : s;   // NaN goes in and stays
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) for (int64_t l = 0; l < w; l++) c[r * N + j + l] = best[r][l];
}
extern "C" void minplus_%(R)d_%(W)d(const float* a, const float* b, float* c, int64_t M, int64_t K, int64_t N) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t i = 0; i < M; i += %(R)d)
        for (int64_t j = 0; j < N; j += %(W)d)
            block_%(R)d_%(W)d(a + i * K, b, c + i * N, M - i < %(R)d ? M - i : %(R)d, K, N, j, N - j < %(W)d ? N - j : %(W)d);
}
"""


def compile_all():
    folder = tempfile.mkdtemp()
    src = os.path.join(folder, "minplus.cpp")
    with open(src, "w") as f:
        f.write(HEAD + "".join(KERNEL % {"R": r, "W": w} for r, w in VARIANTS))
    subprocess.run(["g++", "-O3", "-march=native", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", src, "-o", src + ".so"], check=True)
    lib = ctypes.CDLL(src + ".so")
    fs = [getattr(lib, f"minplus_{r}_{w}") for r, w in VARIANTS]
    for f in fs:
        f.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
    return fs


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.variants = compile_all()
        self.chosen = {}

    def tune(self, args):
        best = None
        for f in self.variants:
            f(*args)
            start = time.perf_counter()
            for _ in range(3):
                f(*args)
            took = time.perf_counter() - start
            if best is None or took < best[0]:
                best = took, f
        return best[1]

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        shape = a.shape[0], a.shape[1], b.shape[1]
        out = torch.empty(shape[0], shape[2])
        args = (a.data_ptr(), b.data_ptr(), out.data_ptr(), *shape)
        if shape not in self.chosen:
            self.chosen[shape] = self.tune(args)
        self.chosen[shape](*args)
        return out
