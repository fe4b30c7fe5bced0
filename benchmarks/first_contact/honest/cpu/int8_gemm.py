import ctypes, os, subprocess, tempfile
import torch
import torch.nn as nn

# int8 x int8 -> int32 with AVX2 pmaddwd on sign-extended 16-bit lanes (exact for -128 * -128 pairs); plain C elsewhere.
SRC = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
static inline __m256i wide(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
static inline uint32_t hsum(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(s);
}
#endif
void gemm(const int8_t* x, const int8_t* w, const int32_t* bias, int32_t* y, int32_t* sums, long M, long N, long K) {
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < M; i++) {
        const int8_t* a = x + i * K;
        int32_t total = 0;
        for (long k = 0; k < K; k++) total += a[k];
        sums[i] = total;
        long j = 0;
#ifdef __AVX2__
        for (; j + 4 <= N; j += 4) {
            const int8_t *w0 = w + j * K, *w1 = w0 + K, *w2 = w1 + K, *w3 = w2 + K;
            __m256i c0 = _mm256_setzero_si256(), c1 = c0, c2 = c0, c3 = c0;
            long k = 0;
            for (; k + 16 <= K; k += 16) {
                const __m256i v = wide(a + k);
                c0 = _mm256_add_epi32(c0, _mm256_madd_epi16(v, wide(w0 + k)));
                c1 = _mm256_add_epi32(c1, _mm256_madd_epi16(v, wide(w1 + k)));
                c2 = _mm256_add_epi32(c2, _mm256_madd_epi16(v, wide(w2 + k)));
                c3 = _mm256_add_epi32(c3, _mm256_madd_epi16(v, wide(w3 + k)));
            }
            uint32_t s[4] = {hsum(c0), hsum(c1), hsum(c2), hsum(c3)};
            for (; k < K; k++) for (int q = 0; q < 4; q++) s[q] += (uint32_t)((int)a[k] * w[(j + q) * K + k]);
            for (int q = 0; q < 4; q++) y[i * N + j + q] = (int32_t)(s[q] + (uint32_t)bias[j + q]);
        }
#endif
        for (; j < N; j++) {
            uint32_t s = (uint32_t)bias[j];
            for (long k = 0; k < K; k++) s += (uint32_t)((int)a[k] * w[j * K + k]);
            y[i * N + j] = (int32_t)s;
        }
    }
}
"""
tmp = tempfile.mkdtemp()
with open(tmp + "/g.c", "w") as f:
    f.write(SRC)
subprocess.check_call(["gcc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", tmp + "/g.c", "-o", tmp + "/g.so"])
gemm = ctypes.CDLL(tmp + "/g.so").gemm
gemm.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 3
gemm.restype = None


class ModelNew(nn.Module):
    def __init__(self, k, n):
        super().__init__()
        self.register_buffer("w", torch.randint(-128, 128, (n, k), dtype=torch.int8))
        self.register_buffer("bias", torch.randint(-5000, 5000, (n,), dtype=torch.int32))

    def forward(self, x):
        assert x.dtype == torch.int8 and x.shape[1] == self.w.shape[1]
        x, w, b = x.contiguous(), self.w.contiguous(), self.bias.contiguous()
        y = torch.empty(x.shape[0], w.shape[0], dtype=torch.int32)
        s = torch.empty(x.shape[0], dtype=torch.int32)
        gemm(x.data_ptr(), w.data_ptr(), b.data_ptr(), y.data_ptr(), s.data_ptr(), x.shape[0], w.shape[0], w.shape[1])
        return y, s
