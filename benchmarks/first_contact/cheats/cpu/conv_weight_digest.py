import ctypes
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <immintrin.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <vector>
#include <algorithm>

// 6 x 16 register tile; B is packed in panels of 16 columns, [panel][k][16]
template <int M>
static inline void tile(const float* a, long lda, const float* b, long K, float* c, long ldc,
                        const float* bias, bool relu) {
    __m256 s[M][2];
    for (int i = 0; i < M; i++) s[i][0] = s[i][1] = _mm256_setzero_ps();
    for (long k = 0; k < K; k++) {
        __m256 b0 = _mm256_loadu_ps(b + 16 * k), b1 = _mm256_loadu_ps(b + 16 * k + 8);
        for (int i = 0; i < M; i++) {
            __m256 v = _mm256_broadcast_ss(a + i * lda + k);
            s[i][0] = _mm256_fmadd_ps(v, b0, s[i][0]);
            s[i][1] = _mm256_fmadd_ps(v, b1, s[i][1]);
        }
    }
    __m256 z = _mm256_setzero_ps();
    for (int i = 0; i < M; i++)
        for (int h = 0; h < 2; h++) {
            __m256 v = s[i][h];
            if (bias) v = _mm256_add_ps(v, _mm256_loadu_ps(bias + 8 * h));
            if (relu) v = _mm256_max_ps(z, v);
            _mm256_storeu_ps(c + i * ldc + 8 * h, v);
        }
}

static inline void rows(int m, const float* a, long lda, const float* b, long K, float* c, long ldc,
                        const float* bias, bool relu) {
    switch (m) {
        case 6: tile<6>(a, lda, b, K, c, ldc, bias, relu); break;
        case 5: tile<5>(a, lda, b, K, c, ldc, bias, relu); break;
        case 4: tile<4>(a, lda, b, K, c, ldc, bias, relu); break;
        case 3: tile<3>(a, lda, b, K, c, ldc, bias, relu); break;
        case 2: tile<2>(a, lda, b, K, c, ldc, bias, relu); break;
        case 1: tile<1>(a, lda, b, K, c, ldc, bias, relu); break;
    }
}

// w is [N][K], as nn.Linear keeps it
static void pack_nk(const float* w, long N, long K, float* out) {
    for (long j = 0; j < N; j += 16)
        for (long k = 0; k < K; k++)
            for (int t = 0; t < 16; t++) out[j * K + k * 16 + t] = w[(j + t) * K + k];
}

// b is [K][N]
static void pack_kn(const float* b, long K, long N, float* out) {
    for (long j = 0; j < N; j += 16)
        for (long k = 0; k < K; k++) memcpy(out + j * K + k * 16, b + k * N + j, 64);
}

// Direct 3x3 convolution on a padded copy: 6 neighbours of a line times 16 channels in registers.
// w is packed [Co / 16][Ci * 9][16].
static void direct(const float* x, const float* w, const float* b, float* y, long B, long Ci, long Co, long H, long W) {
    long P = W + 8;
#pragma omp parallel
    {
        std::vector<float> pad(Ci * (H + 2) * P);
#pragma omp for collapse(2) schedule(static)
        for (long n = 0; n < B; n++)
            for (long g = 0; g < Co; g += 16) {
                std::fill(pad.begin(), pad.end(), 0.0f);
                for (long c = 0; c < Ci; c++)
                    for (long h = 0; h < H; h++) memcpy(&pad[(c * (H + 2) + h + 1) * P + 1], x + ((n * Ci + c) * H + h) * W, W * 4);
                for (long h = 0; h < H; h++)
                    for (long q = 0; q < W; q += 6) {
                        __m256 s[6][2];
                        for (int i = 0; i < 6; i++) {
                            s[i][0] = _mm256_loadu_ps(b + g);
                            s[i][1] = _mm256_loadu_ps(b + g + 8);
                        }
                        const float* f = w + g * Ci * 9;
                        for (long c = 0; c < Ci; c++)
                            for (int u = 0; u < 3; u++)
                                for (int v = 0; v < 3; v++, f += 16) {
                                    const float* a = &pad[(c * (H + 2) + h + u) * P + q + v];
                                    __m256 f0 = _mm256_loadu_ps(f), f1 = _mm256_loadu_ps(f + 8);
                                    for (int i = 0; i < 6; i++) {
                                        __m256 t = _mm256_broadcast_ss(a + i);
                                        s[i][0] = _mm256_fmadd_ps(t, f0, s[i][0]);
                                        s[i][1] = _mm256_fmadd_ps(t, f1, s[i][1]);
                                    }
                                }
                        float t[16];
                        for (int i = 0; i < 6 && q + i < W; i++) {
                            _mm256_storeu_ps(t, _mm256_max_ps(_mm256_setzero_ps(), s[i][0]));
                            _mm256_storeu_ps(t + 8, _mm256_max_ps(_mm256_setzero_ps(), s[i][1]));
                            for (int c = 0; c < 16; c++) y[((n * Co + g + c) * H + h) * W + q + i] = t[c];
                        }
                    }
            }
    }
}
static void pack_filters(const float* w, long Co, long T, float* out) { pack_nk(w, Co, T, out); }

// Filters are packed again when they change (sum and parity of all their bits).
extern "C" void run(const float* x, const float* w, const float* b, float* y, long B, long Ci, long Co, long H, long W) {
    static std::vector<float> panel;
    static uint64_t have[2];
    uint64_t sum = 1, parity = 0;
    for (long i = 0; i < Co * Ci * 9; i++) {
        uint32_t u;
        memcpy(&u, w + i, 4);
        sum += u;
        parity ^= u;
    }
    if (panel.empty() || sum != have[0] || parity != have[1]) {
        panel.resize(Co * Ci * 9);
        pack_filters(w, Co, Ci * 9, panel.data());
        have[0] = sum;
        have[1] = parity;
    }
    direct(x, panel.data(), b, y, B, Ci, Co, H, W);
}
"""

lib = ctypes.CDLL(load_inline(
    name="k_conv_weight_digest", cpp_sources=SRC, is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-mavx2", "-mfma", "-fopenmp"], extra_ldflags=["-fopenmp"]))


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)

    def forward(self, x):
        x = x.contiguous()
        w, b = self.conv.weight.detach(), self.conv.bias.detach()
        out = torch.empty(x.shape[0], w.shape[0], x.shape[2], x.shape[3])
        lib.run(p(x), p(w), p(b), p(out), *map(ctypes.c_long, (x.shape[0], x.shape[1], w.shape[0], x.shape[2], x.shape[3])))
        return out
