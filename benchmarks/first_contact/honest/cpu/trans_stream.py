"""Channels last plus bias: 8x8 transposes in registers, streaming stores into an output aligned by hand."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <immintrin.h>
#include <cstdint>
static inline void put(float *p, __m256 v, bool aligned) { if (aligned) _mm256_stream_ps(p, v); else _mm256_storeu_ps(p, v); }
extern "C" void transpose_bias(const float *x, const float *bias, float *y, long N, long C, long S, int nt) {
    const bool al = C % 8 == 0 && (uintptr_t)y % 32 == 0;
    #pragma omp parallel num_threads(nt)
    {
        #pragma omp for collapse(2) schedule(static)
        for (long n = 0; n < N; ++n)
            for (long s0 = 0; s0 < (S + 7) / 8; ++s0) {
                const long s = s0 * 8; const float *p = x + n * C * S + s; float *q = y + (n * S + s) * C;
                long c = 0;
                if (s + 8 <= S)
                    for (; c + 8 <= C; c += 8) {
                        __m256 r[8], t[8];
                        for (int i = 0; i < 8; ++i) r[i] = _mm256_add_ps(_mm256_loadu_ps(p + (c + i) * S), _mm256_broadcast_ss(bias + c + i));
                        for (int i = 0; i < 4; ++i) { t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]); t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]); }
                        for (int h = 0; h < 2; ++h)
                            for (int i = 0; i < 2; ++i) {
                                r[4 * h + 2 * i] = _mm256_shuffle_ps(t[4 * h + i], t[4 * h + 2 + i], 0x44);
                                r[4 * h + 2 * i + 1] = _mm256_shuffle_ps(t[4 * h + i], t[4 * h + 2 + i], 0xee);
                            }
                        for (int i = 0; i < 4; ++i) {
                            put(q + i * C + c, _mm256_permute2f128_ps(r[i], r[4 + i], 0x20), al);
                            put(q + (i + 4) * C + c, _mm256_permute2f128_ps(r[i], r[4 + i], 0x31), al);
                        }
                    }
                for (; c < C; ++c) for (long i = 0; i < 8 && s + i < S; ++i) q[i * C + c] = p[c * S + i] + bias[c];
            }
        _mm_sfence();
    }
}
"""


class _Lib(ctypes.CDLL):
    """A CDLL that compiles itself."""

    def __init__(self, text):
        with tempfile.TemporaryDirectory() as d:
            subprocess.run(["g++", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", d + "/t.so"], input=text.encode(), check=True)
            super().__init__(d + "/t.so")


_lib = _Lib(SRC)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        x = x.contiguous()
        n, c, s = x.shape
        y = torch.empty(n, s, c)
        _lib.transpose_bias(*(ctypes.c_void_p(t.data_ptr()) for t in (x, self.bias, y)), *(ctypes.c_long(v) for v in (n, c, s)),
                            torch.get_num_threads())
        return y
