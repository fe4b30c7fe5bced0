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
extern "C" void rms(const float* x, const float* w, float* o, long R, long D) {
    #pragma omp parallel for
    for (long r = 0; r < R; r++) {
        float a[16] = {0}, s = 0;
        for (long d = 0; d < D; d += 16) for (int j = 0; j < 16; j++) a[j] += x[r * D + d + j] * x[r * D + d + j];
        for (int j = 0; j < 16; j++) s += a[j];
        s = 1.f / sqrtf(s / D + 1e-6f);
        for (long d = 0; d < D; d++) o[r * D + d] = x[r * D + d] * s * w[d];
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
    def __init__(self, width, group):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.group = group

    def forward(self, k):
        k = k.contiguous()
        b, h, t, d = k.shape
        assert d % 16 == 0
        out = torch.empty(b, h, 1, t, d)
        _launch("rms", k, self.weight, out, b * h * t, d)
        return out.expand(b, h, self.group, t, d)
