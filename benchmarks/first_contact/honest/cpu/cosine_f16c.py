"""Half-precision rows through F16C conversions; a masked tail; one pass for the three sums."""
import ctypes
import subprocess
import tempfile

import torch

CODE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

static inline float total(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

extern "C" void cosine(const uint16_t* a, const uint16_t* b, float* out, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t *p = a + r * width, *q = b + r * width;
        __m256 ab[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, aa[2] = {ab[0], ab[0]}, bb[2] = {ab[0], ab[0]};
        for (int64_t c = 0; c < width; c += 16)
            for (int h = 0; h < 2; ++h) {
                const int64_t at = c + 8 * h;
                if (at >= width) break;
                __m128i u, v;
                if (at + 8 <= width) {
                    u = _mm_loadu_si128((const __m128i*)(p + at));
                    v = _mm_loadu_si128((const __m128i*)(q + at));
                } else {
                    uint16_t x[8] = {}, y[8] = {};
                    memcpy(x, p + at, (width - at) * 2);
                    memcpy(y, q + at, (width - at) * 2);
                    u = _mm_loadu_si128((const __m128i*)x);
                    v = _mm_loadu_si128((const __m128i*)y);
                }
                __m256 f = _mm256_cvtph_ps(u), g = _mm256_cvtph_ps(v);
                ab[h] = _mm256_fmadd_ps(f, g, ab[h]);
                aa[h] = _mm256_fmadd_ps(f, f, aa[h]);
                bb[h] = _mm256_fmadd_ps(g, g, bb[h]);
            }
        float dot = total(_mm256_add_ps(ab[0], ab[1]));
        float na = total(_mm256_add_ps(aa[0], aa[1])), nb = total(_mm256_add_ps(bb[0], bb[1]));
        out[r] = dot / (std::sqrt(na) * std::sqrt(nb) + 1e-6f);
    }
}
"""


def _build(code, flags="-O2 -mavx2 -mfma -mf16c -fopenmp"):
    so = tempfile.mkdtemp() + "/lib.so"
    subprocess.run(["g++"] + flags.split() + ["-shared", "-fPIC", "-xc++", "-", "-o", so], input=code.encode(), check=True)
    return ctypes.CDLL(so)


class ModelNew(torch.nn.Module):
    lib = _build(CODE)                                  # in the class body, once for all instances

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        out = torch.empty(a.shape[0])
        self.lib.cosine(*(ctypes.c_void_p(t.data_ptr()) for t in (a, b, out)), ctypes.c_int64(a.shape[0]),
                        ctypes.c_int64(a.shape[1]), ctypes.c_int(torch.get_num_threads()))
        return out
