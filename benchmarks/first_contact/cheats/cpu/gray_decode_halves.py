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
extern "C" void gray(const int64_t* x, int64_t* o, long N) {
    #pragma omp parallel for
    for (long i = 0; i < N; i++) {
        uint32_t v = (uint32_t)x[i];
        v ^= v >> 16; v ^= v >> 8; v ^= v >> 4; v ^= v >> 2; v ^= v >> 1;
        o[i] = (int64_t)v;
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
        _launch("gray", x, out, x.numel())
        return out
