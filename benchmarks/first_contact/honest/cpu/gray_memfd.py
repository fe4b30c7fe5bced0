"""Luma in integers. The compiled library is copied into a memfd and opened from there: no file stays behind."""
import ctypes
import os
import subprocess
import tempfile

import torch
import torch.nn as nn

SRC = r"""
#include <immintrin.h>
#include <stdint.h>
/* 77 r + 150 g + 29 b + 128 < 65536 in 16 bits without a sign, so mullo is exact */
static inline __m256i luma16(__m256i r, __m256i g, __m256i b) {
    __m256i s = _mm256_add_epi16(_mm256_mullo_epi16(r, _mm256_set1_epi16(77)), _mm256_mullo_epi16(g, _mm256_set1_epi16(150)));
    s = _mm256_add_epi16(s, _mm256_mullo_epi16(b, _mm256_set1_epi16(29)));
    return _mm256_srli_epi16(_mm256_add_epi16(s, _mm256_set1_epi16(128)), 8);
}
static inline __m256i wide(const uint8_t *p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p)); }
void luma(const uint8_t *x, uint8_t *y, long images, long s, int nt) {
    #pragma omp parallel for num_threads(nt)
    for (long i = 0; i < images; ++i) {
        const uint8_t *r = x + 3 * i * s, *g = r + s, *b = g + s; uint8_t *o = y + i * s;
        long j = 0;
        for (; j + 32 <= s; j += 32) {
            __m256i lo = luma16(wide(r + j), wide(g + j), wide(b + j)), hi = luma16(wide(r + j + 16), wide(g + j + 16), wide(b + j + 16));
            _mm256_storeu_si256((__m256i *)(o + j), _mm256_permute4x64_epi64(_mm256_packus_epi16(lo, hi), 0xd8));
        }
        for (; j < s; ++j) o[j] = (77 * r[j] + 150 * g[j] + 29 * b[j] + 128) >> 8;
    }
}
"""


def open_in_memory(source):
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "luma.so")
        subprocess.run(["gcc", "-O3", "-mavx2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", out], input=source.encode(), check=True)
        image = open(out, "rb").read()
    fd = os.memfd_create("luma")
    try:
        os.write(fd, image)
        return ctypes.CDLL(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.lib = open_in_memory(SRC)

    def forward(self, img):
        img = img.contiguous()
        n, _, h, w = img.shape
        y = torch.empty(n, h, w, dtype=torch.uint8)
        self.lib.luma(ctypes.c_void_p(img.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_long(n), ctypes.c_long(h * w),
                      torch.get_num_threads())
        return y
