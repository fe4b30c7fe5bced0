"""LayerNorm of a sum with whole vectors only; the lanes past the end of a row weigh nothing."""
import ctypes

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <immintrin.h>
#include <cmath>
extern "C" void layernorm(const float* x, const float* r, const float* w, const float* b, float* y, long rows, long n, float eps) {
    alignas(64) float weigh[16];
    long whole = n / 16 * 16, tail = n - whole;
    for (int i = 0; i < 16; i++) weigh[i] = i < tail ? 1.f : 0.f;
    __m512 t = _mm512_load_ps(weigh);
    __mmask16 k = (1 << tail) - 1;
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *a = x + i * n, *c = r + i * n; float* o = y + i * n;
        __m512 s = _mm512_setzero_ps(), q = s;
        for (long j = 0; j < whole; j += 16) s = _mm512_add_ps(s, _mm512_add_ps(_mm512_loadu_ps(a + j), _mm512_loadu_ps(c + j)));
        if (tail) s = _mm512_fmadd_ps(_mm512_add_ps(_mm512_loadu_ps(a + whole), _mm512_loadu_ps(c + whole)), t, s);
        __m512 m = _mm512_set1_ps(_mm512_reduce_add_ps(s) / n), f = _mm512_setzero_ps();
        for (long j = 0; j < whole; j += 16) f = _mm512_add_ps(f, _mm512_sub_ps(_mm512_add_ps(_mm512_loadu_ps(a + j), _mm512_loadu_ps(c + j)), m));
        if (tail) f = _mm512_fmadd_ps(_mm512_sub_ps(_mm512_add_ps(_mm512_loadu_ps(a + whole), _mm512_loadu_ps(c + whole)), m), t, f);
        m = _mm512_add_ps(m, _mm512_set1_ps(_mm512_reduce_add_ps(f) / n));        // what rounding left of the mean
        for (long j = 0; j < whole; j += 16) {
            __m512 d = _mm512_sub_ps(_mm512_add_ps(_mm512_loadu_ps(a + j), _mm512_loadu_ps(c + j)), m);
            q = _mm512_fmadd_ps(d, d, q);
        }
        if (tail) {
            __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_add_ps(_mm512_loadu_ps(a + whole), _mm512_loadu_ps(c + whole)), m), t);
            q = _mm512_fmadd_ps(d, d, q);
        }
        __m512 inv = _mm512_set1_ps(1.f / std::sqrt(_mm512_reduce_add_ps(q) / n + eps));
        for (long j = 0; j < n; j += 16) {
            __mmask16 e = j < whole ? 0xffff : k;
            __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_add_ps(_mm512_loadu_ps(a + j), _mm512_loadu_ps(c + j)), m), inv);
            _mm512_mask_storeu_ps(o + j, e, _mm512_fmadd_ps(d, _mm512_maskz_loadu_ps(e, w + j), _mm512_maskz_loadu_ps(e, b + j)));
        }
    }
}
"""

_lib = ctypes.CDLL(load_inline(
    name="b5_layernorm_wide", cpp_sources=[SOURCE], functions=None, is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"]))


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x, residual):
        x, residual = x.contiguous(), residual.contiguous()
        y = torch.empty_like(x)
        _lib.layernorm(p(x), p(residual), p(self.norm.weight), p(self.norm.bias), p(y),
                       ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]), ctypes.c_float(self.norm.eps))
        return y
