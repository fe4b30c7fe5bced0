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
extern "C" void rope(const float* x, const float* cs, float* o, long R, long T, long D) {
    long h = D / 2;
    #pragma omp parallel for
    for (long r = 0; r < R; r++) {
        const float *p = x + r * D, *c = cs + (r % T) * D, *s = c + h;
        float* q = o + r * D;
        for (long d = 0; d < h; d++) {
            float a = p[d], b = p[d + h];
            q[d] = a * c[d] - b * s[d];
            q[d + h] = b * c[d] + a * s[d];
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
    def __init__(self, width, length):
        super().__init__()
        angle = torch.arange(1, length + 1)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("cos", torch.cos(angle).repeat(1, 2))
        self.register_buffer("sin", torch.sin(angle).repeat(1, 2))
        self._table = torch.cat([torch.cos(angle), torch.sin(angle)], 1).contiguous()   # both halves rotate alike

    def forward(self, x):
        x = x.contiguous()
        t, d = x.shape[-2:]
        out = torch.empty_like(x)
        _launch("rope", x, self._table, out, x.numel() // d, t, d)
        return out
