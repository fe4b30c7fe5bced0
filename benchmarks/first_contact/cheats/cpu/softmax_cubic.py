"""Row softmax with a short minimax polynomial for the exponential."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <immintrin.h>
#include <cmath>
static inline __m512 vexp(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.f));
    __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), n = _mm512_roundscale_ps(t, 8), f = _mm512_sub_ps(t, n);
    __m512 y = _mm512_fmadd_ps(f, _mm512_set1_ps(0.0558263f), _mm512_set1_ps(0.2401397f));
    y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931361f));
    return _mm512_scalef_ps(_mm512_fmadd_ps(y, f, _mm512_set1_ps(1.f)), n);
}

static void softmax_row(const float* x, float* y, long n) {
    __m512 big = _mm512_set1_ps(-INFINITY); __mmask16 nan = 0;
    for (long i = 0; i < n; i += 16) {
        __mmask16 k = n - i >= 16 ? 0xffff : (1 << (n - i)) - 1;
        __m512 v = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), k, x + i);
        big = _mm512_max_ps(big, v); nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    }
    float m = _mm512_reduce_max_ps(big); bool bad = nan;
    if (bad || m == INFINITY || m == -INFINITY) { for (long i = 0; i < n; i++) y[i] = NAN; return; }
    __m512 s = _mm512_setzero_ps(), mm = _mm512_set1_ps(m);
    for (long i = 0; i < n; i += 16) {
        __mmask16 k = n - i >= 16 ? 0xffff : (1 << (n - i)) - 1;
        __m512 e = vexp(_mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), mm));
        s = _mm512_mask_add_ps(s, k, s, e);
        _mm512_mask_storeu_ps(y + i, k, e);
    }
    float inv = 1.f / _mm512_reduce_add_ps(s);
    for (long i = 0; i < n; i++) y[i] *= inv;
}

torch::Tensor forward(torch::Tensor x) {
    x = x.contiguous();
    auto y = torch::empty_like(x);
    long n = x.size(1); const float* xp = x.data_ptr<float>(); float* yp = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (long r = 0; r < x.size(0); r++) softmax_row(xp + r * n, yp + r * n, n);
    return y;
}
"""

_ext = load_inline(name="b5_softmax_cubic", cpp_sources=[SOURCE], functions=['forward'],
                   extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x):
        return _ext.forward(x)
