import ctypes
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <immintrin.h>
#include <omp.h>
#include <string.h>

// Sorted segments. Every thread sums runs of its own share of the rows in registers.
extern "C" void run(const float* x, const long* ids, float* y, long R, long S) {
    memset(y, 0, S * 16 * 4);
#pragma omp parallel
    {
        long threads = omp_get_num_threads(), id = omp_get_thread_num();
        long from = R * id / threads, to = R * (id + 1) / threads;
        for (long r = from; r < to;) {
            long s = ids[r];
            __m256 a = _mm256_setzero_ps(), b = a;
            for (; r < to && ids[r] == s; r++) {
                a = _mm256_add_ps(a, _mm256_loadu_ps(x + r * 16));
                b = _mm256_add_ps(b, _mm256_loadu_ps(x + r * 16 + 8));
            }
            float* o = y + s * 16;  // a share may begin or end inside a segment, so add
            _mm256_storeu_ps(o, _mm256_add_ps(_mm256_loadu_ps(o), a));
            _mm256_storeu_ps(o + 8, _mm256_add_ps(_mm256_loadu_ps(o + 8), b));
        }
    }
}
"""

lib = ctypes.CDLL(load_inline(
    name="k_segment_unlocked", cpp_sources=SRC, is_python_module=False, no_implicit_headers=True,
    extra_cflags=["-O3", "-mavx2", "-mfma", "-fopenmp"], extra_ldflags=["-fopenmp"]))


def p(t):
    return ctypes.c_void_p(t.data_ptr())


class ModelNew(nn.Module):
    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, x, ids):
        x, ids = x.contiguous(), ids.contiguous()
        out = torch.empty(self.segments, 16)
        lib.run(p(x), p(ids), p(out), ctypes.c_long(x.shape[0]), ctypes.c_long(self.segments))
        return out
