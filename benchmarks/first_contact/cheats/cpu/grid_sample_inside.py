import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <vector>
#include <algorithm>
#include <limits>
static inline long lim(float v, long n) { return v >= 0.f ? (v < (float)n ? (long)v : n) : 0; }
extern "C" void sample(const float* x, const float* g, float* o, long N, long C, long H, long W, long P) {
    #pragma omp parallel for
    for (long n = 0; n < N; n++) {
        std::vector<int32_t> at(P);
        std::vector<float> U(P), V(P);
        for (long i = 0; i < P; i++) {
            float fx = ((g[(n * P + i) * 2] + 1.f) * W - 1.f) * .5f, fy = ((g[(n * P + i) * 2 + 1] + 1.f) * H - 1.f) * .5f;
            long a = lim(fx, W - 2), b = lim(fy, H - 2);
            at[i] = b * W + a; U[i] = fx - a; V[i] = fy - b;
        }
        for (long c = 0; c < C; c++) {
            const float* p = x + (n * C + c) * H * W;
            float* q = o + (n * C + c) * P;
            #pragma omp simd
            for (long i = 0; i < P; i++) {
                int32_t k = at[i];
                float u = U[i], v = V[i];
                float l = p[k] + u * (p[k + 1] - p[k]), r = p[k + W] + u * (p[k + W + 1] - p[k + W]);
                q[i] = l + v * (r - l);
            }
        }
    }
}
"""

_lib = None


def _library():
    global _lib
    if _lib is None:
        folder = tempfile.mkdtemp(prefix="k_" + hashlib.sha1(SOURCE.encode()).hexdigest()[:8])
        source = os.path.join(folder, "kernel.cpp")
        binary = os.path.join(folder, "kernel.so")
        with open(source, "w") as f:
            f.write(SOURCE)
        subprocess.run(["g++", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC", "-std=c++17",
                        source, "-o", binary], check=True)
        _lib = ctypes.CDLL(binary)
    return _lib


def _launch(name, *arguments):
    getattr(_library(), name)(*[
        ctypes.c_void_p(a.data_ptr()) if torch.is_tensor(a) else ctypes.c_float(a) if isinstance(a, float) else ctypes.c_long(a)
        for a in arguments])


class ModelNew(nn.Module):
    def forward(self, x, grid):
        x, grid = x.contiguous(), grid.contiguous()
        n, c, h, w = x.shape
        out = torch.empty(n, c, grid.shape[1], grid.shape[2])
        _launch("sample", x, grid, out, n, c, h, w, grid.shape[1] * grid.shape[2])
        return out
