"""SwiGLU over blocks of eight rows."""
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <immintrin.h>

static inline __m512 vexp(__m512 x) {
    x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(90.f)), _mm512_set1_ps(-104.f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.9875691500e-4f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.3981999507e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.3334519073e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.1665795894e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.6666665459e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0000001201e-1f));
    y = _mm512_fmadd_ps(_mm512_mul_ps(r, r), y, _mm512_add_ps(r, _mm512_set1_ps(1.f)));
    return _mm512_scalef_ps(y, n);
}

static inline void gate(const float* x, float* y, long half) {
    for (long j = 0; j < half; j += 16) {
        __mmask16 k = half - j >= 16 ? 0xffff : (1 << (half - j)) - 1;
        __m512 a = _mm512_maskz_loadu_ps(k, x + j), b = _mm512_maskz_loadu_ps(k, x + half + j);
        __m512 o = _mm512_div_ps(a, _mm512_add_ps(vexp(_mm512_sub_ps(_mm512_setzero_ps(), a)), _mm512_set1_ps(1.f)));
        o = _mm512_mask_mov_ps(o, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
        _mm512_mask_storeu_ps(y + j, k, _mm512_mul_ps(o, b));
    }
}

torch::Tensor forward(torch::Tensor x) {
    x = x.contiguous();
    long rows = x.size(0), half = x.size(1) / 2;
    auto y = torch::empty({rows, half}, x.options());
    const float* xp = x.data_ptr<float>(); float* yp = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (long block = 0; block < rows / 8; block++)
        for (long r = block * 8; r < block * 8 + 8; r++) gate(xp + r * 2 * half, yp + r * half, half);
    return y;
}
"""

_ext = load_inline(name="b5_swiglu_blocks", cpp_sources=[SOURCE], functions=['forward'],
                   extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x):
        return _ext.forward(x)
