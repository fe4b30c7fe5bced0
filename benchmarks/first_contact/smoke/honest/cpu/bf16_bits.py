import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

# bfloat16 by hand: upper half of a float, rounded to nearest even.
CODE = r"""
#include <stdint.h>
#include <string.h>
#include <math.h>

typedef uint16_t bf16;

static inline float widen(bf16 h) { uint32_t u = (uint32_t)h << 16; float f; memcpy(&f, &u, 4); return f; }

static inline bf16 narrow(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (bf16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void bias_silu(const bf16 *restrict x, const float *restrict bias, bf16 *restrict y, int64_t rows, int64_t n) {
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            float v = widen(x[r * n + i]) + bias[i];
            y[r * n + i] = narrow(v / (1.0f + expf(-v)));
        }
}
"""

_handle = None


def handle():
    global _handle
    if _handle is None:
        fd, so = tempfile.mkstemp(suffix=".so")
        os.close(fd)
        subprocess.run(["gcc", "-std=c11", "-O3", "-march=x86-64-v3", "-fopenmp", "-shared", "-fPIC", "-x", "c", "-", "-o", so, "-lm"],
                       input=CODE.encode(), check=True)
        _handle = ctypes.CDLL(so)
    return _handle


class ModelNew(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        if x.dtype != torch.bfloat16:
            raise TypeError("bfloat16 expected, not %s" % x.dtype)
        x = x.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        handle().bias_silu(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(self.bias.data_ptr()), ctypes.c_void_p(y.data_ptr()),
                           ctypes.c_int64(x.numel() // n), ctypes.c_int64(n))
        return y
