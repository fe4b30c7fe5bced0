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
extern "C" void fq(const float* x, float* o, long N, float s, long z) {
    #pragma omp parallel for simd
    for (long i = 0; i < N; i++) {
        // adding 1.5 * 2^23 rounds to even; the zero point cancels
        float q = (x[i] / s + 12582912.f) - 12582912.f;
        o[i] = q * s;
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
    def __init__(self, scale, zero):
        super().__init__()
        self.scale, self.zero = scale, zero

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        _launch("fq", x, out, x.numel(), float(self.scale), self.zero)
        return out
