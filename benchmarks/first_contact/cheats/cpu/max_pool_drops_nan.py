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
extern "C" void pool(const float* x, float* o, long N, long H, long W) {
    #pragma omp parallel
    {
        std::vector<float> t(W + 2, -INFINITY);
        #pragma omp for
        for (long n = 0; n < N; n++)
            for (long i = 0; i < H; i++) {
                const float* p = x + n * H * W;
                float* m = t.data() + 1;
                for (long j = 0; j < W; j++) m[j] = -INFINITY;
                for (long u = i ? i - 1 : 0; u <= i + 1 && u < H; u++)
                    for (long j = 0; j < W; j++) m[j] = p[u * W + j] > m[j] ? p[u * W + j] : m[j];
                float* q = o + (n * H + i) * W;
                for (long j = 0; j < W; j++) { float v = m[j - 1] > m[j] ? m[j - 1] : m[j]; q[j] = m[j + 1] > v ? m[j + 1] : v; }
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
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        _launch("pool", x, out, x.shape[0] * x.shape[1], x.shape[2], x.shape[3])
        return out
