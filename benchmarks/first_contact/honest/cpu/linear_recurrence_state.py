import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

r"""
h[t] = sigmoid(a[t]) * h[t-1] + x[t]

Time is serial, so threads take (batch, block of channels); the state of a block is an array in registers or L1.
"""

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <algorithm>

template <int CB>
static void lane(const float* __restrict x, const float* __restrict a, const float* __restrict h0, float* __restrict y,
                 int64_t T, int64_t C, int64_t c0, int cb) {
    float h[CB];
    for (int c = 0; c < cb; ++c) h[c] = h0[c0 + c];
    for (int64_t t = 0; t < T; ++t) {
        const int64_t at = t * C + c0;
        for (int c = 0; c < cb; ++c) {
            const float decay = 1.0f / (1.0f + std::exp(-a[at + c]));
            h[c] = decay * h[c] + x[at + c];
            y[at + c] = h[c];
        }
    }
}

extern "C" void recurrence(const float* x, const float* a, const float* h0, float* y, int64_t B, int64_t T, int64_t C) {
    constexpr int CB = 32;
    const int64_t blocks = (C + CB - 1) / CB;
    #pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; ++b)
        for (int64_t k = 0; k < blocks; ++k)
            lane<CB>(x + b * T * C, a + b * T * C, h0, y + b * T * C, T, C, k * CB, (int)std::min<int64_t>(CB, C - k * CB));
}
"""


class Lazy:
    """Descriptor: compiles on first access."""

    def __get__(self, obj, owner):
        d = tempfile.mkdtemp()
        with open(os.path.join(d, "r.cpp"), "w") as f:
            f.write(SOURCE)
        subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "r.cpp", "-o", "r.so"], cwd=d, check=True)
        fn = ctypes.CDLL(os.path.join(d, "r.so")).recurrence
        fn.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
        fn.restype = None
        owner.recurrence = staticmethod(fn)
        return fn


class ModelNew(nn.Module):
    recurrence = Lazy()

    def __init__(self, channels: int):
        super().__init__()
        self.h0 = nn.Parameter(torch.zeros(channels))

    def forward(self, x, a):
        x, a = x.contiguous(), a.contiguous()
        y = torch.empty_like(x)
        self.recurrence(x.data_ptr(), a.data_ptr(), self.h0.data_ptr(), y.data_ptr(), *x.shape)
        return y
