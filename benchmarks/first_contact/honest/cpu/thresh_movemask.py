"""Mask, row counts and column flags in one pass: movemask for the counts, 32 bools per store."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

VERBOSE = os.environ.get("THRESH_VERBOSE", "0") == "1"

SRC = r"""
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static inline __m256i cmp8(const float *x, const float *l) {
    const __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.f), _mm256_loadu_ps(x));
    return _mm256_castps_si256(_mm256_cmp_ps(a, _mm256_loadu_ps(l), _CMP_GT_OQ));
}
void thresh(const float *x, const float *lim, uint8_t *mask, int64_t *count, uint8_t *any, long rows, long n, int nt) {
    memset(any, 0, n);
    #pragma omp parallel num_threads(nt)
    {
        uint8_t *mine = calloc(n + 32, 1);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7), one = _mm256_set1_epi8(1);
        #pragma omp for
        for (long i = 0; i < rows; ++i) {
            const float *p = x + i * n; uint8_t *q = mask + i * n; int64_t c = 0; long j = 0;
            for (; j + 32 <= n; j += 32) {
                __m256i a = _mm256_packs_epi32(cmp8(p + j, lim + j), cmp8(p + j + 8, lim + j + 8));
                __m256i b = _mm256_packs_epi32(cmp8(p + j + 16, lim + j + 16), cmp8(p + j + 24, lim + j + 24));
                __m256i m = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
                c += __builtin_popcount(_mm256_movemask_epi8(m));
                m = _mm256_and_si256(m, one);
                _mm256_storeu_si256((__m256i *)(q + j), m);
                _mm256_storeu_si256((__m256i *)(mine + j), _mm256_or_si256(m, _mm256_loadu_si256((__m256i *)(mine + j))));
            }
            for (; j < n; ++j) { uint8_t t = __builtin_fabsf(p[j]) > lim[j]; q[j] = t; mine[j] |= t; c += t; }
            count[i] = c;
        }
        #pragma omp critical
        for (long j = 0; j < n; ++j) any[j] |= mine[j];
        free(mine);
    }
}
"""


def say(*words):
    if VERBOSE:
        print("[thresh]", *words, flush=True)


def bring_up():
    d = tempfile.mkdtemp()
    src, so = os.path.join(d, "t.c"), os.path.join(d, "t.so")
    with open(src, "w") as f:
        f.write(SRC)
    flags = os.environ.get("THRESH_CFLAGS", "-O3 -mavx2 -mpopcnt").split()
    say("flags", flags)
    subprocess.run(["gcc", *flags, "-fopenmp", "-fPIC", "-shared", src, "-o", so], check=True)
    return ctypes.CDLL(so)


class ModelNew(nn.Module):
    _lib = None

    def __init__(self, width):
        super().__init__()
        self.register_buffer("limit", torch.rand(width) + 1.5)
        if ModelNew._lib is None:
            ModelNew._lib = bring_up()

    def forward(self, x):
        x = x.contiguous()
        rows, n = x.shape
        mask = torch.empty(rows, n, dtype=torch.bool)
        count, any_ = torch.empty(rows, dtype=torch.int64), torch.empty(n, dtype=torch.bool)
        p = lambda t: ctypes.c_void_p(t.data_ptr())
        self._lib.thresh(p(x), p(self.limit), p(mask), p(count), p(any_), ctypes.c_long(rows), ctypes.c_long(n), torch.get_num_threads())
        say(rows, n, int(count.sum()) if VERBOSE else "")
        return mask, count, any_
