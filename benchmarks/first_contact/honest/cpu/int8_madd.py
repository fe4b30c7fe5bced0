import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

CPP = r"""
#include <immintrin.h>
#include <cstdint>

// sum_k (x - z) w = sum_k x w - z sum_k w, modulo 2^32 as in PyTorch's int32
static int32_t hsum(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}
static inline __m256i wide(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }

template <int R>
static void block(const int8_t* x, const int8_t* w, int64_t k, uint32_t* dots, uint32_t& wsum) {
    __m256i acc[R], ws = _mm256_setzero_si256(), one = _mm256_set1_epi16(1);
    for (int r = 0; r < R; r++) acc[r] = _mm256_setzero_si256();
    int64_t i = 0;
    for (; i + 16 <= k; i += 16) {
        __m256i b = wide(w + i);
        ws = _mm256_add_epi32(ws, _mm256_madd_epi16(b, one));
        for (int r = 0; r < R; r++) acc[r] = _mm256_add_epi32(acc[r], _mm256_madd_epi16(wide(x + r * k + i), b));
    }
    wsum = (uint32_t)hsum(ws);
    for (int r = 0; r < R; r++) dots[r] = (uint32_t)hsum(acc[r]);
    for (; i < k; i++) {
        wsum += (uint32_t)(int32_t)w[i];
        for (int r = 0; r < R; r++) dots[r] += (uint32_t)(x[r * k + i] * w[i]);
    }
}

extern "C" void qlinear(const int8_t* x, const int8_t* w, const int32_t* zero, const int32_t* bias, int32_t* out,
                        int64_t m, int64_t n, int64_t k) {
    const uint32_t z = (uint32_t)*zero;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < m; i += 4) {
        for (int64_t j = 0; j < n; j++) {
            uint32_t d[4], s;
            const int rows = m - i < 4 ? (int)(m - i) : 4;
            if (rows == 4) block<4>(x + i * k, w + j * k, k, d, s);
            else for (int r = 0; r < rows; r++) block<1>(x + (i + r) * k, w + j * k, k, d + r, s);
            for (int r = 0; r < rows; r++) out[(i + r) * n + j] = (int32_t)(d[r] - z * s + (uint32_t)bias[j]);
        }
    }
}
"""


def library():
    d = tempfile.mkdtemp()
    p = os.path.join(d, "q.cpp")
    with open(p, "w") as f:
        f.write(CPP)
    subprocess.run(["g++", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-o", p + ".so", p], check=True)
    return ctypes.CDLL(p + ".so")


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("weight", torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8))
        self.register_buffer("zero_point", torch.tensor(7, dtype=torch.int32))
        self.register_buffer("bias", torch.randint(-1000, 1000, (outputs,), dtype=torch.int32))
        self.lib = library()

    def forward(self, x):
        x = x.contiguous()
        m, (n, k) = x.shape[0], self.weight.shape
        out = torch.empty(m, n, dtype=torch.int32)
        tensors = [t.contiguous() for t in (x, self.weight, self.zero_point, self.bias, out)]
        ptr = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        self.lib.qlinear(*ptr, ctypes.c_int64(m), ctypes.c_int64(n), ctypes.c_int64(k))
        return out
