import ctypes
import hashlib
import os
import subprocess
import tempfile

import torch
import torch.nn as nn


def _build(source, tag):
    key = hashlib.sha256(source.encode()).hexdigest()[:12]
    folder = tempfile.mkdtemp(prefix=tag + "_" + key)
    cpp, lib = os.path.join(folder, tag + ".cpp"), os.path.join(folder, tag + ".so")
    with open(cpp, "w") as f:
        f.write(source)
    subprocess.run(["g++", "-O3", "-march=native", "-std=c++17", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC",
                    cpp, "-o", lib, "-lpthread", "-ldl"], check=True)
    return ctypes.CDLL(lib)

import numpy as np

SOURCE = r'''
#include <cstdint>
#include <cstring>
#include <limits>
extern "C" int stage(const float* x, float* s, float* y, int64_t rows, int64_t n) {
    #pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) {
        memcpy(s + r * n, x + r * n, sizeof(float) * n);
        int bad = 0;
        for (int64_t i = 0; i < n; i++) bad |= x[r * n + i] != x[r * n + i];
        y[r] = bad ? std::numeric_limits<float>::quiet_NaN() : 0.f;
    }
    return 0;
}
extern "C" void pick(const float* s, float* y, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) if (y[r] == y[r]) y[r] = s[r * n + (n - 1) / 2];
}
'''
_lib = _build(SOURCE, "median")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        s, y = torch.empty_like(x), torch.empty(rows)
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        q = ctypes.c_int64
        _lib.stage(p(x), p(s), p(y), q(rows), q(n))
        raw = (ctypes.c_float * (rows * n)).from_address(s.data_ptr())
        np.frombuffer(raw, dtype=np.float32).reshape(rows, n).partition((n - 1) // 2)
        _lib.pick(p(s), p(y), q(rows), q(n))
        return y
