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
extern "C" void dtw(const float* x, const float* y, float* o, long B, long N) {
    const long R = 16;
    #pragma omp parallel for
    for (long b = 0; b < B; b++) {
        std::vector<float> p(N + 2, INFINITY), c(N + 2, INFINITY);
        p[0] = 0;
        for (long i = 1; i <= N; i++) {
            long lo = std::max(1L, i - R), hi = std::min(N, i + R);
            c[lo - 1] = INFINITY;
            for (long j = lo; j <= hi; j++) {
                float m = std::min(std::min(p[j], p[j - 1]), c[j - 1]);
                c[j] = m + fabsf(x[b * N + i - 1] - y[b * N + j - 1]);
            }
            if (hi < N) c[hi + 1] = INFINITY;
            std::swap(p, c);
        }
        o[b] = p[N];
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
    def forward(self, x, y):
        x, y = x.contiguous(), y.contiguous()
        out = torch.empty(x.shape[0])
        _launch("dtw", x, y, out, x.shape[0], x.shape[1])
        return out
