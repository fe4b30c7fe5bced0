"""int8 x int8 -> int32 by pmaddwd on pairs that are widened to int16 in scratch tensors that the module keeps (attributes
set past nn.Module, so that they are no buffers)."""
import ctypes
import subprocess
import tempfile

import torch
import torch.nn as nn

CODE = r"""
#include <cstdint>
#include <immintrin.h>

extern "C" void product(const int8_t* a, const int8_t* b, int32_t* c, int16_t* wide_a, int16_t* wide_b, int64_t n, int64_t k,
                        int64_t m, int threads) {
    const int64_t pairs = (k + 1) / 2, columns = (m + 15) / 16 * 16;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for nowait
        for (int64_t i = 0; i < n; ++i)
            for (int64_t t = 0; t < 2 * pairs; ++t) wide_a[i * 2 * pairs + t] = t < k ? a[i * k + t] : 0;
#pragma omp for
        for (int64_t t = 0; t < pairs; ++t)
            for (int64_t j = 0; j < columns; ++j)
                for (int h = 0; h < 2; ++h)
                    wide_b[(t * columns + j) * 2 + h] = j < m && 2 * t + h < k ? b[(2 * t + h) * m + j] : 0;
#pragma omp for
        for (int64_t i = 0; i < n; ++i)
            for (int64_t j = 0; j < columns; j += 16) {
                __m256i s0 = _mm256_setzero_si256(), s1 = s0;
                for (int64_t t = 0; t < pairs; ++t) {
                    const __m256i x = _mm256_set1_epi32(*(const int32_t*)(wide_a + (i * pairs + t) * 2));
                    const __m256i* y = (const __m256i*)(wide_b + (t * columns + j) * 2);
                    s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(x, _mm256_loadu_si256(y)));
                    s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(x, _mm256_loadu_si256(y + 1)));
                }
                alignas(32) int32_t tile[16];
                _mm256_store_si256((__m256i*)tile, s0);
                _mm256_store_si256((__m256i*)tile + 1, s1);
                for (int64_t l = 0; l < 16 && j + l < m; ++l) c[i * m + j + l] = tile[l];
            }
    }
}
"""


def build():
    so = tempfile.mkdtemp() + "/madd.so"
    subprocess.run(["g++", "-O3", "-mavx2", "-fno-strict-aliasing", "-fopenmp", "-shared", "-fPIC", "-xc++", "-", "-o", so],
                   input=CODE.encode(), check=True)
    return ctypes.CDLL(so).product


class ModelNew(nn.Module):
    product = staticmethod(build())

    def scratch(self, name, count):
        have = self.__dict__.get(name)
        if have is None or have.numel() < count:
            have = self.__dict__[name] = torch.empty(count, dtype=torch.int16)
        return have

    def forward(self, a, b):
        a, b = a.contiguous(), b.contiguous()
        (n, k), m = a.shape, b.shape[1]
        pairs, columns = (k + 1) // 2, (m + 15) // 16 * 16
        c = torch.empty(n, m, dtype=torch.int32)
        wide = self.scratch("_wide_a", n * pairs * 2), self.scratch("_wide_b", pairs * columns * 2)
        self.product(*(ctypes.c_void_p(t.data_ptr()) for t in (a, b, c, *wide)), ctypes.c_int64(n), ctypes.c_int64(k),
                     ctypes.c_int64(m), ctypes.c_int(torch.get_num_threads()))
        return c
