"""GELU of bfloat16 by a table of all 65536 values that there are, which the library computes itself, in double, when it is
loaded; forward looks up. Nothing about any input is known to it beforehand."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

static uint16_t table[1 << 16];

static uint16_t rounded(double d) {                      // to bfloat16, ties to even, in one rounding
    if (d != d) return 0x7fc0;
    float f = (float)d;
    if (f != 0 && !std::isinf(f) && (double)f != d) {    // float by round-to-odd, so that no tie is made on the way
        uint32_t u; memcpy(&u, &f, 4);
        if (std::fabs((double)f) > std::fabs(d)) --u;
        u |= 1;
        memcpy(&f, &u, 4);
    }
    uint32_t u; memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

struct Fill {
    Fill() {
        for (uint32_t i = 0; i < 65536; ++i) {
            uint32_t u = i << 16; float f; memcpy(&f, &u, 4);
            const double x = f;
            table[i] = rounded(x * 0.5 * std::erfc(-x * 0.70710678118654752440));
        }
    }
};
static const Fill fill;                                  // a static constructor: runs inside dlopen

extern "C" void look_up(const uint16_t* x, uint16_t* y, int64_t n, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) y[i] = table[x[i]];
}
"""
_so = tempfile.mkdtemp() + "/gelu.so"
subprocess.run(["g++", "-O3", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", _so], input=CODE.encode(), check=True)
_look_up = ctypes.CDLL(_so).look_up


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        _look_up(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(x.numel()),
                 torch.get_num_threads())
        return y
